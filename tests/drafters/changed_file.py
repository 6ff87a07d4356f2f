"""Copies of GGUF files: with some keys and tensors changed, tokens of other ids, or other rules that make tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.gguf.parse import F32, I32, STRING, U32, Value
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import PLAIN, NewTensor, read_tensor, write_gguf

_PERMUTED = ("token_embd.weight", "output.weight")
_CONTROL, _BYTE = 3, 6


def changed(
    source: Path, copy: Path, keys: Mapping[str, Value] = {}, tensors: Mapping[str, NDArray[Any] | None] = {}
) -> Path:
    """Writes a copy whose weights are F32. New keys are texts or F32, others keep their types; None leaves a tensor
    out."""
    header = read_header(source)
    metadata = {
        key: (header.types[key], keys.get(key, value))
        for key, value in header.metadata.items()
        if not key.startswith(("general.architecture", "general.alignment"))
    }
    kinds = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32}
    more = {key: (kinds[type(value)], value) for key, value in keys.items() if type(value) in kinds}
    metadata = {**more, **metadata}
    arrays = {**{tensor.name: read_tensor(header, tensor) for tensor in header.tensors}, **tensors}
    written = [_tensor(name, values) for name, values in arrays.items() if values is not None]
    write_gguf(copy, header.architecture, metadata, written)
    return copy


def _tensor(name: str, values: NDArray[Any]) -> NewTensor:
    plain = next((kind for kind, dtype in PLAIN.items() if values.dtype == dtype), gguf.GGMLQuantizationType.F32)
    return NewTensor(name, values.shape, gguf.GGMLQuantizationType(plain), lambda: values)


def in_other_tokens(source: Path, copy: Path, merges: int | None = None) -> Path:
    """Writes a byte-level BPE model in F32 in tokens of other ids; with fewer merges, words fall into more tokens."""
    header = read_header(source)
    order = np.random.default_rng(0).permutation(header.n_vocab)  # new id to old id
    new_ids = np.argsort(order)
    keys: dict[str, Any] = {}
    for key, value in header.metadata.items():
        if key.endswith("_token_id") and isinstance(value, int):
            keys[key] = header.types[key], int(new_ids[value])
        elif key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type") and isinstance(value, list):
            keys[key] = header.types[key], [value[old] for old in order]
        elif key == "tokenizer.ggml.merges" and isinstance(value, list):
            keys[key] = header.types[key], value[:merges]
    return _written(source, copy, order.tolist(), keys)


def in_sentencepiece(source: Path, copy: Path) -> Path:
    """Writes a model with a SentencePiece tokenizer, which puts a space before every text, and with single bytes.

    Tokens of whole characters keep their weights; the others go, and 256 bytes and an opening token come.
    """
    header = read_header(source)
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    tokens, kinds, order = ["<unk>", "<s>"], [2, _CONTROL], [0, 0]
    for byte in range(256):
        tokens.append(f"<0x{byte:02X}>")
        kinds.append(_BYTE)
        order.append(header.tokens.index(_byte_letters()[byte]))
    for old, (name, kind) in enumerate(zip(header.tokens, header.token_types, strict=True)):
        text = name if kind == _CONTROL else bytes(letters[letter] for letter in name).decode("utf-8", "ignore")
        if kind == _CONTROL or (text not in ("", "\0") and len(name) == len(text.encode())):
            tokens.append(text.replace(" ", "\u2581"))
            kinds.append(kind)
            order.append(old)
    keep = [at for at, name in enumerate(tokens) if tokens.index(name) == at]
    tokens, kinds, order = [tokens[at] for at in keep], [kinds[at] for at in keep], [order[at] for at in keep]
    end = tokens.index("<|im_end|>")
    keys = {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (-1 - STRING, tokens),
        "tokenizer.ggml.token_type": (-1 - I32, kinds),
        "tokenizer.ggml.scores": (-1 - F32, [-float(at) for at in range(len(tokens))]),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, end),
        "tokenizer.ggml.eot_token_id": (U32, end),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
        f"{header.architecture}.vocab_size": (U32, len(tokens)),
    }
    return _written(source, copy, order, keys, gone=("merges", "pre", "padding_token_id", "add_bos_token"))


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level BPE (GPT-2's bytes_to_unicode)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(rest)}


def _written(source: Path, copy: Path, order: list[int], keys: dict[str, Any], gone: tuple[str, ...] = ()) -> Path:
    header = read_header(source)
    metadata = {key: (header.types[key], value) for key, value in header.metadata.items()} | keys
    left_out = ("general.architecture", "general.alignment", *(f"tokenizer.ggml.{key}" for key in gone))
    tensors = [_reordered(tensor.name, read_tensor(header, tensor), order) for tensor in header.tensors]
    write_gguf(
        copy, header.architecture, {key: value for key, value in metadata.items() if key not in left_out}, tensors
    )
    return copy


def _reordered(name: str, values: NDArray[Any], order: list[int]) -> NewTensor:
    kept = values[order] if name in _PERMUTED else values
    return NewTensor(name, kept.shape, gguf.GGMLQuantizationType.F32, lambda: kept)
