"""What a strange terminal does to the program: storms of bytes, pastes, clicks on what has gone, odd environments."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.app.bundled_program import PROGRAM
from tests.app.terminal import ROOT, Terminal
from tests.soak.strangers import Case, Found, run, wrong

PLACES: Final = ("chat", "models", "inline")
SIZES: Final = ((20, 8), (60, 20), (80, 24), (100, 30), (140, 40))
SMALLEST: Final = (40, 12)  # the smallest terminal in which the chat starts
STORM: Final = 3000  # bytes
TOGETHER: Final = 5  # storms on one program
CALM: Final = 1.3  # seconds; after them an unended paste is over
LEAVES: Final = 8.0  # seconds until a program has read a paste and has left; most of them are the engine's end
PASTED: Final = (
    b"\x1b[31m", b"\x1b]0;x", b"\x1b]0;x\x07", b"\x1b[200~", b"\x1b", b"\x1b[", b"\xff\xfe", b"\x00", b"one line\r",
    b"\r\n", b"x", "\u6f22\U0001f4a1".encode(), b"\x1b[<0;1;1M", b"\x1bP+q", "\u202e".encode(), b"e\xcc\x81",
)  # fmt: skip
CHANGES: Final = (
    ("/", "\x1b"), ("/", "x"), ("\x0e",), ("\x1bOS", "\x1bOS"), ("\x0f", "\x1b"), ("\x0c", "\x1b"),
    ("\x1b[20~", "\x1b"), ("\x1bp", "\x1b"), ("@", "\x1b"), ("\x1bOP", "\x1b"), ("\x04", "\x1b"),
    ("Say hi.\r", "\x0e"), ("\x0f", "\r"),
)  # fmt: skip
COMMANDS: Final = (
    ("chats", "list"), ("paths",), ("settings", "list"), ("chats", "search", "\u00e9"), ("models", "list"),
)  # fmt: skip
REPLY: Final = ("run", "-p", "Say hi.", "--seed", "7", "--max-tokens", "4")
ODD: Final = {
    "PYTHONIOENCODING": ("ascii", "latin-1", "utf-16", "utf-8:strict", "idna", "utf-7", "cp037", ":replace", "utf-32"),
    "LC_ALL": ("C", "POSIX", "tr_TR.UTF-8", "de_DE.ISO-8859-1", "no_SUCH", ""), "PYTHONUTF8": ("0", "1"),
    "PYTHONCOERCECLOCALE": ("0", "warn"), "TERM": ("xterm", "vt100", "dumb", "", "no-such-term", "linux", "ansi"),
    "NO_COLOR": ("1",), "COLUMNS": ("x", "0", "3"), "TZ": ("nowhere", ":/etc/passwd"), "TMPDIR": ("/nonexistent", ""),
    "PYTHONWARNINGS": ("error",),
}  # fmt: skip
LIMITS: Final = {
    "-n": (5, 6, 8, 10, 12, 16, 19, 20, 24, 31, 32, 40, 64), "-S -n": (5, 12, 20, 31),
    "-v": (60_000, 100_000, 200_000, 300_000, 500_000, 530_000, 800_000, 1_600_000), "-c": (0,), "-l": (0,),
}  # fmt: skip
LEAVING: Final = (0x03, 0x11, 0x1A, 0x1C)  # keys that end or stop the program, or that a shell would take
LEFT: Final = (0, 148)  # exit codes of a program that keys have left or suspended


def storm(chance: random.Random, size: tuple[int, int], length: int = STORM) -> bytes:
    """Bytes of keys, mouse reports, broken sequences, unended strings and no UTF-8, without keys that leave."""
    kinds: list[Callable[[], bytes]] = [
        lambda: chance.randbytes(chance.randint(1, 8)),
        lambda: bytes(chance.choices(range(0x20, 0x7F), k=chance.randint(1, 12))),
        lambda: b"\x1b[" + bytes(chance.choices(b"0123456789;:?<>=", k=chance.randint(0, 9))) + chance.randbytes(1),
        lambda: b"\x1b[<%d;%d;%d%c" % (
            chance.choice([0, 1, 2, 3, 32, 35, 64, 65, 66, 67, 128, 4095]), chance.randint(-3, 2 * size[0]),
            chance.randint(-3, 2 * size[1]), chance.choice(b"Mm"),
        ),
        lambda: b"\x1b[<0;%d;%dM\x1b[<0;%d;%dm" % (2 * (chance.randint(1, size[0]), chance.randint(1, size[1]))),
        lambda: b"\x1b[M" + chance.randbytes(3),
        lambda: b"\x1b[%d;%d;%du" % (chance.randint(0, 2_000_000), chance.randint(0, 300), chance.randint(0, 70_000)),
        lambda: chance.choice([b"\x1b[200~", b"\x1b[201~", b"\x1b[I", b"\x1b[O", b"\x1b[?2048;2$y", b"\x1b[?2026;2$y"]),
        lambda: b"\x1b[48;%d;%d;%d;%dt" % tuple(chance.choice([0, 1, 24, 80, 9_999_999]) for _ in range(4)),
        lambda: b"\x1b" + chance.choice(b"]P_^X").to_bytes(1) + chance.randbytes(chance.randint(0, 20)),
        lambda: chance.choice([b"\x1b[A", b"\x1b[B", b"\x1b[5~", b"\x1b[6~", b"\x1bOP", b"\x1bOQ", b"\x1bOR", b"\x1bOS",
                               b"\x1b[15~", b"\x1b[17~", b"\x1b[18~", b"\x1b[19~", b"\x1b[20~", b"\x1b[24~", b"/", b"@",
                               b"\r", b"\t", b"\x1bp", b"\x0b", b"\x0c", b"\x0f", b"\x0e"]),
    ]  # fmt: skip
    found = bytearray()
    while len(found) < length:
        found += chance.choice(kinds)()
    return bytes(byte for byte in found if byte not in LEAVING)


def opened(place: str, home: Path, size: tuple[int, int]) -> Terminal:
    """The program at a place; it starts in a terminal that is large enough."""
    large = (max(size[0], SMALLEST[0]), max(size[1], SMALLEST[1]))
    terminal = Terminal(*PROGRAM, *(["--inline"] if place == "inline" else []), home=home, size=large)
    terminal.shows(*(("Enter sends",) if place == "inline" else ("╭", "╰")))
    if place == "models":
        terminal.type("\x0c")
        terminal.shows("Esc Back")
    if large != size:
        terminal.resize(*size)
        calm(terminal)
    return terminal


def calm(terminal: Terminal, seconds: float = CALM) -> None:
    """Reads what the program draws until some seconds have passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and terminal.code is None:
        terminal.read(0.05)


