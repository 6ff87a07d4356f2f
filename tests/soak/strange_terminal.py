"""What a strange terminal does to the program: storms of bytes, pastes, clicks on what has gone, odd environments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal
from tests.soak.strangers import Case, Found

PLACES: Final = ("chat", "models", "inline")
SIZES: Final = ((20, 8), (60, 20), (80, 24), (100, 30), (140, 40))
SMALLEST: Final = (40, 12)  # the smallest terminal in which the chat starts
STORM: Final = 3000  # bytes
TOGETHER: Final = 5  # storms on one program
CALM: Final = 1.3  # seconds; after them an unended paste is over
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
    for number in range(-(-count // TOGETHER)):
        place, size, seed = PLACES[number % 3], SIZES[number // 3 % 5], chance.randrange(1 << 30)
        again = random.Random(seed)
        with opened(place, folder / str(number), size) as terminal:
            found: list[str | None] = []
            while len(found) < min(TOGETHER, count - TOGETHER * number) and terminal.code is None:
                blow(terminal, storm(again, size), again)
                calm(terminal)
                found.append(None)
            found[-1] = left(terminal, f"{place} {size[0]}x{size[1]}, seed {seed}")
        yield from found


CASES: Final[dict[str, Case]] = {case.__name__: case for case in (storms,)}
