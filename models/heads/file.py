"""The file of trained drafting heads: a small GGUF that names the model it was trained for.

The architecture is ``slipstream-heads``, the metadata keys are ``slipstream.heads.*``, and
:func:`slipstream.models.heads.check.check_heads` lists the tensors of each method.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import gguf
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.parse import DamagedError, Value
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import NewTensor, read_stored, read_tensor, replacing, samples, typed, write_gguf
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE
from slipstream.models.heads.check import METHODS, TOKEN_IDS, Method, check_heads, check_storage, check_values
from slipstream.models.outside import is_sha256, quoted, shown_path

_MAX_BYTES: Final = 1 << 20
VERSION: Final = 1
DERIVED_FROM: Final = "slipstream.derived_from"
"""Metadata key of a re-quantized copy: the identity of the model that it was made from."""
Text = Literal["answers", "folder", "chats", "corpus", "published"]
TEXTS: Final[tuple[Text, ...]] = ("answers", "folder", "chats", "corpus", "published")
Kind = Literal["q8_0", "f16", "f32"]
_KEY: Final = "slipstream.heads."
_SETTING: Final = "slipstream.heads.setting."
QUANTIZATIONS: Final = "slipstream.heads.quantizations"
"""Metadata key of heads, also of those that llama.cpp runs, that work with every quantization of their model."""
_KINDS: Final = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "f16": gguf.GGMLQuantizationType.F16,
    "f32": gguf.GGMLQuantizationType.F32,
}


def mark_stale(path: Path, chat_id: str) -> None:
    """Marks heads as trained on a deleted chat, in a separate file in their folder."""
    marked = stale(path)
    if chat_id not in marked:
        _write(path, [*marked, chat_id])


def stale(path: Path) -> tuple[str, ...]:
    """The deleted chats that a file of heads was trained on; empty if there are none."""
    try:
        with _beside(path).open("rb") as file:
            return tuple(file.read(_MAX_BYTES).decode(errors="replace").splitlines())
    except OSError:
        return ()


def settle(path: Path, chats: Iterable[str]) -> None:
    """Drops all marks except those of ``chats``, the chats that the new heads were trained on."""
    marked = stale(path)
    kept = [chat for chat in marked if chat in set(chats)]
    if len(kept) < len(marked):
        _write(path, kept)


def move_heads(path: Path, to: Path) -> None:
    with suppress(FileNotFoundError):
        os.replace(_beside(path), _beside(to))
    os.replace(path, to)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".stale")


def _write(path: Path, chats: list[str]) -> None:
    if not chats:
        _beside(path).unlink(missing_ok=True)
        return
    with replacing(_beside(path)) as part:
        part.write_text("".join(f"{chat}\n" for chat in chats), encoding="utf-8")


@dataclass(frozen=True)
class HeadsInfo:
    method: Method  # the drafting method
    target: str  # identity of the model they were trained for
    target_name: str
    text: Text  # the training text; ``published`` for heads that others trained
    chats: tuple[str, ...]  # ids of the chats they were trained on
    made: int  # time of creation in seconds since 1970
    # values of the method, for example ``exit_layer``; lists have one type and are not empty
    settings: Mapping[str, Value] = field(default_factory=dict)
    licence: str = ""  # licence of the heads; empty if unknown
    # ``any_quantization`` of the model, if they work with all its quantizations; empty if only with the one
    quantizations: str = ""


@dataclass(frozen=True)
class Heads:
    """Trained heads in memory."""

    info: HeadsInfo
    tensors: Mapping[str, NDArray[Any]]  # name to float32 array, or int32 for ``output.ids``


def identity(header: Header) -> str:
    """Identifies a model by its content: SHA-256 in hex.

    Models of the same shape may have equal headers, so some kilobytes from the start, middle and end of up to 64
    tensors are hashed too. A copy that names its original under ``DERIVED_FROM`` has the original's identity, so that
    the same heads work with both.
    """
    source = header.metadata.get(DERIVED_FROM)
    if is_sha256(source):
        return source
    digest = hashlib.sha256(header.fingerprint.encode())
    for sample in samples(header):
        digest.update(sample)
    return digest.hexdigest()


def any_quantization(header: Header) -> str:
    """SHA-256 of a model's shape and norms, the same in any quantization, and for a fine-tune that left the norms."""
    digest = hashlib.sha256(f"{header.architecture} {header.n_embd} {header.n_layer} {header.n_vocab}".encode())
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.name):
        if len(tensor.shape) == 1 and tensor.type_name == "F32":
            digest.update(tensor.name.encode())
            digest.update(read_stored(header, tensor).tobytes())
    return digest.hexdigest()


def works_with_any(mark: Value | None, header: Header) -> bool:
    """Whether heads with this mark (``QUANTIZATIONS``) work with every quantization of this model."""
    return bool(mark) and mark == any_quantization(header)