def blow(terminal: Terminal, data: bytes, chance: random.Random) -> None:
    """Sends bytes, split anywhere."""
    while data and terminal.code is None:
        part = chance.choice([1, 7, 64, 500])
        terminal.send(data[:part])
        data = data[part:]
        terminal.read(chance.choice([0.0, 0.0, 0.002]))


def left(terminal: Terminal, where: str) -> str | None:
    """Leaves by Ctrl-Q, and says what is wrong with how the program ended."""
    for _ in range(40):
        if terminal.code is not None:
            break
        terminal.type("\x1b")
        calm(terminal, 0.3)
        if terminal.code is None:
            terminal.type("\x11")
            calm(terminal, 0.5)
    code, sent = terminal.ended(), terminal.sent.decode("utf-8", "replace")
    if code in LEFT and "Traceback" not in sent:
        return None
    return f"{where}: ended with {code}: {sent[-400:]}"


def storms(folder: Path, chance: random.Random, count: int = 71) -> Found:
    """Random bytes at every place and size; the program goes on, and leaves by Ctrl-Q."""
    number = blown = 0
    while blown < count:
        place, size, seed = PLACES[number % 3], SIZES[number // 3 % 5], chance.randrange(1 << 30)
        again, many = random.Random(seed), 0
        number += 1
        with opened(place, folder / str(number), size) as terminal:
            while many < min(TOGETHER, count - blown) and terminal.code is None:
                blow(terminal, storm(again, size), again)
                calm(terminal)
                many += 1
            fault = left(terminal, f"{place} {size[0]}x{size[1]}, seed {seed}")
        blown += many
        yield from [None] * (many - 1)
        yield fault


def pastes(folder: Path, chance: random.Random, count: int = 27) -> Found:
    """Large pastes of escape sequences and of odd text, with and without marks around them; Ctrl-Q leaves soon."""
    for number in range(count):
        place, size = ("chat", "inline")[number % 2], chance.choice(SIZES)
        piece = PASTED[number % len(PASTED)]
        data = piece * (chance.randint(20_000, 90_000) // len(piece))
        if marked := chance.random() < 0.7:
            data = b"\x1b[200~" + data + b"\x1b[201~"
        with opened(place, folder / str(number), size) as terminal:
            calm(terminal, 5.0)  # the model is loaded
            began = time.monotonic()
            terminal.send(data)
            terminal.type("\x11")
            code = terminal.ended()
        where = f"{place} {size}, {len(data)} bytes of {piece!r}{', marked' if marked else ''}"
        seconds = time.monotonic() - began
        yield f"{where}: ended with {code} after {seconds:.1f} s" if code or seconds > LEAVES else None


def clicks(folder: Path, chance: random.Random, count: int = 44) -> Found:
    """Clicks where something has just closed, opened or gone, at once and after up to 50 ms."""
    number = tried = 0
    while tried < count:
        size = chance.choice(SIZES[1:])
        number += 1
        with opened("chat", folder / str(number), size) as terminal:
            terminal.type("Say hi.\r")
            calm(terminal, 4.0)
            many = 0
            while many < min(11, count - tried) and terminal.code is None:
                for keys in chance.choice(CHANGES):
                    terminal.type(keys)
                    calm(terminal, chance.choice([0.0, 0.01, 0.05]))
                for _ in range(3):
                    x, y = chance.randint(1, size[0]), chance.randint(1, size[1])
                    terminal.send(b"\x1b[<0;%d;%dM\x1b[<0;%d;%dm" % (x, y, x, y))
                calm(terminal, 0.4)
                many += 1
            fault = left(terminal, f"{size}")
        tried += many
        yield from [None] * (many - 1)
        yield fault


def environments(folder: Path, chance: random.Random, count: int = 190) -> Found:
    """Odd encodings, locales and kinds of terminal: a command says what it should, and the chat opens and ends."""
    for number in range(count):
        more = {name: chance.choice(values) for name, values in ODD.items() if chance.random() < 0.5}
        if number % 10:
            done = run(folder / "home", *chance.choice(COMMANDS), **more)
            yield (fault := wrong(done)) and f"{more}: {fault}"
            continue
        with Terminal(*PROGRAM, home=folder / str(number), size=(100, 30), more=more.items()) as terminal:
            drawn = more.get("TERM") != "dumb"
            terminal.until(lambda seen=terminal: seen.code is not None or "essage" in seen.shown)  # type: ignore[misc]
            fault = left(terminal, f"{more}")
        yield fault if drawn else None


def limits(folder: Path, chance: random.Random, count: int = 120) -> Found:
    """Low limits of the shell: the program works, or says in one line what limits it and the cure."""
    for number in range(count):
        kind, values = chance.choice(list(LIMITS.items()))
        limit, command = f"ulimit {kind} {chance.choice(values)}", chance.choice([*COMMANDS, REPLY])
        line = f'{limit}; exec "$0" -m slipstream.app.cli.main "$@"'
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(folder / str(number))}
        done = subprocess.run(
            ["bash", "-c", line, sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
        cured = done.returncode == 1 and done.stderr.count("\n") == 1 and "ulimit" in done.stderr
        fault = None if cured else wrong(done)
        yield fault and f"{limit}, {command[0]}: {fault}"


CASES: Final[dict[str, Case]] = {case.__name__: case for case in (storms, pastes, clicks, environments, limits)}
