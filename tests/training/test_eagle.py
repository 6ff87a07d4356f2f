"""A trained adapter, cut into a drafter, computes in llama.cpp what it computes in torch."""

import ctypes
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray
from tests.models.adapters import layer_inputs, logits_of, random_pair
from tests.training.gguf_file import WORDS, random_decoder, write_model
from tests.training.llama_file import LlamaFile

from slipstream.drafters.training import eagle
from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.decoder import Decoder, DecoderShape, frequencies, rotations
from slipstream.drafters.training.features import low_middle_high
from slipstream.drafters.training.from_gguf import TargetMatrices, dequantized, shape_of
from slipstream.drafters.training.gguf_head import write_gguf_head
from slipstream.drafters.training.kangaroo import KangarooAdapter, tensors
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.file import read_heads, write_heads
from slipstream.models.heads.self_draft import cut
from slipstream.models.llama.library import model_params

SHAPE = DecoderShape(
    width=64, layers=6, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=WORDS, context=256, tied=False
)
IDS = torch.arange(5, WORDS, 7)  # the tokens that the head can guess


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_decoder(SHAPE)


@pytest.fixture(scope="module")
def head(target: Decoder) -> eagle.EagleHead:
    torch.manual_seed(2)
    embedding, output = target.token_embd.weight.detach(), target.output.weight.detach()
    model = eagle.EagleHead(SHAPE, embedding, output[IDS], IDS, (0, 1, 2))
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.ndim == 1), std=0.1)
    return model.eval()


def test_unrolling_equals_drafting_one_token_after_the_other(head: eagle.EagleHead) -> None:
    """Place i of step s must compute what a draft that began at place i - s computes for its token s."""
    length, steps = 12, 4
    torch.manual_seed(3)
    ids, features = torch.randint(20, 600, (1, length)), torch.randn(1, length, 3 * SHAPE.width)
    chats, rotation = torch.ones(1, length, dtype=torch.long), head.rotation(torch.arange(length))
    with torch.no_grad():
        made = head.unrolled(features, ids, chats, steps)
        for begin in (3, 6):
            block, start = head.blk[0], begin + 1
            cos, sin = rotation
            g = head.fc(features[:, :start])
            read = torch.cat((block.attn_norm(head.embedding[ids[:, :start]]), block.attn_norm_2(g)), -1)
            _, keys, values = block.parts(read, (cos[:start], sin[:start]))
            last = g[:, -1:]
            for step in range(steps):
                place = begin + step
                here = (cos[place : place + 1], sin[place : place + 1])
                both = torch.cat(
                    (block.attn_norm(head.embedding[ids[:, place : place + 1]]), block.attn_norm_2(last)), -1
                )
                q, k, v = block.parts(both, here)
                if step:
                    keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
                sees = torch.ones(1, 1, 1, keys.shape[2], dtype=torch.bool)
                last = block.fed(last + block.mixed(q, keys, values, sees))
                torch.testing.assert_close(made[step][:, place], last[:, 0], atol=1e-4, rtol=1e-4)


def test_llama_cpp_computes_the_same_head(target: Decoder, head: eagle.EagleHead, tmp_path: Path) -> None:
    write_model(tmp_path / "t.gguf", target, words=True)
    write_gguf_head(
        tmp_path / "e.gguf", eagle.ARCHITECTURE, head.shape, eagle.tensors(head),
        target=read_header(tmp_path / "t.gguf"), layers=low_middle_high(SHAPE.layers), more=eagle.metadata(head),
        text="answers", found=Acceptance((0.5, 0.25), (8, 4)), kind=gguf.GGMLQuantizationType.F32,
    )  # fmt: skip
    torch.manual_seed(4)
    length = 9
    ids, features = torch.randint(20, 600, (1, length)), torch.randn(1, length, 3 * SHAPE.width)
    with torch.no_grad():
        chats = torch.ones(1, length, dtype=torch.long)
        ours = head.logits(head.unrolled(features, ids, chats, 1)[0])[0].numpy()
    with LlamaFile(tmp_path / "t.gguf") as file:
        theirs = _llama_logits(file.context, tmp_path / "e.gguf", ids[0].tolist(), features[0].numpy())
    np.testing.assert_allclose(theirs[:, IDS], ours, atol=2e-3)
    others = np.setdiff1d(np.arange(WORDS), IDS)
    assert theirs[:, others].max() < ours.min() - 100  # never the best


