"""Makers of small model files: good ones, and ones that are wrong in a chosen way."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
CODES = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", 11: "q", 12: "d"}


def packed_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def packed_array(kind: int, values: list[object]) -> bytes:
    if kind == STRING:
        body = b"".join(packed_string(value) for value in values if isinstance(value, str | bytes))
    else:
        body = struct.pack(f"<{len(values)}{CODES[kind]}", *values)
    return struct.pack("<IQ", kind, len(values)) + body


@dataclass
class RawModel:
    """A GGUF file in pieces: ``pairs`` are type id and packed value, ``tensors`` name, shape, type id and offset."""

    pairs: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tensors: list[tuple[str, tuple[int, ...], int, int]] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32

    def number(self, key: str, value: int, kind: int = U32) -> "RawModel":
        self.pairs[key] = (kind, struct.pack("<" + CODES[kind], value))
        return self

    def real(self, key: str, value: float) -> "RawModel":
        self.pairs[key] = (F32, struct.pack("<f", value))
        return self

    def text(self, key: str, value: str | bytes) -> "RawModel":
        self.pairs[key] = (STRING, packed_string(value))
        return self

    def array(self, key: str, kind: int, values: list[object]) -> "RawModel":
        self.pairs[key] = (ARRAY, packed_array(kind, values))
        return self

    def drop(self, key: str) -> "RawModel":
        del self.pairs[key]
        return self

    def vocabulary(self, tokens: list[str], types: list[int] | None = None) -> "RawModel":
        self.array("tokenizer.ggml.tokens", STRING, list(tokens))
        return self.array("tokenizer.ggml.token_type", I32, list(types or [1] * len(tokens)))

    def weights(self, *shapes: tuple[int, ...]) -> "RawModel":
        for shape in shapes:
            size = 4
            for length in shape:
                size *= length
            self.data += b"\0" * (-len(self.data) % self.alignment)
            self.tensors.append((f"t{len(self.tensors)}.weight", shape, 0, len(self.data)))
            self.data += bytes(size)
        return self

    def header(self) -> bytes:
        out = self.magic + struct.pack("<IQQ", self.version, len(self.tensors), len(self.pairs))
        for key, (kind, value) in self.pairs.items():
            out += packed_string(key) + struct.pack("<I", kind) + value
        for name, shape, kind, offset in self.tensors:
            out += packed_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        return out

    def bytes(self) -> bytes:
        header = self.header()
        return header + b"\0" * (-len(header) % self.alignment) + self.data


TOKENS = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xFF>", "\u2581a", "\u2581b", "c", "<|im_start|>", "<|im_end|>"]
TYPES = [2, 3, 3, 6, 6, 1, 1, 1, 3, 3]


def small_model() -> RawModel:
    model = RawModel().text("general.architecture", "llama").text("general.name", "Small")
    sizes = {"block_count": 2, "embedding_length": 8, "context_length": 64, "feed_forward_length": 16}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 1, "vocab_size": len(TOKENS)}
    for key, value in sizes.items():
        model.number(f"llama.{key}", value)
    model.real("llama.attention.layer_norm_rms_epsilon", 1e-5)
    model.text("tokenizer.ggml.model", "llama").vocabulary(TOKENS, TYPES)
    model.array("tokenizer.ggml.scores", F32, [-float(i) for i in range(len(TOKENS))])
    for name, token in {"bos": 1, "eos": 2, "unknown": 0}.items():
        model.number(f"tokenizer.ggml.{name}_token_id", token)
    model.text("tokenizer.chat_template", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    return model.weights((8, len(TOKENS)), (8,), (3, 5))


@pytest.fixture
def model() -> RawModel:
    return small_model()


@pytest.fixture
def other_model() -> RawModel:
    return small_model()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def write(content: RawModel | bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.bytes())
        return path

    return write
