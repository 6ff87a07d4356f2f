from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf import Header, read_header

if TYPE_CHECKING:
    from tests.models.conftest import RawModel

INTEGERS = [0, 1, 2, 3, 7, 63, 64, 255, 512, 513, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
LONGS = [0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40, 512, 513]
REALS = [0.0, -1.0, float("inf"), float("nan"), 1e38]
TEXTS = [
    b"",
    b"llama",
    b"mamba",
    b"bert",
    b"t5",
    b"rwkv",
    b"gpt2",
    b"plamo2",
    b"none",
    b"x" * 5000,
    b"\xff\xfe",
    b"{{ x",
]
EXTRA = [
    "expert_count",
    "expert_used_count",
    "nextn_predict_layers",
    "rope.dimension_count",
    "attention.sliding_window",
]


def bend_bytes(content: bytes, header: int, dice: random.Random) -> bytes:
    """Breaks single places, most of them in the header; cuts one file in twenty short."""
    out = bytearray(content)
    for _ in range(dice.choice([1, 2, 4])):
        place = dice.randrange(min(700, header)) if dice.random() < 0.4 else dice.randrange(header)
        match dice.randrange(4):
            case 0:
                out[place] ^= 1 << dice.randrange(8)
            case 1:
                out[place] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                out[place : place + 8] = struct.pack("<Q", dice.choice(LONGS))
            case _:
                out[place : place + 4] = struct.pack("<I", dice.randrange(14))
    return bytes(out[: dice.randrange(len(out))] if dice.random() < 0.05 else out)


def bend_values(model: RawModel, dice: random.Random) -> bytes:
    """Keeps the framing whole and changes one or two values."""
    for _ in range(dice.choice([1, 2])):
        key = dice.choice(sorted(model.pairs))
        kind, value = model.pairs[key]
        match kind:
            case 4:
                model.number(key, dice.choice(INTEGERS))
            case 6:
                model.real(key, dice.choice(REALS))
            case 8:
                model.text(key, dice.choice(TEXTS))
            case _:
                element, count = struct.unpack_from("<IQ", value)
                narrow, none = struct.pack("<IQ", 0, count) + bytes(count), struct.pack("<IQ", element, 0)
                texts = struct.pack("<IQ", 8, count) + (struct.pack("<Q", 6) + b"<0x-1>") * count
                model.pairs[key] = (kind, dice.choice([narrow, none, texts, value[:-1], value + b"\0"]))
        match dice.randrange(6):
            case 0:
                model.drop(dice.choice(sorted(model.pairs)))
            case 1:
                model.number(f"llama.{dice.choice(EXTRA)}", dice.choice(INTEGERS))
            case 2:
                model.number("general.alignment", dice.choice(INTEGERS))
    return model.bytes()


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_mutants_are_read_or_refused(
    first: int, fresh_model: Callable[[], RawModel], save: Callable[..., Path]
) -> None:
    for seed in range(first, first + 50):
        dice, model = random.Random(seed), fresh_model()
        content = bend_values(model, dice) if seed % 2 else bend_bytes(model.bytes(), len(model.header()), dice)
        path = save(content)
        started = perf_counter()
        try:
            look_around(read_header(path), len(content))
        except ModelFileError as error:
            assert error.title.isprintable() and str(path) in error.title
        assert perf_counter() - started < 1


def look_around(header: Header, size: int) -> None:
    """Uses what others use of a header."""
    assert len(header.tokens) == header.n_vocab or not header.tokens
    assert header.add_bos in (True, False) and header.add_eos in (True, False)
    for token in (header.bos, header.eos):
        assert token is None or 0 <= token < len(header.tokens)
    assert header.data_offsets[0] + header.weight_bytes <= size


def test_mutants_are_of_both_kinds(model: RawModel, save: Callable[..., Path]) -> None:
    good = 0
    for seed in range(60):
        try:
            read_header(save(bend_bytes(model.bytes(), len(model.header()), random.Random(seed))))
        except ModelFileError:
            continue
        good += 1
    assert 0 < good < 60


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=150, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path: Path, content: bytes, magic: bool) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes((b"GGUF\3\0\0\0" if magic else b"") + content)
    with pytest.raises(ModelFileError):
        read_header(path)
