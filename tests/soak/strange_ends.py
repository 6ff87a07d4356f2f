"""Commands that end anyhow at any moment, homes that are no folders, and endless messages on the screen."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from tests.app.bundled_program import PROGRAM
from tests.app.terminal import ROOT, Terminal
from tests.models.other_servers import free_port
from tests.soak.strange_engine import processes_left
from tests.soak.strangers import MAIN, Case, Found, run, wrong

from slipstream.app.chats.store import ChatStore

FOLDERS: Final = ("models", "states", "heads", "derived", "index", "training", "benches", "logs", "images")
SIGNALS: Final = ("KILL", "TERM", "HUP", "INT", "QUIT", "SEGV", "ABRT", "BUS", "XCPU")
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "run": ("run", "-p", "Say hi.", "--chat", "one", "--max-tokens", "200"),
    "bench": ("bench", "--limit", "1", "--tokens", "8", "--drafters", "lookup"),
    "doctor": ("doctor",),
    "index": ("drafters", "index", str(ROOT / "README.md")),
    "check": ("models", "check", "bundled"),
    "pairs": ("models", "pairs"),
    "lend": ("lend", "--port", "{port}"),
    "export": ("chats", "export"),
}
LONGEST: Final = 5.0  # seconds after which a command is ended at the latest
GONE: Final = 5.0  # seconds within which its processes are gone
LATE: Final = 30.0  # seconds until a chat of large messages is drawn
TEXTS: Final[dict[str, Callable[[int], str]]] = {
    "words": lambda n: "the sea is wide " * (n // 16),
    "one word": lambda n: "x" * n,
    "NULs": lambda n: "\0" * n,
    "escapes": lambda n: "\x1b[31m" * (n // 5),
    "tabs": lambda n: "\t" * n,
    "returns": lambda n: "\r" * n,
    "lines": lambda n: "a\n" * (n // 2),
    "empty lines": lambda n: "\n" * n,
    "quotes": lambda n: ">" * n + " x",
    "lists": lambda n: "".join(" " * (k % 200) + "- x\n" for k in range(n // 100)),
    "stars": lambda n: "*a" * (n // 2),
    "underlines": lambda n: "_" * n,
    "backticks": lambda n: "".join("`" * k + " " for k in range(1, int(n**0.5))),
    "fences": lambda n: "```\nx\n" * (n // 6),
    "an open fence": lambda n: "```python\n" + "x = 1\n" * (n // 6),
    "brackets": lambda n: "[" * n,
    "links": lambda n: "[a](b) " * (n // 7),
    "images": lambda n: "![](" * (n // 4),
    "tables": lambda n: "|a|b|\n|-|-|\n" + "|1|2|\n" * (n // 6),
    "columns": lambda n: "|a" * (n // 8) + "|\n" + "|-" * (n // 8) + "|\n",
    "formulas": lambda n: r"$\frac{a}{b}$ " * (n // 14),
    "dollars": lambda n: "$a" * (n // 2),
    "braces": lambda n: r"\[" + "{" * n + r"\]",
    "marks": lambda n: "e" + "\u0301" * n,
    "joined": lambda n: "\U0001f469\u200d" * (n // 2),
    "right to left": lambda n: "\u202e\u05d0" * (n // 2),
    "thoughts": lambda n: "<think>" * (n // 7),
    "HTML": lambda n: "<b>&amp;" * (n // 8),
    "headings": lambda n: "# x\n" * (n // 4),
    "rules": lambda n: "---\n" * (n // 4),
}


def ends(folder: Path, chance: random.Random, count: int = 24) -> Found:
    """Commands ended by any signal at any moment: no process of theirs is left, and the same command works again."""
    names = list(COMMANDS)
    for number in range(count):
        name, home = names[number % len(names)], folder / str(number)
        words = [word.format(port=free_port()) for word in COMMANDS[name]]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(home)}
        with subprocess.Popen(
            [sys.executable, "-c", MAIN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, env=variables, cwd=ROOT,
        ) as process:  # fmt: skip
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.1, LONGEST))
            sent = chance.choice(SIGNALS)
            process.send_signal(signal.Signals[f"SIG{sent}"])
            try:
                process.wait(GONE)
            except subprocess.TimeoutExpired:
                process.kill()
                yield f"{name}: SIG{sent} does not end it"
            until = time.monotonic() + GONE
            while (left := processes_left("", home)) and time.monotonic() < until:
                time.sleep(0.1)
            yield f"{name}: SIG{sent} leaves {len(left)} processes" if left else None
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        if name not in ("lend", "bench"):
            done = run(home, *words)
            yield (fault := wrong(done)) and f"{name} after SIG{sent}: {fault}"


def _homes(folder: Path) -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Homes: what ``SLIPSTREAM_HOME`` is, and how it is made."""

    def holding(name: str, kind: str) -> Callable[[Path], None]:
        def make(home: Path) -> None:
            home.mkdir()
            place = home / name
            if kind == "file":
                place.touch()
            elif kind == "pipe":
                os.mkfifo(place)
            else:
                place.symlink_to(place if kind == "loop" else "/nowhere/at/all")

        return make

    def none(_: Path) -> None:
        pass

    plain: dict[str, tuple[str, Callable[[Path], object]]] = {
        "a file": ("f", Path.touch),
        "a loop": ("l", lambda home: home.symlink_to(home)),
        "a pipe": ("p", os.mkfifo),
        "a dead link": ("d", lambda home: home.symlink_to("/nowhere/at/all")),
    }
    odd: tuple[str, ...] = (
        "/etc/hostname/x",
        os.fsdecode(b"m\xff"),
        "a\nb",
        "a\x1b[31m",
        "  a  b ",
        "x" * 300,
        "a'\"`b",
        "/proc/self",
    )
    odd += (
        "/".join(["d" * 60] * 30),
        "x/../y/.",
        "/sys/none",
        "%s{}$HOME",
        "\u202egpj",
        ".a/.b",
        "-rf",
        "\u00fc\u6f22",
    )
    plain |= {ascii(name)[:40]: (name, none) for name in odd}
    inner = {f"{name} is a file": (f"{name}-file", holding(name, "file")) for name in FOLDERS}
    inner |= {f"models is a {kind}": (f"m-{kind}", holding("models", kind)) for kind in ("loop", "pipe", "link")}
    inner |= {f"logs is a {kind}": (f"logs-{kind}", holding("logs", kind)) for kind in ("loop", "pipe", "link")}
    return {name: (str(folder / value), make) for name, (value, make) in (plain | inner).items()}


