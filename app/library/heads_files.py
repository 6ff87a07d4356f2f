"""Files of trained heads: their names, whether they fit a model, and which may be overwritten."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.app.library.load_request import head_files
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.parse import Value
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE
from slipstream.models.heads.file import QUANTIZATIONS, identity, move_heads, read_info, stale, works_with_any
from slipstream.models.heads.matching_heads import ACCEPTANCE_KEY, TARGET_KEY, TEXT_KEY, method_of, why_unfit
from slipstream.models.outside import quoted, shown_path

_OTHER_MODEL: Final = "trained for another model"
_QUANTIZED: Final = ", another quantization"
_ELSEWHERE: Final = "Choose another file with --out."


@dataclass(frozen=True, slots=True)
class HeadsFile:
    path: Path
    method: str = ""  # empty if the file cannot be read
    trained_for: str = ""  # the model's name, on one line; empty if unknown
    trained_on: str = ""  # the text; empty if unknown
    first_depth: float | None = None  # acceptance at depth 1 as measured in training, or None
    size: int | None = None  # bytes; None if the file cannot be read
    why_not: str = ""  # why it does not fit the model; empty if it does
    stale: str = ""  # deletions of its text since the training, in words; empty if none


def heads_file(path: Path, own: str, header: Header) -> HeadsFile | None:
    name = one_line(header.title)
    try:
        theirs = read_header(path)
        size = path.stat().st_size
        if method := method_of(theirs):
            target = theirs.metadata.get(TARGET_KEY)  # a hash of its content; published heads have none
            also = target != own and works_with_any(theirs.metadata.get(QUANTIZATIONS), header)
            why_not = why_unfit(theirs, header) if not target else "" if also or target == own else _OTHER_MODEL
            shares, text = theirs.metadata.get(ACCEPTANCE_KEY), theirs.metadata.get(TEXT_KEY)
            return HeadsFile(
                path,
                method,
                trained_for="" if why_not else name + _QUANTIZED * also,
                trained_on=one_line(text) if isinstance(text, str) else "",
                first_depth=_first(shares),
                size=size,
                why_not=why_not,
            )
        if theirs.architecture != HEADS_ARCHITECTURE:
            return None
        info = read_info(path)
        what = "version of it" if info.target_name in (header.title, header.name) else "model"
        deleted = stale(path)
        also = info.target != own and works_with_any(info.quantizations, header)
    except (SlipstreamError, OSError):
        return HeadsFile(path, why_not="damaged, or not readable")
    return HeadsFile(
        path,
        info.method,
        trained_for=name + _QUANTIZED * also if also or info.target == own else one_line(info.target_name),
        trained_on=plural(len(info.chats), "chat") if info.text == "chats" else info.text,
        first_depth=_first(info.settings.get("acceptance")),
        size=size,
        why_not="" if also or info.target == own else f"trained for another {what}",
        stale=f"trained on {plural(len(deleted), 'deleted chat')}; train again" if deleted else "",
    )


def _first(shares: Value | None) -> float | None:
    first = shares[0] if isinstance(shares, list) and shares else None
    return first if isinstance(first, float) else None


def heads_for(paths: Paths, header: Header) -> list[HeadsFile]:
    """All files of heads, those for other models too unless they ship."""
    own = identity(header)
    found = (heads_file(path, own, header) for path in head_files(paths))
    return [file for file in found if file and not (file.why_not and file.path.is_relative_to(paths.bundled))]


def file_in(folder: Path, target: Header, kind: str, say: Callable[[str], None]) -> Path:
    """The file of a kind of heads for a model; ``kind`` is the method, or the method and the origin of the heads.

    Heads in it for another model of this name, or another version, are moved to a file that a line to ``say`` names.
    """
    out = private_folder(folder) / f"{target.path.stem}-{kind}.gguf"
    kept = _kept(out)
    if kept and kept[1] != identity(target):
        aside = out.with_stem(f"{out.stem}-{kept[1][:8] or 'older'}")
        move_heads(out, aside)
        say(f"{shown_path(out)} held heads for another model or version, {quoted(kept[2])}: they are {aside.name} now.")
    return out


def checked(out: Path, target: Header, method: str) -> Path:
    """The absolute path of a file that the user named for heads; only older heads for this model may be there."""
    out = out.expanduser().absolute()
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{shown_path(out.parent)} is no folder that can be written to.", _ELSEWHERE)
    if out.exists() and ((kept := _kept(out)) is None or kept[:2] != (method, identity(target))):
        why = f"is there already and holds no {method} heads for {quoted(target.title)}"
        raise UsageError(f"{shown_path(out)} {why}.", _ELSEWHERE)
    return out


def shown_size(size: int) -> str:
    """A size in bytes, for people: ``640 kB``, ``1.2 MB``."""
    return f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{max(1, round(size / 1e3))} kB"


def _kept(path: Path) -> tuple[str, str, str] | None:
    """The method of a file of heads, its target's identity and name; None if the file is missing or has no heads."""
    try:
        header = read_header(path)
        if method := method_of(header):
            return method, str(header.metadata.get(TARGET_KEY, "")), header.name
        info = read_info(path)
    except SlipstreamError:
        return None
    return info.method, info.target, info.target_name
