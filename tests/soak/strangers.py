"""What a stranger does to the program: kills, other terminals, odd files, several programs at once, random keys.

A command: ``python -m tests.soak.strangers [ROUNDS] [CASE…] [--minutes N]``. Each case runs the real program on the
bundled model, as a user would, with a home of its own. Its cases are those of this file and of each ``strange_*.py``
beside it, which has a table ``CASES``. Every case gets an equal share of the time that is left; it is cut where that
ends, also within a try, so that the minutes hold on a busy machine. Prints a line a case, then one: what, how many,
how many failed, the 95 % bound.
"""

import argparse
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.app.bundled_program import PROGRAM, replies_of_run
from tests.app.cli.test_hostile_terminal import COMMANDS, keep
from tests.app.hostile import leaks, on_a_terminal
from tests.app.kills import kill_real
from tests.app.terminal import ROOT, Terminal
from tests.drafters.changed_file import in_other_tokens, in_sentencepiece
from tests.faults.shim import build, compiler
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer
from tests.models.mutants import good_files, mutant

from slipstream.app.chats.store import ChatStore

BUNDLED: Final = ROOT / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
MAIN: Final = "from slipstream.app.cli.main import main\nmain()"
QUESTION: Final = "Tell me a long story about a fox, an owl and a river."
CLOCKS: Final = (-56, -10, -1, 1, 8)  # years that the clock is wrong by
NAMES: Final = (
    "../escape.gguf", "../../escape.gguf", "/escape.gguf", "a/../../escape.gguf", "..\\escape.gguf", "C:\\escape.gguf",
    "..gguf", "\x1b[2J.gguf", "a\nb.gguf", "a\rb.gguf", "\u202egguf.exe", "~/escape.gguf", "$HOME.gguf", "a b.gguf",
    "x" * 300 + ".gguf", ".gguf", "-rf.gguf",
)  # fmt: skip
KEYS: Final = 220
PATIENCE: Final = 300.0  # seconds that a command may take
CLEANING: Final = 1.0  # seconds to end what a cut case has left
Found = Iterator[str | None]  # one item a try: what is wrong, or None
Case = Callable[[Path, random.Random], Found]


def run(home: Path, *words: str, code: str = MAIN, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(home), **more}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, env=variables, cwd=ROOT,
        timeout=PATIENCE,
    )  # fmt: skip


def started(home: Path, *words: str, code: str = MAIN, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts a command, to whom one may write and whose words can be read."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(home)}
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, stdin=stdin, stdout=-1, stderr=-1, text=True, env=variables, cwd=ROOT)


