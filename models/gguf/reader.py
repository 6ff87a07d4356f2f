"""Reads the header of a GGUF model file, which is untrusted.

It reads only the first bytes, each read bounded by the file's size, and never the weights. The ``gguf`` package's
reader is not used: a file of 49 bytes makes it hang. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.check import NO_TOKEN, alignment_of, check_metadata, check_sizes, data_start
from slipstream.models.gguf.file_name import shown_name
from slipstream.models.gguf.parse import MAX_HEADER, MAX_TENSORS, DamagedError, Framing, Lists, TensorInfo, Value, parse
from slipstream.models.outside import quoted, shown_path

MAX_PARTS: Final = 999
_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MAGIC: Final = b"GGUF"
_ANOTHER_FORMAT: Final = "Slipstream reads GGUF files: look for one whose name ends in .gguf."
_STRANGERS: Final = (
    ((b"lmgg", b"fmgg", b"tjgg", b"algg"), "is an old GGML file, from before GGUF", _ANOTHER_FORMAT),
    ((b"PK\x03\x04",), "is a zip or PyTorch file, not a GGUF file", _ANOTHER_FORMAT),
    ((b"version https://git-lfs",), "is a Git LFS pointer, not the model", "Fetch the file itself: git lfs pull."),
    (
        (b"<!DOCTYPE", b"<!doctype", b"<html"),
        "is a web page, not a GGUF file",
        "Download the file itself, not its page.",
    ),
)
REAL_TOKENS: Final = "slipstream.inflate.vocabulary"
"""Metadata key of a model with a padded vocabulary matrix: how many of its rows are tokens."""
_DEFAULT_SPECIAL: Final = {"llama": (1, 2), "gpt2": (11, 11), "plamo2": (1, 2), "t5": (None, 1), "bert": (101, None)}
_BOS_BY_DEFAULT: Final = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"}
    | {"tekken", "chameleon"}
)
_State = tuple[int, ...]  # what a change to a file changes
_KEPT: Final[ContextVar[dict[Path, tuple[_State, Header]] | None]] = ContextVar("headers", default=None)
_LISTS: Final[ContextVar[Lists | None]] = ContextVar("lists", default=None)
_SETTLED: Final = 2.0
"""Seconds without a change after which a file's state tells of every further change, however coarse its clock is."""


def part_paths(path: Path, framing: Framing) -> tuple[Path, ...]:
    """Returns every file of the model whose first file is ``path``."""
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


def check_magic(file: BinaryIO, size: int) -> None:
    """Checks that a file starts like GGUF of a version that llama.cpp reads, and seeks back to its start."""
    if size == 0:
        raise DamagedError("is empty", "The download may have failed: fetch the file again.")
    start = file.read(64)
    file.seek(0)
    if not start.startswith(MAGIC[: len(start)]):
        for magics, what, hint in _STRANGERS:
            if start.startswith(magics):
                raise DamagedError(what, hint)
        raise DamagedError(f"is not a GGUF file: it starts with {_beginning(start)}", _ANOTHER_FORMAT)
    if size < 24:
        raise DamagedError(f"is cut short after {size} bytes", "The download may have stopped early: fetch it again.")
    version = int.from_bytes(start[4:8], "little")
    if version not in (2, 3):
        if version and version & 0xFFFF == 0:
            raise DamagedError("is a big-endian GGUF file", "Choose a copy of the model made for this kind of machine.")
        newer = "newer than this Slipstream knows" if version > 3 else "which llama.cpp no longer reads"
        raise DamagedError(f"is a GGUF file of version {version}, {newer}", "Choose a copy of version 2 or 3.")


def _beginning(start: bytes) -> str:
    try:
        text = start[:24].decode().split("\n", 1)[0]
    except UnicodeDecodeError:
        return quoted(start[:8])
    return quoted(text[:16] or start[:8])


