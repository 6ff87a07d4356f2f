"""Text that attacks a terminal or its reader, and what a terminal was sent."""

import os
import pty
import re
import select
import struct
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

from tests.app.terminal import PATIENCE, process_on

PAYLOADS = (
    "\x1b]0;t\x07", "\x1b]2;t\x1b\\", "\x1b]4;1;rgb:00/00/00\x07", "\x1b]8;;http://e.vil\x1b\\x\x1b]8;;\x1b\\",
    "\x1b]9;note\x07", "\x1b]50;font\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b]1337;File=:AA==\x07", "\x1b]52;c;unended",
    "\x1b[2J", "\x1b[1;1H", "\x1b[10A", "\x1b[6n", "\x1b[c", "\x1b[?1049l", "\x1b[?1003h", "\x1b[5;8;31m", "\x1b[3K",
    "\x1bP$qm\x1b\\", "\x1bP+q544e\x1b\\", "\x1b_apc\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\", "\x1bc", "\x1bNa\x1bOb",
    "\x1b(0qqq", "\x1b", "\x9b31m\x9b2J", "\x9d52;c;eA==\x9c", "\x90$qm\x9c", "\x98x\x9c\x9e\x9f\x85",
    "over\rwritten", "a\b\bb", "\x07\x0e\x0f\x0b\x0c\x7f", "\u202eexe.txt\u202c", "\u2066\u2067\u2068a\u2069",
    "\u200e\u200f\u061c", "\u2028\u2029\ufeff\ufff9\ufffb", "".join(chr(0xE0000 + ord(c)) for c in "hidden"),
    "e" + "\u0301" * 400,
)  # fmt: skip
"""Forty: they move the cursor, change modes, colours, titles, clipboards, ask back, hide text or reorder it."""

_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|[\]P_^X].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])", re.DOTALL)
_FORBIDDEN = re.compile(
    "\r(?!\r*\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]|[\u0300-\u036f]{9}"
)
_COLOURS = re.compile(rb"\[(?:(?:[0-479]|2[2-9]|[34]9|[34]8;2(?:;\d+){3})(?:;|(?=m)))*m")


def on_a_terminal(program: str, *arguments: str, size: tuple[int, int] = (160, 24), home: Path) -> bytes:
    """Runs a Python program on a pseudo-terminal of columns and lines, and returns all that it was sent."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = process_on(slave, [sys.executable, "-c", program, *arguments], home)
    os.close(slave)
    sent, end = bytearray(), time.monotonic() + 3 * PATIENCE
    while True:
        assert time.monotonic() < end, bytes(sent[-2000:])
        if select.select([master], [], [], 0.2)[0]:
            try:
                sent += os.read(master, 1 << 16)
            except OSError:  # the other side has closed
                break
    os.close(master)
    assert process.wait(PATIENCE) == 0, bytes(sent[-3000:]).decode(errors="replace")
    return bytes(sent)


def sequences(sent: bytes) -> set[bytes]:
    """The escape sequences that a terminal was sent: whole, but for colours and places on the screen."""
    found = set()
    for sequence in _SEQUENCE.findall(sent):
        if sequence.endswith(b"m") and _COLOURS.fullmatch(sequence):
            found.add(b"[m")
        else:
            found.add(b"[H" if re.fullmatch(rb"\[\d+;\d+H", sequence) and sequence != b"[1;1H" else sequence)
    return found


def text(sent: bytes) -> str:
    return _SEQUENCE.sub(b"", sent).decode("utf-8", "replace")


def leaks(sent: bytes, harmless: bytes) -> list[str]:
    """What came through: sequences that a run without attacks does not send, and characters that must not be there."""
    new = sequences(sent) - sequences(harmless)
    return [ascii(sequence) for sequence in new] + [ascii(found) for found in _FORBIDDEN.findall(text(sent))]
