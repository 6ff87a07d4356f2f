"""Models that are split into several GGUF files: which files belong together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from slipstream.models.gguf_parse import DamagedError, Framing
from slipstream.models.quoting import shown_path

MAX_PARTS: Final = 999
_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_paths(path: Path, framing: Framing) -> tuple[Path, ...]:
    """Returns every file of the model that begins with ``path``.

    Raises:
        DamagedError: If ``path`` is not the first file, or another one is missing.
    """
    count = framing.metadata.get("split.count", 0)
    number = framing.metadata.get("split.no", 0)
    if not isinstance(count, int) or not isinstance(number, int) or not 0 <= number < max(count, 1) <= MAX_PARTS:
        raise DamagedError("is damaged: it does not say which part of a split model it is")
    if count <= 1:
        return (path,)
    match = _NAME.fullmatch(path.name)
    if not match or int(match["count"]) != count or int(match["number"]) != number + 1:
        raise DamagedError(
            f"is part {number + 1} of {count} of a split model, but its name does not say so",
            f"Give the file back its name, which ended in -{number + 1:05}-of-{count:05}.gguf.",
        )
    names = [f"{match['stem']}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    if number != 0:
        raise DamagedError(
            f"is part {number + 1} of {count} of a split model", f"Name its first file: {shown_path(names[0])}"
        )
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise DamagedError(
            f"is the first of {count} parts, but {shown_path(missing[0])} is missing",
            "Download all parts into one folder.",
        )
    return (path, *(path.parent / name for name in names[1:]))


def check_part(framing: Framing, number: int, count: int) -> None:
    """Checks that a further file is the part that its name says.

    Raises:
        DamagedError: If it says otherwise itself.
    """
    said = (framing.metadata.get("split.no"), framing.metadata.get("split.count"))
    if said != (number, count):
        raise DamagedError(f"does not belong to it: it is not part {number + 1} of {count}")
