"""Headers of GGUF files as Hypothesis draws them: the framing is whole, and everything in it may be wrong."""

from typing import Any

from hypothesis import strategies as st
from tests.models.bends import ARCHITECTURES, EXTRA, PLAIN_KEYS, PRE, TOKENIZERS
from tests.models.conftest import BOOL, CODES, F32, I32, STRING, U32, U64, RawModel, small_model

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
