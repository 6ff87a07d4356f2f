"""Bytes of tiny GGUF files that really load, whole or in parts, for a hub of the tests' own."""

import tempfile
from functools import cache
from pathlib import Path

import gguf
from tests.models.kinds import finish, write_kind


@cache
def tiny_gguf(kind: str = "llama", seed: int = 1, q8_0: bool = False) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_kind(Path(folder) / "tiny.gguf", kind, seed=seed, q8_0=q8_0).read_bytes()


@cache
def split_gguf(stem: str, parts: int = 2, kind: str = "llama", seed: int = 1) -> dict[str, bytes]:
    """The same as several files, as ``gguf-split`` makes them: name to bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader = gguf.GGUFReader(write_kind(folder / "whole.gguf", kind, seed=seed))
        count = len(reader.tensors)
        writer = gguf.GGUFWriter(folder / f"{stem}.gguf", kind, split_max_tensors=-(-count // parts))
        for key, field in reader.fields.items():
            if not key.startswith("GGUF.") and key != "general.architecture":
                kinds = field.types
                inner = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), kinds[0], inner)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
        found = {path.name: path.read_bytes() for path in sorted(folder.glob(f"{stem}-*.gguf"))}
    assert len(found) == parts, sorted(found)
    return found
