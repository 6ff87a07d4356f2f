"""Model files that are wrong: in single bytes, or in one or two entries of a file that is whole otherwise."""

import random
import struct
from math import prod
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from tests.models.bends import ARCHITECTURES, BENDS, EXTRA, LONGS, PLAIN_KEYS, PRE, TOKENIZERS
from tests.models.conftest import ARRAY, BOOL, CODES, F32, I32, STRING, U32, U64, RawModel, small_model
from tests.models.kinds import KINDS, write_kind

from slipstream.models.gguf.parse import TENSOR_TYPES

DRAFT: Final = Path(__file__).parents[2] / "models" / "bundled" / "slipstream-mini-draft-q8_0.gguf"


def taken_apart(content: bytes) -> RawModel:
    model, at = RawModel(version=struct.unpack_from("<I", content, 4)[0]), 24
    n_tensors, n_pairs = struct.unpack_from("<QQ", content, 8)

    def text() -> str:
        nonlocal at
        length = struct.unpack_from("<Q", content, at)[0]
        at += 8 + length
        return content[at - length : at].decode()

    for _ in range(n_pairs):
        key, kind = text(), struct.unpack_from("<I", content, at)[0]
        at += 4
        start = at
        if kind == STRING:
            text()
        elif kind == ARRAY:
            element, count = struct.unpack_from("<IQ", content, at)
            at += 12
            for _ in range(count):
                at += (
                    8 + struct.unpack_from("<Q", content, at)[0]
                    if element == STRING
                    else struct.calcsize(CODES[element])
                )
        else:
            at += struct.calcsize(CODES[kind])
        model.pairs[key] = (kind, content[start:at])
    for _ in range(n_tensors):
        name, n_dims = text(), struct.unpack_from("<I", content, at)[0]
        shape = struct.unpack_from(f"<{n_dims}Q", content, at + 4)
        kind, offset = struct.unpack_from("<IQ", content, at + 4 + 8 * n_dims)
        at += 16 + 8 * n_dims
        model.tensors.append((name, shape, kind, offset))
    model.data = content[-(-at // 32) * 32 :]
    return model


def bend_bytes(content: bytes, header: int, dice: random.Random) -> bytes:
    """Breaks single places, most of them in the header; cuts one file in twenty short."""
    out = bytearray(content)
    for _ in range(dice.choice([1, 2, 4])):
        chance = dice.random()
        low, high = (
            (0, min(700, header)) if chance < 0.4 else (max(0, header - 3600), header) if chance < 0.8 else (0, header)
        )
        place = dice.randrange(low, high)
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


def bend_structure(model: RawModel, dice: random.Random) -> bytes:
    """Changes one or two entries; the framing around them stays whole, mostly."""
    for _ in range(dice.choice([1, 1, 2])):
        dice.choices([bend for bend, _ in BENDS], [weight for _, weight in BENDS])[0](model, dice)
    if dice.random() < 0.7:
        lay_out(model)
    out = model.bytes()
    if dice.random() < 0.05:  # a count that is wrong
        place, value = dice.choice([8, 16]), dice.choice([*LONGS, len(model.tensors) + 1, len(model.pairs) - 1])
        return out[:place] + struct.pack("<Q", value) + out[place + 8 :]
    return out


def lay_out(model: RawModel) -> None:
    """Puts the tensors one behind the other, so that their places are right whatever their sizes say."""
    place, laid = 0, []
    for name, shape, kind, _ in model.tensors:
        _, per_block, block_bytes = TENSOR_TYPES.get(kind, ("", 1, 4))
        laid.append((name, shape, kind, place))
        size = prod(shape) // per_block * block_bytes
        place += -(-size // model.alignment) * model.alignment
    if place < 32 << 20:
        model.tensors = laid
        model.data = model.data[:place].ljust(place, b"\0")


def mutant(content: bytes, seed: int) -> bytes:
    """One wrong file made of a good one: of an even seed in single bytes, of an odd one in its structure."""
    dice, model = random.Random(seed), taken_apart(content)
    return bend_structure(model, dice) if seed % 2 else bend_bytes(content, len(model.header()), dice)


def good_files(folder: Path) -> list[bytes]:
    """One file of each kind, half of them quantized, and one whose tokenizer has merges."""
    made = [write_kind(folder / f"{kind}.gguf", kind, q8_0=n % 2 == 1) for n, kind in enumerate(KINDS)]
    return [path.read_bytes() for path in [*made, DRAFT]]


_BITS = {U32: 32, I32: 31, U64: 64, 0: 8, 1: 7, 2: 16, 3: 15, 11: 63}
_TEXT = st.one_of(st.sampled_from([*ARCHITECTURES, *TOKENIZERS, *PRE]), st.text(max_size=20))
_KEYS = st.one_of(
    st.sampled_from(
        [
            *(f"llama.{name}" for name in EXTRA),
            *PLAIN_KEYS,
            *("general.architecture", "general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre"),
            *("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"),
            *("tokenizer.chat_template", "tokenizer.ggml.precompiled_charsmap", "slipstream.inflate.vocabulary"),
        ]
    ),
    st.text(max_size=12),
)


@st.composite
def headers(draw: Any) -> bytes:
    """A whole file: a good one with pairs added or replaced and a tensor changed, or one of drawn pairs only."""
    model = small_model() if draw(st.booleans()) else RawModel().text("general.architecture", "llama")
    for _ in range(draw(st.integers(0, 4))):
        _pair(draw, model, draw(_KEYS))
    if model.tensors and draw(st.booleans()):
        at = draw(st.integers(0, len(model.tensors) - 1))
        name, shape, kind, offset = model.tensors[at]
        model.tensors[at] = (
            draw(st.one_of(st.just(name), st.text(max_size=70))),
            tuple(draw(st.one_of(st.just(list(shape)), st.lists(st.integers(0, 2**64 - 1), max_size=5)))),
            draw(st.one_of(st.just(kind), st.integers(0, 50))),
            draw(st.one_of(st.just(offset), st.integers(0, 2**64 - 1))),
        )
    content = model.bytes()
    if draw(st.integers(0, 9)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    return content


def _pair(draw: Any, model: RawModel, key: str) -> None:
    kind = draw(st.sampled_from([STRING, F32, BOOL, *_BITS, "array", 99]))
    if kind == STRING:
        model.text(key, draw(st.one_of(_TEXT, st.binary(max_size=20))))
    elif kind == F32:
        model.real(key, draw(st.floats(width=32)))
    elif kind == "array":
        element = draw(st.sampled_from([STRING, U32, I32, F32, 0]))
        values = _TEXT if element == STRING else st.floats(width=32) if element == F32 else st.integers(0, 255)
        model.array(key, element, draw(st.lists(values, max_size=12)))
    elif kind == 99:
        model.pairs[key] = (draw(st.integers(0, 99)), draw(st.binary(max_size=24)))
    elif kind == BOOL:
        model.number(key, draw(st.integers(0, 255)), BOOL)
    else:
        assert kind in CODES
        model.number(key, draw(st.integers(0, 2 ** _BITS[kind] - 1)), kind)