def folders(folder: Path, chance: random.Random) -> Found:
    """Homes and folders in them that are files, loops, pipes, or oddly named: used, or refused in one line."""
    homes = list(_homes(folder).items())
    chance.shuffle(homes)
    for name, (home, make) in homes:
        with suppress(OSError):  # names that the system refuses
            make(Path(home))
        for words in (("run", "-p", "Hi.", "--max-tokens", "4"), ("chats", "list"), ("models", "list")):
            done = run(Path(home), *words)
            lines = done.stderr.count("\n")
            fault = wrong(done, (0, 1, 2)) or (f"{lines} lines: {done.stderr[-300:]}" if lines > 3 else None)
            raw = "\x1b[31m" in done.stderr + done.stdout or "\u202e" in done.stderr + done.stdout
            yield f"{name}, {words[0]}: {fault or 'printed raw'}" if fault or raw else None


def shown(folder: Path, chance: random.Random, size: int = 300_000) -> Found:
    """Chats with a message of endless marks: it is drawn in time, and Ctrl-Q leaves."""
    texts = list(TEXTS.items())
    chance.shuffle(texts)
    for number, (name, make) in enumerate(texts):
        home = folder / str(number)
        with closing(ChatStore(home / "chats.db")) as store:
            chat = store.open_or_create("one").id
            store.add_user(chat, "A question.")
            answer = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
            store.finish_reply(answer.id, text=f"{make(size)}\n\nThe last words.", reason="stop")
        begun = time.monotonic()
        with Terminal(*PROGRAM, "--chat", "one", home=home, size=(100, 30)) as terminal:
            terminal.until(lambda seen=terminal: "last words" in seen.shown or seen.code is not None)  # type: ignore[misc]
            drawn = time.monotonic() - begun
            terminal.type("\x11")
            code = terminal.ended()
        took = time.monotonic() - begun
        slow = took > LATE
        yield f"{name}: drawn after {drawn:.0f} s, ended with {code} after {took:.0f} s" if code or slow else None


CASES: Final[dict[str, Case]] = {case.__name__: case for case in (ends, folders, shown)}
