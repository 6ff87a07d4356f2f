"""Part ``interface``: how soon a key is answered, what a long reply costs, and how long a long chat takes to open.

The engine plays its replies, so that the figures are those of the screen alone. The terminal is a real one: the time is
that from the key to the bytes that draw the answer.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.clocks import Spread
from tests.bench.interface_chat import DATABASE, EVERY, LAST, LEDGER, text_of
from tests.bench.interface_person import Person, at_the_chat

from slipstream.app.bench.report import table
from slipstream.app.chats.store import ChatStore

SLOW: Final = 2.0  # seconds of a step while keys are pressed
FAST: Final = 0.033  # seconds of a step of a long reply: the pictures that the engine sends a second
_LETTERS: Final = "αβγδεζηθικλμνξοπρστυφχψωбгджзилпфцчшщъыьэюя"
"""Letters that are nowhere on the screen until they are typed."""
_BETWEEN: Final = 0.09
_HELP: Final = (b"\x1bOP", b"Esc closes")
_CHATS: Final = (b"\x0f", b"Search all chats")
_TITLE: Final = "zebra"


@dataclass(frozen=True, slots=True)
class InterfaceFigures:
    """What the screen costs, and how soon it answers."""

    keys: int  # keys that were pressed while the engine took 2 s a step
    key_ms: Spread  # milliseconds from a key to its answer
    key_p95_ms: float  # the slowest of twenty
    tokens: int  # tokens of the long reply
    first_us: float  # microseconds of processor time a token in the first thousand, with what is done once
    last_us: float  # the same in the last thousand
    begin_us: float  # the same in the first quarter, the first tokens left out; the median of each five hundred
    end_us: float  # the same in the last quarter
    first_mb: float  # memory of the process after the first thousand tokens, in MB of 1,000,000 bytes
    begin_mb: float  # memory after the first quarter
    end_mb: float  # the same at the end
    messages: int  # messages of the long chat
    open_ms: Spread  # milliseconds until a chat of so many messages is on the screen


def measure_interface(
    keys: int, tokens: int, messages: int, rounds: int, tell: Callable[[str], None]
) -> InterfaceFigures:
    """Types, streams and opens.

    Args:
        keys: Letters that are typed, 40 at most.
        tokens: Tokens of the long reply, 2,000 at least.
        messages: Messages of the long chat.
        rounds: How often that is opened.
        tell: Hears how far it is.

    Raises:
        SlipstreamError: If the chat shows nothing for a minute.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        homes = [Path(folder) / name for name in ("keys", "reply", "chats")]
        for home in homes:
            home.mkdir()
        tell("interface: keys while a step takes 2 s")
        waits = _keys(homes[0], keys)
        tell(f"interface: a reply of {tokens:,} tokens")
        lines = _long_reply(homes[1], tokens)
        tell(f"interface: a chat of {messages} messages")
        opened = _opened(homes[2], messages, rounds)
    quarter, thousand = len(lines) // 4, 1000 // EVERY
    return InterfaceFigures(
        keys=len(waits),
        key_ms=Spread.of(waits),
        key_p95_ms=sorted(waits)[int(0.95 * len(waits))],
        tokens=tokens,
        first_us=_microseconds(lines[: thousand + 1 : thousand]),
        last_us=_microseconds(lines[-thousand - 1 :: thousand]),
        begin_us=_microseconds(lines[1 : quarter + 2]),
        end_us=_microseconds(lines[-quarter - 1 :]),
        first_mb=lines[thousand][2] / 1e6,
        begin_mb=lines[quarter][2] / 1e6,
        end_mb=lines[-1][2] / 1e6,
        messages=messages,
        open_ms=Spread.of(opened),
    )


def _keys(home: Path, count: int) -> list[float]:
    """Milliseconds from each key to its answer."""
    waits = []
    with at_the_chat(home, SLOW) as person:
        person.press(b"hello", b"hello")
        person.press(b"\r", b"word0")
        for letter in _LETTERS[:count]:
            waits.append(1e3 * person.press(letter.encode(), letter.encode()))
            person.rests(_BETWEEN)
        for _ in range(3):
            waits.append(1e3 * person.press(*_HELP))
            person.press(b"\x1b[27u", _LETTERS[0].encode())  # the prompt is drawn again
            person.rests(_BETWEEN)
    return waits


def _long_reply(home: Path, tokens: int) -> list[tuple[int, float, int]]:
    """The ledger of a reply, from before its first token: tokens, seconds of the processor, bytes."""
    with at_the_chat(home, FAST) as person:
        person.press(f"write {tokens}".encode(), b"write")
        person.press(b"\r", LAST.encode())
    lines = [line.split() for line in (home / LEDGER).read_text().splitlines()]
    return [(int(count), float(seconds), int(size)) for count, seconds, size in lines]


def _microseconds(lines: Sequence[tuple[int, float, int]]) -> float:
    """Processor time a token, the median of all stretches."""
    return median(1e6 * (after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(lines))


def _opened(home: Path, messages: int, rounds: int) -> list[float]:
    """Milliseconds from Enter on a chat in the list to its newest words on the screen."""
    _fill(home / DATABASE, messages)
    waits = []
    for _ in range(rounds):
        with at_the_chat(home, FAST) as person:
            _search(person)
            waits.append(1e3 * person.press(b"\r", LAST.encode()))
    return waits


def _search(person: Person) -> None:
    person.press(*_CHATS)
    person.press(_TITLE.encode(), _TITLE.encode())
    person.rests(0.5)


def _fill(database: Path, messages: int) -> None:
    """Keeps a chat of questions and replies."""
    chance = random.Random(6)
    with closing(ChatStore(database)) as store:
        chat = store.create(_TITLE).id
        store.rename(chat, _TITLE)
        for number in range(messages // 2):
            store.add_user(chat, f"question {number}")
            reply = store.begin_reply(chat, model="m", fingerprint="played", drafter="none", seed=1)
            start = chance.randrange(1 << 16)
            text = "".join(map(text_of, range(start, start + 200)))
            end = f"\n\n{LAST}" if number == messages // 2 - 1 else ""
            store.finish_reply(reply.id, text=text + end, tokens=list(range(200)), reason="stop")


def interface_text(figures: InterfaceFigures) -> str:
    """The table of the part."""
    return table(
        "interface: what the screen alone costs",
        ("what", "figure", "aim"),
        [
            ("a key is answered after, ms", figures.key_ms.text(1), "50"),
            ("19 of 20 keys within, ms", f"{figures.key_p95_ms:.1f}", "50"),
            ("processor time a token in the first thousand, us", f"{figures.first_us:.0f}", "-"),
            ("the same in the last thousand", f"{figures.last_us:.0f}", "the same"),
            ("the same in the first quarter", f"{figures.begin_us:.0f}", "-"),
            ("the same in the last quarter", f"{figures.end_us:.0f}", "the same"),
            ("memory after the first thousand, MB", f"{figures.first_mb:.0f}", "-"),
            ("the same after the first quarter", f"{figures.begin_mb:.0f}", "-"),
            ("the same at the end", f"{figures.end_mb:.0f}", "the same"),
            (f"a chat of {figures.messages} messages is open after, ms", figures.open_ms.text(0), "1000"),
        ],
        [
            f"{figures.keys} keys while a step takes {SLOW:g} s; a reply of {figures.tokens:,} tokens,"
            f" {1 / FAST:.0f} pictures a second; a terminal of 120 x 40."
        ],
    )