@dataclass(frozen=True)
class Header:
    """The checked header of a model file; its texts are untrusted and must be cleaned before they are shown."""

    path: Path  # the file, or the first file of a split model
    architecture: str  # ``general.architecture``
    name: str  # ``general.name``, or the file's name without its ending
    metadata: Mapping[str, Value]  # key to value
    types: Mapping[str, int]  # key to its type id; for an array, -1 minus the type id of its elements
    tensors: tuple[TensorInfo, ...]  # the tensors of all files
    data_offsets: tuple[int, ...]  # first byte of the weights in each file of ``parts``
    fingerprint: str  # SHA-256 in hex over the header bytes and sizes of all files; a key for cached token ids
    parts: tuple[Path, ...]  # every file of the model, ``path`` first

    @cached_property
    def title(self) -> str:
        """Its name for people."""
        return shown_name(self.path, self.name)

    def number(self, key: str) -> int | None:
        """Returns the whole number under ``<architecture>.<key>``, or None."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else None

    @cached_property
    def by_name(self) -> Mapping[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def n_ctx_train(self) -> int | None:
        return self.number("context_length")

    @property
    def n_layer(self) -> int | None:
        return self.number("block_count")

    @property
    def n_embd(self) -> int | None:
        return self.number("embedding_length")

    @property
    def n_vocab(self) -> int:
        """Number of tokens; 0 if the file has no vocabulary."""
        real, rows = self.metadata.get(REAL_TOKENS), self.n_rows
        return real if isinstance(real, int) and 0 < real < rows else rows

    @property
    def n_rows(self) -> int:
        """Rows of the vocabulary matrix; rows after the tokens are padding."""
        return len(self._list("tokenizer.ggml.tokens")) or self.number("vocab_size") or 0

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        return tuple(str(text) for text in self._list("tokenizer.ggml.tokens")[: self.n_vocab])

    @cached_property
    def token_types(self) -> tuple[int, ...]:
        """Kind of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty if not given."""
        return tuple(int(kind) for kind in self._list("tokenizer.ggml.token_type")[: self.n_vocab])

    @property
    def tokenizer_model(self) -> str | None:
        """Kind of tokenizer, for example ``gpt2``; None for a file without one."""
        return self._text("tokenizer.ggml.model")

    @property
    def chat_template(self) -> str | None:
        return self._text("tokenizer.chat_template")

    @property
    def bos(self) -> int | None:
        """Id of the token that begins a text; llama.cpp's default for the tokenizer if the file names none."""
        return self._special("bos", 0)

    @property
    def eos(self) -> int | None:
        """Id of the token that ends a text; llama.cpp's default for the tokenizer if the file names none."""
        return self._special("eos", 1)

    @property
    def add_bos(self) -> bool:
        """Whether llama.cpp puts the ``bos`` token before a text."""
        pre = self._text("tokenizer.ggml.pre")
        default = self.tokenizer_model in ("llama", "bert") or (
            self.tokenizer_model == "gpt2" and pre in _BOS_BY_DEFAULT
        )
        if self.tokenizer_model == "gemma4":
            return self.bos is not None  # llama.cpp overrides the file
        return bool(self.metadata.get("tokenizer.ggml.add_bos_token", default)) and self.bos is not None

    @property
    def add_eos(self) -> bool:
        """Whether llama.cpp puts the ``eos`` token after a text."""
        default = self.tokenizer_model == "t5"
        return bool(self.metadata.get("tokenizer.ggml.add_eos_token", default)) and self.eos is not None

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def _special(self, name: str, place: int) -> int | None:
        default = _DEFAULT_SPECIAL.get(self.tokenizer_model or "", (None, None))[place]
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        if value in NO_TOKEN:
            value = default  # llama.cpp reports a bad id and keeps its default
        return value if isinstance(value, int) and value < len(self.tokens) else None

    def _list(self, key: str) -> list[bool] | list[int] | list[float] | list[str]:
        value = self.metadata.get(key)
        return value if isinstance(value, list) else []

    def _text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None


@contextmanager
def headers_kept() -> Iterator[None]:
    """Within it, ``read_header`` reads only changed files again, and equal vocabularies once; a load reads several."""
    headers, lists = _KEPT.set({}), _LISTS.set({})
    try:
        yield
    finally:
        _KEPT.reset(headers)
        _LISTS.reset(lists)


def read_header(path: str | Path) -> Header:
    """Reads and checks the header of a model file, and of the further files of a split model."""
    path, kept = Path(path), _KEPT.get()
    state = _settled_state(path) if kept is not None else None
    if kept is not None and path in kept and kept[path][0] == state:
        return kept[path][1]
    try:
        framing = _read_file(path)
        parts = part_paths(path, framing)
        header = _assembled(path, framing, parts, lambda number: _read_file(parts[number]))
    except DamagedError as error:
        raise ModelFileError(f"{shown_path(path)} {error}.", error.hint or "Try another copy of the file.") from None
    if kept is not None and state and len(header.parts) == 1:
        kept[path] = state, header
    return header