def reply(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run(home, "run", "-p", "Say hi.", "--seed", "7", "--max-tokens", "12", *words, **more)


def wrong(done: subprocess.CompletedProcess[str], codes: tuple[int, ...] = (0,)) -> str | None:
    if "Traceback" in done.stderr or "an unexpected error" in done.stderr:
        return f"a traceback: {done.stderr[-300:]}"
    return None if done.returncode in codes else f"exit code {done.returncode}: {done.stderr[-300:]}"


def kills(folder: Path, chance: random.Random) -> Found:
    """The interface killed while a reply streams."""
    (text,) = replies_of_run(folder / "other", QUESTION)
    for number in range(3):
        found = kill_real(folder / str(number), chance, text)
        yield "; ".join(found.faults) or None


def hang_ups(folder: Path, chance: random.Random) -> Found:
    """The window closed at any moment: the message is kept."""
    for number in range(3):
        home = folder / str(number)
        with Terminal(*PROGRAM, home=home, size=(100, 30)) as terminal:
            terminal.shows("╭", "╰")
            terminal.type(f"{QUESTION}\r")
            terminal.replies()
            time.sleep(chance.random())
            terminal.hang_up()
        time.sleep(1)
        with closing(ChatStore(home / "chats.db")) as store:
            said = [store.messages(chat.id)[0].content for chat in store.list_chats()]
        yield None if said == [QUESTION] else f"kept {said}"


def together(folder: Path, _: random.Random) -> Found:
    """Six replies into one chat at once, and two interfaces on it."""
    home = folder / "home"
    yield wrong(reply(home, "--chat", "one"))
    words = ("run", "-p", "And again.", "--max-tokens", "8", "--chat", "one")
    many = [started(home, *words, stdin=subprocess.DEVNULL) for _ in range(6)]
    codes = [one.wait(300) for one in many]
    yield None if codes == [0] * 6 else f"exit codes {codes}"
    with (
        Terminal(*PROGRAM, "--chat", "one", home=home) as first,
        Terminal(*PROGRAM, "--chat", "one", home=home) as second,
    ):
        for terminal in (first, second):
            terminal.shows("╭", "╰")
        for terminal in (first, second):
            terminal.type("\x11")
            if terminal.ended():
                yield terminal.shown
    with closing(ChatStore(home / "chats.db")) as store:
        [chat] = store.list_chats()
        count = len(store.messages(chat.id))
    yield None if count == 14 else f"{count} messages in the chat, not 14"


def older_copy(folder: Path, _: random.Random) -> Found:
    """The chats replaced by an older copy while the chat is open."""
    home = folder / "home"
    yield wrong(reply(home, "--chat", "one"))
    shutil.copy(home / "chats.db", folder / "older.db")
    with Terminal(*PROGRAM, "--chat", "one", home=home, size=(100, 30)) as terminal:
        terminal.shows("╭", "╰")
        shutil.copy(folder / "older.db", folder / "new.db")
        os.replace(folder / "new.db", home / "chats.db")
        terminal.type(f"{QUESTION}\r")
        terminal.replies()  # it is sent, not only typed
        terminal.type("\x11")
        yield None if terminal.ended() == 0 else terminal.shown
    kept = "".join(path.read_bytes().decode("utf-8", "replace") for path in home.rglob("*.db*") if path.is_file())
    yield None if QUESTION in kept else "the message sent after the change is in no file"


def full_disk(folder: Path, _: random.Random) -> Found:
    """The disk full while a reply is written: the reply comes, and the words say what is not kept."""
    if not compiler():
        return
    shim = str(build(folder))
    for number in (1, 5, 20, 60):
        home = folder / str(number)
        home.mkdir()
        arm = f"Shim().arm(Path({str(home)!r}), 'write', {number}, {errno.ENOSPC}, True)"
        armed = f"from pathlib import Path\nfrom tests.faults.shim import Shim\n{arm}\n"
        done = reply(home, code=armed + MAIN, LD_PRELOAD=shim)
        yield wrong(done) or (None if done.stdout.strip() else "no reply")


def clocks(folder: Path, _: random.Random) -> Found:
    """A clock that is years wrong, and right again."""
    home = folder / "home"
    for years in (*CLOCKS, 0):
        shifted = f"import time\nreal = time.time\ntime.time = lambda: real() + {years * 31_556_952}\n"
        yield wrong(reply(home, "--chat", "one", code=shifted + MAIN))
    with closing(ChatStore(home / "chats.db")) as store:
        [chat] = store.list_chats()
        count = len(store.messages(chat.id))
    yield None if count == 2 * len(CLOCKS) + 2 else f"{count} messages"


def keys(folder: Path, chance: random.Random) -> Found:
    """Random keys, Ctrl-K and the palette's among them: no error ends the chat, and Ctrl-Q does.

    Without Ctrl-C and Ctrl-Z, which after a quit or a suspend from the palette are the shell's.
    """
    letters = [chr(code) for code in (1, 2, *range(4, 0x11), *range(0x12, 0x1A), 0x1F)]
    sequences = [
        "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F", "\x1b[5~", "\x1b[6~", "\x1b[3~", "\x1b\r", "\x7f",
        "\x1b[1;5A", "\x1b[1;5B",
        "\x1bb", "\x1bf", "\x1bd", "\x1b[24~", "\x1bOQ", "\x1bOR", "a", " word", "/", "@", "\r",
    ]  # fmt: skip
    for number in range(2):
        with Terminal(*PROGRAM, home=folder / str(number), size=(100, 30)) as terminal:
            terminal.shows("╭", "╰")
            for _ in range(KEYS):
                terminal.type(chance.choice(letters + sequences))
                terminal.read(0.02)
                if terminal.code is not None:
                    break
            for _ in range(20):
                if terminal.code is None:
                    terminal.type("\x1b")
                    terminal.read(0.3)
                    terminal.type("\x11")
                    terminal.read(0.3)
            code, last = terminal.ended(), " ".join(terminal.shown.split())[-300:]
            fine = code in (0, 128 + signal.SIGSTOP)  # quit or suspended, by a command of the palette too
            yield None if fine else f"ended with {code} after random keys: {last}"


def model_files(folder: Path, chance: random.Random) -> Found:
    """Wrong model files and paths: one line, no crash of the program."""
    good = good_files(folder)
    odd = [
        "", "/", "/dev/null", "/proc/self/mem", str(folder), "no such.gguf", "\x1b[2J.gguf", "~nobody/x.gguf",
        os.fsdecode(b"m\xff.gguf"),
    ]  # fmt: skip
    for path in odd:
        yield wrong(reply(folder / "home", "-m", path), (1, 2))
    for number in range(12):
        (folder / "m.gguf").write_bytes(mutant(chance.choice(good), number))
        done = reply(folder / "home", "-m", str(folder / "m.gguf"))
        yield wrong(done, (0, 1))
        (folder / "m.gguf").write_bytes(BUNDLED.read_bytes()[: number * 1_000_000 + number])
        yield wrong(reply(folder / "home", "-m", str(folder / "m.gguf")), (1,))


def foreign_drafts(folder: Path, _: random.Random) -> Found:
    """Draft models of other vocabularies: the text of plain decoding."""
    plain = reply(folder / "home", "--drafter", "none").stdout
    copies = [
        in_other_tokens(BUNDLED, folder / "a.gguf"),
        in_other_tokens(BUNDLED, folder / "b.gguf", 500),
        in_sentencepiece(BUNDLED, folder / "c.gguf"),
    ]
    for copy in copies:
        for more in ((), ("--drafter", "draft")):
            done = reply(folder / "home", "--draft-model", str(copy), *more)
            yield wrong(done) or (None if done.stdout == plain else f"{copy.name}: {done.stdout!r}, not {plain!r}")


def hub_names(folder: Path, _: random.Random) -> Found:
    """Files of the hub with hostile names: nothing is written outside the models' folder, and no token leaves."""
    with HubServer() as hub:
        more = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
        for number, name in enumerate(("plain.gguf", *NAMES)):
            home = folder / str(number) / "home"
            hub.add("acme/Tiny-GGUF", {name: tiny_gguf()})
            done = run(home, "models", "pull", "acme/Tiny-GGUF", **more)
            files = [path for path in folder.rglob("*") if path.is_file()]
            outside = [str(path) for path in files if not any(one.name == "home" for one in path.parents)]
            fetched = any(path.suffix == ".gguf" for path in (home / "models").rglob("*"))
            leaked = any("hf_secret" in str(seen.headers) for seen in hub.seen if seen.host == "store")
            raw = "\x1b" in name and "\x1b[2J" in done.stdout + done.stderr
            yield (
                wrong(done, (0, 1) if number else (0,))
                or (f"outside: {outside}" if outside else None)
                or (f"{name!r} is printed raw" if raw else None)
                or ("the token left the hub" if leaked else None)
                or (None if fetched or number else "a plain name is not fetched")
            )


def hostile_text(folder: Path, _: random.Random) -> Found:
    """Escape sequences in every text from elsewhere, through the commands: none reaches the terminal."""
    sent = {}
    for kind in ("harmless", "hostile"):
        home = folder / kind
        home.mkdir()
        keep(home, kind == "harmless")
        sent[kind] = on_a_terminal(COMMANDS, kind, home=home)
    yield "; ".join(leaks(sent["hostile"], sent["harmless"])) or None


CASES: Final[dict[str, Case]] = {
    case.__name__: case
    for case in (
        kills, hang_ups, together, older_copy, full_disk, clocks, keys, model_files,
        foreign_drafts, hub_names, hostile_text,
    )
}  # fmt: skip


def all_cases() -> dict[str, Case]:
    """The cases of this file and of the files beside it, which import from this one."""
    found = dict(CASES)
    for path in sorted(Path(__file__).parent.glob("strange_*.py")):
        found |= import_module(f"tests.soak.{path.stem}").CASES
    return found


def main() -> int:
    cases = all_cases()
    parser = argparse.ArgumentParser(prog="python -m tests.soak.strangers")
    parser.add_argument("rounds", nargs="?", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--minutes", type=float, default=20.0, metavar="N", help="most for all rounds (20)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(cases):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    runs = [(number, name) for number in range(options.rounds) for name in options.names or cases]
    end, tried, failed = time.monotonic() + 60 * options.minutes, 0, 0
    signal.signal(signal.SIGALRM, _cut)
    for at, (number, name) in enumerate(runs):
        begun, count, bad, cut = time.monotonic(), 0, 0, ""
        folder = tempfile.mkdtemp()
        signal.setitimer(signal.ITIMER_REAL, max(0.1, (end - begun) / (len(runs) - at) - CLEANING))
        try:
            with closing(_tries(cases[name], folder, number)) as tries:
                for fault in tries:
                    count += 1
                    if fault:
                        bad += 1
                        print(f"{name}: {ascii(fault)[:600]}", flush=True)
        except _ShareOver:
            cut = ", cut"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _end_children()
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: {count} tried, {bad} failed, {time.monotonic() - begun:.0f} s{cut}", flush=True)
        tried, failed = tried + count, failed + bad
    bound = f", 95 % bound {3 / tried:.1%}" if tried and not failed else ""
    print(f"strangers: {tried} tries of {len(options.names) or len(cases)} kinds, {failed} failed{bound}")
    return int(failed > 0)


class _ShareOver(BaseException):
    """The time of a case is over; no case catches it."""


def _cut(*_: object) -> None:
    raise _ShareOver


def _end_children() -> None:
    """Ends the processes that a cut case has left."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            with suppress(OSError):
                os.kill(int(child), signal.SIGKILL)
                os.waitpid(int(child), 0)


def _tries(case: Case, folder: str, number: int) -> Generator[str | None]:
    """The tries of a case; an assertion of the tools, such as a screen that never comes, is a fault."""
    try:
        yield from case(Path(folder), random.Random(number))
    except (AssertionError, subprocess.TimeoutExpired) as error:
        yield f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
