"""The filter on 100,000 generated texts, whole and cut into pieces.

A command: ``python -m tests.soak.text [COUNT]``. Prints one line: what, how many, how many failed, the 95 % bound.
"""

import random
import sys
import unicodedata

from tests.app.hostile import PAYLOADS

from slipstream.app.platform.safe_text import MOST_MARKS, clean

_ALLOWED_CONTROLS = "\t\n"
_HIDING = {0x061C, 0x200E, 0x200F, 0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)}
_REORDERING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def made(chance: random.Random) -> str:
    parts = []
    for _ in range(chance.randint(0, 12)):
        match chance.randrange(4):
            case 0:
                parts.append(chance.choice(PAYLOADS)[:40])
            case 1:
                parts.append("e" + "\u0301" * chance.randint(0, 20))
            case 2:
                parts.append(chr(chance.randrange(0x100)))
            case _:
                parts.append("".join(chr(chance.randrange(0x110000)) for _ in range(chance.randint(1, 8))))
    return "".join(parts)


def inert(character: str) -> bool:
    """Whether a terminal and a reader take it for what it looks like."""
    kind = unicodedata.category(character)
    code = ord(character)
    return (
        kind not in ("Cc", "Cs", "Zl", "Zp") or character in _ALLOWED_CONTROLS
    ) and code not in _HIDING | _REORDERING


def right(text: str, chance: random.Random) -> bool:
    """Whether the filter keeps its promises for a text, whole and in pieces of any size."""
    shown = clean(text)
    pieces, before, at = "", "", 0
    while at < len(text):
        piece = text[at : at + chance.randint(1, 5)]
        pieces += clean(piece, before)
        before, at = (before + piece)[-MOST_MARKS:], at + len(piece)
    return all(
        len(one) == len(text) and all(map(inert, one)) and clean(one) == one and "\u0301" * (MOST_MARKS + 1) not in one
        for one in (shown, pieces)
    )


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    chance = random.Random(20)
    failed = sum(not right(made(chance), chance) for _ in range(count))
    bound = f", 95 % bound {3 / count:.4%}" if not failed else ""
    print(f"text: {count:,} generated texts through the filter, {failed} failed{bound}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
