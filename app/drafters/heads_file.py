"""A file of trained heads, and whether it serves a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.app.safe_text import one_line
from slipstream.models.companions import HEAD_ARCHITECTURES, TARGET_KEY
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import ARCHITECTURE, HeadsInfo, read_info
from slipstream.models.heads_stale import stale


@dataclass(frozen=True, slots=True)
class HeadsFile:
    """A file of heads.

    Attributes:
        path: Where it is.
        method: Which method they are for; empty where the file cannot be read.
        trained_for: The model's name, on one line; empty if the file does not say it.
        trained_on: The text; empty if the file does not say it.
        first_depth: Acceptance at the first depth that training measured, or None.
        size: Bytes; None where the file cannot be read.
        why_not: Why it does not serve the model; empty if it does.
        stale: What has happened to its text since, in words; empty if nothing.
    """

    path: Path
    method: str = ""
    trained_for: str = ""
    trained_on: str = ""
    first_depth: float | None = None
    size: int | None = None
    why_not: str = ""
    stale: str = ""


def heads_file(path: Path, own: str, header: Header) -> HeadsFile | None:
    """Reads what a file of heads says of itself.

    Args:
        path: The file.
        own: The model's identity, see ``slipstream.models.heads.identity``.
        header: The model's header.

    Returns:
        The file; None if it is a model.
    """
    try:
        theirs = read_header(path)
        size = path.stat().st_size
        if theirs.architecture in HEAD_ARCHITECTURES:
            fits = theirs.metadata.get(TARGET_KEY) == own
            why_not = "" if fits else "trained for another model"  # it names its model by its content only
            return HeadsFile(path, theirs.architecture, one_line(header.name) if fits else "", "", None, size, why_not)
        if theirs.architecture != ARCHITECTURE:
            return None
        info = read_info(path)
        deleted = stale(path)
    except (SlipstreamError, OSError):
        return HeadsFile(path, why_not="damaged, or not readable")
    return HeadsFile(
        path,
        info.method,
        one_line(info.target_name),
        f"{len(info.chats)} chats" if info.text == "chats" else info.text,
        _first_depth(info),
        size,
        "" if info.target == own else f"trained for another {_what(info, header)}",
        f"trained on {len(deleted)} deleted chat{'s' * (len(deleted) > 1)}; train again" if deleted else "",
    )


def _what(info: HeadsInfo, header: Header) -> str:
    return "version of it" if info.target_name == header.name else "model"


def _first_depth(info: HeadsInfo) -> float | None:
    shares = info.settings.get("acceptance")
    first = shares[0] if isinstance(shares, list) and shares else None
    return first if isinstance(first, float) else None