def write_heads(path: Path, info: HeadsInfo, tensors: Mapping[str, NDArray[Any]], kind: Kind = "q8_0") -> None:
    """Writes a file of heads, replacing an old one atomically.

    With ``q8_0``, matrices whose rows are not whole blocks of 32 become F16. One-dimensional tensors and SPACE's masks
    are always F32.
    """
    try:
        check_heads(info.method, {name: values.shape for name, values in tensors.items()}, info.settings)
        for name, values in tensors.items():
            check_values(name, values)
    except DamagedError as error:
        raise SlipstreamError(f"cannot write {shown_path(path)}: what was trained {error}.", error.hint) from None
    facts: dict[str, Value] = {
        "general.name": f"{info.target_name}: {info.method} heads",
        f"{_KEY}version": VERSION,
        f"{_KEY}method": info.method,
        f"{_KEY}target": info.target,
        f"{_KEY}target_name": info.target_name,
        f"{_KEY}text": info.text,
        f"{_KEY}chats": list(info.chats),
        f"{_KEY}made": info.made,
    }
    if info.licence:
        facts["general.license"] = info.licence
    if info.quantizations:
        facts[QUANTIZATIONS] = info.quantizations
    facts |= {_SETTING + name: value for name, value in info.settings.items()}
    write_gguf(
        path,
        HEADS_ARCHITECTURE,
        {key: typed(value) for key, value in facts.items()},
        [_new_tensor(name, values, kind) for name, values in tensors.items()],
    )
    settle(path, info.chats)


def read_info(path: Path) -> HeadsInfo:
    return _read(path, None)[1]


def read_heads(path: Path, target: Header | None = None) -> Heads:
    """Reads heads with their weights, after checking the whole header."""
    header, info = _read(path, target)
    tensors = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    try:
        for name, values in tensors.items():
            check_values(name, values, target)
    except DamagedError as error:
        raise _refused(path, error) from None
    return Heads(info, tensors)


def check_target(info: HeadsInfo, header: Header) -> None:
    """Checks that heads were trained for this model, for the original of this copy, or for all its quantizations."""
    if info.target == identity(header) or works_with_any(info.quantizations, header):
        return
    theirs = quoted(info.target_name)
    if info.target_name in (header.title, header.name):
        theirs = f"another version of {theirs}"
    raise SlipstreamError(
        f"these {info.method} heads were trained for {theirs}, not for {quoted(header.title)} in "
        f"{shown_path(header.path)}.",
        f"Train or import heads for this model: slipstream drafters train {info.method} -m {shown_path(header.path)}",
    )


def _read(path: Path, target: Header | None) -> tuple[Header, HeadsInfo]:
    header = read_header(path)
    if header.architecture != HEADS_ARCHITECTURE:
        raise ModelFileError(
            f"{shown_path(path)} is a model ({quoted(header.architecture)}), not trained heads.",
            "Give the file that slipstream drafters train or import wrote.",
        )
    try:
        info = _info(header)
        if target is not None:
            check_target(info, target)
        check_heads(info.method, {t.name: t.shape[::-1] for t in header.tensors}, info.settings, target)
        check_storage(header)
    except DamagedError as error:
        raise _refused(path, error) from None
    return header, info


def _refused(path: Path, error: DamagedError) -> ModelFileError:
    return ModelFileError(f"{shown_path(path)} {error}.", error.hint or "Train or import the heads again.")


def _info(header: Header) -> HeadsInfo:
    found = {key.removeprefix(_KEY): value for key, value in header.metadata.items() if key.startswith(_KEY)}
    version, method, target, name = (found.get(key) for key in ("version", "method", "target", "target_name"))
    if version != VERSION:
        raise DamagedError(
            f"holds heads of version {quoted(str(version))}, which this Slipstream does not know", "Update Slipstream."
        )
    text, chats, made = found.get("text"), found.get("chats", []), found.get("made")
    known = next((known for known in METHODS if known == method), None)
    if known is None:
        raise DamagedError(f"holds heads for {quoted(str(method))}, which this Slipstream does not know")
    if not isinstance(target, str) or not is_sha256(target) or not isinstance(name, str):
        raise DamagedError("is damaged: it does not say which model its heads are for")
    source = next((source for source in TEXTS if source == text), None)
    if source is None or type(made) is not int or not isinstance(chats, list):
        raise DamagedError("is damaged: it does not say what its heads were trained on")
    licence = header.metadata.get("general.license", "")
    return HeadsInfo(
        method=known,
        target=target,
        target_name=name,
        text=source,
        chats=tuple(str(chat) for chat in chats),
        made=made,
        settings={key.removeprefix("setting."): value for key, value in found.items() if key.startswith("setting.")},
        licence=licence if isinstance(licence, str) else "",
        quantizations=str(found.get("quantizations", "")),
    )


def _new_tensor(name: str, values: NDArray[Any], kind: Kind) -> NewTensor:
    if name == TOKEN_IDS:
        return NewTensor(name, values.shape, gguf.GGMLQuantizationType.I32, lambda: values)
    stored = _KINDS[kind]
    if values.ndim == 1 or name == "masks":
        stored = gguf.GGMLQuantizationType.F32
    elif values.shape[-1] % 32 and kind == "q8_0":
        stored = gguf.GGMLQuantizationType.F16
    return NewTensor(name, values.shape, stored, lambda: values)
