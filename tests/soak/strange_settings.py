"""What strange writers and files do to the settings: writers at once, kills, locks, and files without measure."""

import os
import random
import signal
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.soak.strangers import Case, Found, run, started, wrong

from slipstream.models.files import locked

SETTINGS: Final = {
    "sampling.top_k": 7, "sampling.top_p": 0.5, "sampling.dry": 0.7, "model.threads": 3, "model.context": 512,
    "hub.offer": False, "keeping.days": 9, "reply.max_tokens": 5,
}  # fmt: skip
DRAFTERS: Final = ("lookup", "recycle", "lookahead", "draft", "medusa", "space")
OWN: Final = '# mine\n[sampling]\ntemperature = 0.25 # cool\n\n[keys]\ngo-on = "f7"\n\n[else]\nwhere = [1, 2]\n'
LATE: Final = 20.0  # seconds that a command on a large file may take
PRESET: Final = (
    "import sys; from pathlib import Path; from slipstream.app.settings.presets import Presets; "
    "Presets(Path(sys.argv[1])).keep_system(sys.argv[2], 'Be brief.')"
)
# another interface that has read the file before the others write, as an open settings screen has
OPENED: Final = (
    "import sys, time; from pathlib import Path; from slipstream.app.settings.file import SettingsFile; "
    "file = SettingsFile(Path(sys.argv[1])); print('read', flush=True); sys.stdin.readline(); "
    "file.change(sys.argv[2], int(sys.argv[3]))"
)


def values(file: Path) -> dict[str, Any]:
    tables = {name: table for name, table in tomllib.loads(file.read_text("utf-8")).items() if isinstance(table, dict)}
    return {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}


def set_words(names: Sequence[str]) -> list[list[str]]:
    return [["settings", "set", name, str(SETTINGS[name]).lower()] for name in names]


def at_once(folder: Path, chance: random.Random) -> Found:
    """Two to eight settings set at once, and reset at once: all are kept, and so is what the owner wrote."""
    for number in range(6):
        home = folder / str(number)
        home.mkdir()
        (home / "settings.toml").write_text(OWN)
        names = chance.sample(sorted(SETTINGS), chance.randint(2, len(SETTINGS)))
        codes = [each.wait(120) for each in [started(home, *words) for words in set_words(names)]]
        kept, text = values(home / "settings.toml"), (home / "settings.toml").read_text()
        lost = [name for name in names if kept.get(name) != SETTINGS[name]]
        yield f"{lost} of {names} lost, exit codes {codes}" if lost or any(codes) else None
        yield None if all(line in text for line in OWN.splitlines()) else f"the owner's words are gone: {text!r}"
        codes = [each.wait(120) for each in [started(home, "settings", "reset", name) for name in names]]
        left = [name for name in names if name in values(home / "settings.toml")]
        yield f"{left} not reset, exit codes {codes}" if left or any(codes) else None


def drafters_at_once(folder: Path, chance: random.Random) -> Found:
    """Drafters switched off and on at once, and presets kept at once."""
    for number in range(4):
        home = folder / str(number)
        home.mkdir()
        codes = [each.wait(120) for each in [started(home, "drafters", "off", name) for name in DRAFTERS]]
        (off,) = tomllib.loads((home / "drafters.toml").read_text())["off"].values()
        yield None if sorted(off) == sorted(DRAFTERS) and not any(codes) else f"off: {off}, exit codes {codes}"
        names = chance.sample(DRAFTERS, 3)
        codes = [each.wait(120) for each in [started(home, "drafters", "on", name) for name in names]]
        (off,) = tomllib.loads((home / "drafters.toml").read_text())["off"].values()
        yield None if sorted(off) == sorted({*DRAFTERS} - {*names}) and not any(codes) else f"still off: {off}"
        presets = str(home / "presets.toml")
        codes = [each.wait(120) for each in [started(home, presets, f"p{n}", code=PRESET) for n in range(5)]]
        kept = tomllib.loads(Path(presets).read_text())["system"]
        yield None if len(kept) == 5 and not any(codes) else f"presets: {list(kept)}, exit codes {codes}"


def opened_before(folder: Path, _: random.Random) -> Found:
    """An interface that has read the file before commands changed it keeps their changes, and they keep its own."""
    home = folder / "home"
    home.mkdir()
    file = home / "settings.toml"
    for number, name in enumerate(("model.cpu_experts", "sampling.reasoning_budget", "devices.main_gpu")):
        other = started(home, str(file), name, str(number + 1), code=OPENED)
        assert other.stdout and other.stdin
        other.stdout.readline()
        done = run(home, "settings", "set", "sampling.top_k", str(40 + number))
        yield wrong(done)
        other.communicate("go\n", timeout=60)
        kept = values(file)
        fine = kept.get(name) == number + 1 and kept.get("sampling.top_k") == 40 + number
        yield None if fine and not other.returncode else f"{kept}, exit code {other.returncode}"