def _settled_state(path: Path) -> _State | None:
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return None
    settled = time.time() - max(found.st_mtime, found.st_ctime) > _SETTLED
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) if settled else None


def stamp_of(parts: Iterable[str | Path]) -> list[list[int]]:
    """Size, modification time and inode of each file of a model."""
    found = [os.stat(part) for part in parts]
    return [[each.st_size, each.st_mtime_ns, each.st_ino] for each in found]


def read_streams(path: Path, files: Sequence[tuple[BinaryIO, int]]) -> Header:
    """Reads and checks the header of a model from streams at their start, with their lengths, such as those on the hub.

    The first part of a split model is enough; the path is its name, for messages.
    """
    try:
        return _assembled(path, _framing(*files[0]), (path,) * len(files), lambda number: _framing(*files[number]))
    except DamagedError as error:
        raise ModelFileError(f"{shown_path(path)} {error}.", error.hint or "Choose another copy of it.") from None


def _assembled(path: Path, framing: Framing, parts: tuple[Path, ...], part: Callable[[int], Framing]) -> Header:
    architecture = framing.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture.isascii() or not architecture.isprintable():
        raise DamagedError("is damaged: it does not name the architecture of its model")
    check_metadata(framing, architecture)
    offsets = [data_start(framing, alignment_of(framing))]
    digest = hashlib.sha256(framing.header)
    digest.update(framing.size.to_bytes(8, "little"))
    room = MAX_HEADER - len(framing.header)
    tensors = list(framing.tensors)
    for number, place in enumerate(parts[1:], 1):
        try:
            further = part(number)
            if [further.metadata.get(f"split.{key}") for key in ("no", "count")] != [number, len(parts)]:
                raise DamagedError(f"does not belong to it: it is not part {number + 1} of {len(parts)}")
            offsets.append(data_start(further, alignment_of(further)))
        except DamagedError as error:
            raise DamagedError(f"cannot be used: its part {shown_path(place.name)} {error}", error.hint) from None
        digest.update(further.header)
        digest.update(further.size.to_bytes(8, "little"))
        tensors += [replace(tensor, part=number) for tensor in further.tensors]
        room -= len(further.header)
        if room < 0 or len(tensors) > MAX_TENSORS:
            raise DamagedError("is damaged: the headers of its parts are larger than is allowed")
    announced = framing.metadata.get("split.tensors.count", len(tensors)) if len(parts) > 1 else len(tensors)
    if announced != len(tensors) or len({tensor.name for tensor in tensors}) != len(tensors):
        raise DamagedError("does not fit its other parts: the tensors do not add up")
    check_sizes(framing.metadata, architecture, tensors)
    name = framing.metadata.get("general.name")
    return Header(
        path=path,
        architecture=architecture,
        name=name if isinstance(name, str) and name.strip() else path.stem,
        metadata=framing.metadata,
        types=framing.types,
        tensors=tuple(tensors),
        data_offsets=tuple(offsets),
        fingerprint=digest.hexdigest(),
        parts=parts,
    )


def _read_file(path: Path) -> Framing:
    try:
        mode = os.stat(path).st_mode  # before opening: opening a named pipe would wait for its writer
        if stat.S_ISDIR(mode):
            raise DamagedError("is a folder, not a GGUF file", _hint_for_folder(path))
        if not stat.S_ISREG(mode):
            raise DamagedError("is a device or pipe, not a GGUF file")
        with path.open("rb") as file:
            return _framing(file, os.fstat(file.fileno()).st_size)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{shown_path(path)}: no such file.", "Check the name and the folder.") from None
    except PermissionError:
        raise DamagedError(
            "cannot be read: permission denied", "Change its permissions, or pick another file."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise DamagedError(f"cannot be read: {reason}", "Check the path and the disk.") from None


def _framing(file: BinaryIO, size: int) -> Framing:
    check_magic(file, size)
    return parse(file, size, {} if (lists := _LISTS.get()) is None else lists)


def _hint_for_folder(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(".gguf"))
    if not names:
        return "Give the path of a .gguf file; this folder holds none."
    shown = ", ".join(shown_path(name) for name in names[:3])
    return f"It holds {shown}{' and more' if len(names) > 3 else ''}: name one of its files."