def _llama_logits(target: object, path: Path, ids: list[int], features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Encodes features and decodes (token, feature) pairs, as llama.cpp's own drafting does."""
    lib = llama_cpp.llama_cpp
    model = lib.llama_model_load_from_file(str(path).encode(), model_params())
    assert model
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    params.flash_attn_type, params.type_k, params.type_v = 0, 0, 0
    params.ctx_other = target
    context = lib.llama_init_from_model(model, params)
    assert context
    llama_cpp_ext.llama_set_embeddings_nextn(context, True, True)
    rows, width = features.shape
    batch = lib.llama_batch_init(rows, width, 1)
    batch.n_tokens = rows
    np.ctypeslib.as_array(batch.embd, (rows, width))[:] = features
    for i in range(rows):
        batch.pos[i], batch.n_seq_id[i], batch.logits[i] = i, 1, 1
        batch.seq_id[i][0] = 0
    assert lib.llama_encode(context, batch) == 0
    narrowed = np.ctypeslib.as_array(llama_cpp_ext.llama_get_embeddings_nextn(context), (rows, SHAPE.width)).copy()
    pairs, kept = lib.llama_batch_ext_init(context), []
    for i, token in enumerate(ids):
        row = np.ascontiguousarray(narrowed[i])
        kept.append(row)
        at = lib.llama_batch_ext_add_token(pairs, 0, token)
        pointer = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        lib.llama_batch_ext_set_embd_token(pairs, at, lib.llama_embd(pointer, 1, SHAPE.width))
        lib.llama_batch_ext_set_pos(pairs, at, (lib.llama_pos * 1)(i))
        lib.llama_batch_ext_set_output_logits(pairs, at, True)
    assert lib.llama_process(context, lib.LLAMA_PROCESS_TYPE_DECODE, pairs) == 0
    found = np.ctypeslib.as_array(lib.llama_get_logits(context), (rows, SHAPE.vocabulary)).copy()
    lib.llama_batch_ext_free(pairs)
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found


EXIT, LENGTH = 2, 40


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_cut_computes_what_is_trained(tmp_path: Path, architecture: str) -> None:
    pair = random_pair(tmp_path, architecture, EXIT)
    header = read_header(pair.target)
    shape = shape_of(header)
    given = TargetMatrices.of(header, dequantized)
    per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, torch.device("cpu"))
    if given.rope_factors is not None:
        per_position = per_position / given.rope_factors
    torch.manual_seed(0)
    adapter = KangarooAdapter(shape, given.output, rotations(torch.arange(LENGTH), per_position), 0)
    for values in adapter.parameters():
        torch.nn.init.normal_(values, mean=float(values.ndim == 1), std=0.2)
    write_heads(pair.adapter, read_heads(pair.adapter).info, tensors(adapter), "f32")
    cut(*pair, tmp_path / "cut.gguf")
    tokens = list(range(5, 5 + LENGTH))
    hidden = torch.from_numpy(layer_inputs(pair.target, EXIT, tokens))[None]
    with torch.no_grad():
        chats = torch.zeros(1, LENGTH + 1, dtype=torch.long)
        wanted = adapter(hidden, chats[:, :-1])[0].numpy()
        guesses = adapter.guesses(chats, chats, hidden, hidden)[0]
    best = wanted.argmax(-1).tolist()
    assert guesses[:, :3].tolist() == [[*best[at : at + 3], -1, -1][:3] for at in range(LENGTH)]
    found = logits_of(tmp_path / "cut.gguf", tokens)
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)
