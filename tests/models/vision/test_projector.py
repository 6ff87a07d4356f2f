"""Images enter a model as llama.cpp's own evaluation has them, and can be cut, saved and drafted after."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from llama_cpp import mtmd_cpp as M
from tests.models.kinds import SEES, WIDTH, write_kind
from tests.models.tiny_mmproj import write_mmproj, write_picture

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN, Floats, Token, TokenTree
from slipstream.models.vision.image_file import pixels_of
from slipstream.models.vision.projector import Projector

PAIRS: Final = {"mlp": "llama", "gemma3": "gemma3", "qwen2vl_merger": SEES}
"""A text model for each kind of projector."""
BEFORE: Final = "the a of to"
AFTER: Final = " and in is it you that he"
OPTIONS: Final = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1, max_leaves=4)


@dataclass
class Seen:
    model: LlamaModel
    projector: Projector
    mmproj: Path
    pictures: list[Path]

    def image(self, number: int) -> list[Token]:
        path = self.pictures[number]
        return self.projector.tokens(path, sha256(path.read_bytes()).hexdigest())

    def text(self, *images: int) -> list[Token]:
        tokens = [*self.model.opening(), *self.model.tokenize(BEFORE, False)]
        for image in images:
            tokens += [*self.image(image), *self.model.tokenize(AFTER, False)]
        return tokens

    def target(self) -> LlamaTarget:
        target = LlamaTarget(self.model, OPTIONS)
        target.use_images(self.projector)
        return target

    def logits_after(self, tokens: list[Token]) -> Floats:
        with closing(self.target()) as target:
            return logits(target, tokens)


def logits(target: LlamaTarget, tokens: list[Token]) -> Floats:
    target.prefill(tokens[:-1])
    row: Floats = target.evaluate(tokens[-1]).logits[0].copy()
    target.keep([])
    return row


@pytest.fixture(scope="module", params=list(PAIRS))
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as opened:
        model = opened.enter_context(closing(LlamaModel(write_kind(folder / "model.gguf", PAIRS[request.param]))))
        mmproj = write_mmproj(folder / "mmproj.gguf", request.param, WIDTH)
        projector = opened.enter_context(closing(Projector(mmproj, model, 128, gpu=False, threads=1)))
        pictures = [write_picture(folder / "one.png", 1), write_picture(folder / "two.png", 2, (64, 96))]
        yield Seen(model, projector, mmproj, pictures)


def reference(seen: Seen, tokens_before: list[Token], picture: Path, tokens_after: list[Token]) -> Floats:
    """The last row of logits by ``mtmd_helper_eval_chunks`` alone, in a context of its own."""
    params = M.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.print_timings, params.warmup = False, 1, False, False
    context = M.mtmd_init_from_file(str(seen.mmproj).encode(), seen.model.pointer, params)
    llama = C.llama_init_from_model(seen.model.pointer, OPTIONS.params(512))
    pixels = pixels_of(picture.read_bytes(), "it")
    height, width, _ = pixels.shape
    bitmap = M.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
    chunks = M.mtmd_input_chunks_init()
    part = M.mtmd_input_part(None, bitmap)
    assert not M.mtmd_tokenize_from_parts(
        context, chunks, (ctypes.POINTER(M.mtmd_input_part) * 1)(ctypes.pointer(part)), 1, False
    )
    past = C.llama_pos(0)
    _decode(llama, tokens_before, 0)
    code = M.mtmd_helper_eval_chunks(context, llama, chunks, len(tokens_before), 0, 128, False, ctypes.byref(past))
    assert code == 0
    _decode(llama, tokens_after, past.value)
    row = np.ctypeslib.as_array(C.llama_get_logits_ith(llama, len(tokens_after) - 1), (seen.model.n_vocab,)).copy()
    M.mtmd_input_chunks_free(chunks)
    M.mtmd_bitmap_free(bitmap)
    C.llama_free(llama)
    M.mtmd_free(context)
    return row


def _decode(llama: Any, tokens: list[Token], position: int) -> None:
    batch = C.llama_batch_init(len(tokens), 0, 1)
    for row, token in enumerate(tokens):
        batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position + row, 1
        batch.seq_id[row][0], batch.logits[row] = 0, row == len(tokens) - 1
    batch.n_tokens = len(tokens)
    assert C.llama_decode(llama, batch) == 0
    C.llama_batch_free(batch)


def test_the_first_logits_are_those_of_llama_cpp(seen: Seen) -> None:
    before = [*seen.model.opening(), *seen.model.tokenize(BEFORE, False)]
    after = seen.model.tokenize(AFTER, False)
    rows = []
    for number, picture in enumerate(seen.pictures):
        own = seen.logits_after([*before, *seen.image(number), *after])
        assert np.abs(own - reference(seen, before, picture, after)).max() < 1e-3
        rows.append(own)
    assert np.abs(rows[0] - rows[1]).max() > 0.01, "the picture changes nothing, so this run shows nothing"


def test_an_image_is_read_once_and_never_cut_apart(seen: Seen) -> None:
    tokens = seen.text(0, 1)
    wanted = seen.logits_after(tokens)
    first = next(at for at, token in enumerate(tokens) if token < 0)
    last = max(at for at, token in enumerate(tokens) if token < 0)
    with closing(seen.target()) as target:
        assert np.array_equal(logits(target, tokens), wanted)
        for cut in (first + 1, last, last + 1, last + 3, first):
            target.rewind(cut)
            assert len(target.tokens) <= cut
            assert not target.tokens or len(target.tokens) > last or target.tokens[-1] >= 0
            read = target.prefill(tokens[:-1])
            assert read.complete and read.reused + read.decoded == len(tokens) - 1
            row = target.evaluate(tokens[-1]).logits[0].copy()
            target.keep([])
            assert np.abs(row - wanted).max() < 1e-3, f"cut at {cut}"


def test_another_image_in_the_same_place_is_another_text(seen: Seen) -> None:
    one, two = seen.text(0), seen.text(1)
    with closing(seen.target()) as target:
        logits(target, one)
        assert np.abs(logits(target, two) - seen.logits_after(two)).max() < 1e-3
        assert np.abs(logits(target, one) - seen.logits_after(one)).max() < 1e-3


def test_trees_behind_an_image_give_the_rows_of_a_chain(seen: Seen) -> None:
    tokens = seen.text(0)
    tree = TokenTree((5, 6, 7, 8, 9), (-1, 0, 0, -1, 3))
    paths = [[0], [0, 1], [0, 2], [3], [3, 4]]
    chains = [seen.logits_after([*tokens, *(tree.tokens[node] for node in path)]) for path in paths]
    for path in ([0, 2], [3, 4]):
        with closing(seen.target()) as target:
            target.prefill(tokens[:-1])
            rows = target.evaluate(tokens[-1], tree).logits.copy()
            for row, chain in zip(rows[1:], chains, strict=True):
                assert np.abs(row - chain).max() < 1e-3
            target.keep(path)
            after = [*tokens, *(tree.tokens[node] for node in path)]
            assert list(target.tokens) == after
            again = target.evaluate(11, TokenTree((12, 13), (-1, -1))).logits.copy()
            assert np.abs(again[0] - seen.logits_after([*after, 11])).max() < 1e-3
            assert np.abs(again[2] - seen.logits_after([*after, 11, 13])).max() < 1e-3


def test_a_kept_state_goes_on_as_if_it_had_never_stopped(seen: Seen) -> None:
    tokens = seen.text(0, 1)
    with closing(seen.target()) as target:
        target.prefill(tokens)
        state = target.save()
        wanted = target.evaluate(7).logits[0].copy()
    with closing(seen.target()) as target:
        target.restore(state, tokens)
        assert list(target.tokens) == tokens
        assert np.abs(target.evaluate(7).logits[0] - wanted).max() < 1e-5


def test_a_kept_state_with_an_unknown_image_is_refused(seen: Seen) -> None:
    tokens = seen.text(0)
    with closing(seen.target()) as target:
        target.prefill(tokens)
        state = target.save()
        with pytest.raises(SlipstreamError, match="not there any more"):
            target.restore(state, [token - 1 if token < -1 else token for token in tokens])
        assert not target.tokens and target.prefill(tokens).complete


def test_hidden_states_are_handed_out_around_an_image(seen: Seen) -> None:
    tokens = seen.text(0)
    plain = seen.logits_after(tokens)
    with closing(seen.target()) as target:
        target.request(frozenset({LAST_HIDDEN}))
        read = list[int]()
        target.prefill(tokens[:-1], lambda chunk: read.append(len(chunk.hidden.get(LAST_HIDDEN, ()))))
        assert sum(read) == sum(token >= 0 for token in tokens[:-1])
        found = target.evaluate(tokens[-1])
        assert found.hidden[LAST_HIDDEN].shape == (1, WIDTH)
        assert np.abs(found.logits[0] - plain).max() < 1e-3


def test_a_cancelled_image_leaves_the_text_before_it(seen: Seen) -> None:
    tokens = seen.text(0, 1)
    with closing(seen.target()) as target:
        asked = stop = 0

        def cancelled() -> bool:
            nonlocal asked
            asked += 1
            return asked > stop

        for limit in (1, 2, 40, 90, 150, 250):
            target.rewind(0)
            asked, stop = 0, limit
            read = target.prefill(tokens[:-1], cancelled=cancelled)
            kept = list(target.tokens)
            assert kept == tokens[: len(kept)] and (read.complete or len(kept) < len(tokens) - 1)
            assert not kept or kept[-1] >= 0 or tokens[len(kept)] >= 0, "it ends inside an image"
        stop = 10**9
        assert np.abs(logits(target, tokens) - seen.logits_after(tokens)).max() < 1e-3