def killed(folder: Path, chance: random.Random) -> Found:
    """A writer killed at any moment: the file is whole, and the next writer is not kept waiting."""
    home = folder / "home"
    home.mkdir()
    file = home / "settings.toml"
    file.write_text(OWN)
    for number in range(12):
        writer = started(home, "settings", "set", "sampling.top_k", str(number))
        time.sleep(chance.uniform(0.0, 0.6))
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
        kept = values(file)
        yield None if kept["sampling.temperature"] == 0.25 and kept["else.where"] == [1, 2] else f"{kept}"
        begun = time.monotonic()
        done = run(home, "settings", "set", "keeping.days", str(number))
        slow = time.monotonic() - begun > LATE
        yield wrong(done) or ("it waited for a dead writer" if slow else None)
        yield None if values(file)["keeping.days"] == number else "the change after a kill is lost"
    left = [path.name for path in home.iterdir() if path.name.startswith(".settings")]
    yield None if len(left) <= 12 else f"left: {left}"  # at most one a kill


def odd_locks(folder: Path, _: random.Random) -> Found:
    """A lock that is held, a folder, a pipe or a link: one line says that nothing was changed, and nothing was."""
    makers: dict[str, Callable[[Path], object]] = {
        "folder": Path.mkdir, "pipe": os.mkfifo, "link": lambda path: path.symlink_to("/etc/passwd"),
        "dangling": lambda path: path.symlink_to("/nowhere/at/all"), "held": lambda path: None,
    }  # fmt: skip
    for name, make in makers.items():
        home = folder / name
        home.mkdir()
        (home / "settings.toml").write_text(OWN)
        make(home / "settings.toml.lock")
        words = ("settings", "set", "sampling.top_k", "7")
        if name == "held":
            with locked(home / "settings.toml.lock"):
                done = run(home, *words)
        else:
            done = run(home, *words)
        yield wrong(done, (1,)) or (None if done.stderr.count("\n") == 1 else f"{name}: {done.stderr!r}")
        yield None if (home / "settings.toml").read_text() == OWN else f"{name}: the file has changed"


def large_files(folder: Path, _: random.Random) -> Found:
    """Files of any size, depth and width: read in time or refused, listed with every setting, and never lost."""
    inside = {
        "few": "[sampling]\n" + "".join(f"k{n} = {n}\n" for n in range(3000)),
        "many": "[sampling]\n" + "".join(f"k{n} = {n}\n" for n in range(18_000)),
        "too many": "[sampling]\n" + "".join(f"k{n} = {n}\n" for n in range(60_000)),
        "tables": "".join(f"[t{n}]\nx = 1\n" for n in range(12_000)),
        "groups": "".join(f"g{n} = 1\n" for n in range(18_000)),
        "contexts": "[contexts]\n" + "".join(f"'m{n}.gguf' = 512\n" for n in range(10_000)),
        "wrong contexts": "[contexts]\n" + "".join(f"'m{n}.gguf' = 'x'\n" for n in range(10_000)),
        "keys": "[keys]\n" + "".join(f"a{n} = 'f{n}'\n" for n in range(12_000)),
        "lists": "a = " + "[" * 150 + "]" * 150 + "\n",
        "deep lists": "a = " + "[" * 100_000 + "]" * 100_000 + "\n",
        "tables in tables": "a = " + "{a=" * 150 + "1" + "}" * 150 + "\n",
        "dots": "a" + ".a" * 150 + " = 1\n",
        "many dots": "a" + ".a" * 60_000 + " = 1\n",
        "header": "[a" + ".a" * 60_000 + "]\n",
        "text": f"[reply]\nsystem = '''\n{'x ' * 100_000}|\n'''\n",
        "brackets": f"[reply]\nsystem = '''\n[{' ' * 200_000}|\n'''\n",
        "number": "[sampling]\ntop_k = " + "9" * 200_000 + "\n",
        "comment": "#" * 200_000 + "\n",
        "nothing": "\n" * 200_000,
        "blob": "\x01" * 1000,
    }
    for name, text in inside.items():
        home = folder / name
        home.mkdir()
        (home / "settings.toml").write_text(text)
        for words in (("settings", "list"), ("settings", "set", "sampling.top_p", "0.5")):
            begun = time.monotonic()
            done = run(home, *words)
            seconds = time.monotonic() - begun
            fault = wrong(done, (0, 1, 2)) or (f"{name}: {seconds:.0f} s" if seconds > LATE else None)
            yield fault or (f"{name}: {done.stderr.count(chr(10))} lines" if done.stderr.count("\n") > 22 else None)
        now = (home / "settings.toml").read_text()
        changed = done.returncode == 0
        fine = now == text if not changed else values(home / "settings.toml")["sampling.top_p"] == 0.5
        yield None if fine else f"{name}: exit code {done.returncode}, but the file is another"


CASES: Final[dict[str, Case]] = {
    "settings_at_once": at_once, "drafters_at_once": drafters_at_once, "settings_opened_before": opened_before,
    "settings_killed": killed, "settings_odd_locks": odd_locks, "large_settings": large_files,
}  # fmt: skip
