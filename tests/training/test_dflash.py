from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.training.gguf_file import WORDS, random_decoder, write_model

from slipstream.drafters.training import dflash
from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.decoder import Decoder, DecoderShape
from slipstream.drafters.training.features import low_middle_high
from slipstream.drafters.training.gguf_head import write_gguf_head
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.block_head import ARCHITECTURE, block_head, unfit_block
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import BlockContext
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions

SHAPE = DecoderShape(width=64, layers=6, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=WORDS, context=256)
LENGTH = 20


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_decoder(SHAPE)


@pytest.fixture(scope="module")
def head(target: Decoder) -> dflash.DflashHead:
    embedding = target.token_embd.weight.detach()
    model = dflash.DflashHead(SHAPE, embedding, embedding, (0, 1, 2), mask=3)
    torch.manual_seed(2)
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.ndim == 1), std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def text() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, ids and chats of a window that holds two chats, the second of which begins at place 6."""
    torch.manual_seed(3)
    chats = torch.ones(1, LENGTH, dtype=torch.long)
    chats[:, 6:] = 2
    return torch.randn(1, LENGTH, 3 * SHAPE.width), torch.randint(20, 600, (1, LENGTH)), chats


def test_a_block_sees_its_own_chat_before_it_and_no_other_block(
    head: dflash.DflashHead, text: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    features, ids, chats = text

    def blocks(features: torch.Tensor, ids: torch.Tensor, *anchors: int) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = head(features, ids, chats, torch.tensor([anchors]))
        return found[0]

    alone, beside = blocks(features, ids, 11), blocks(features, ids, 8, 11, 12)
    torch.testing.assert_close(alone[0], beside[1])
    for place, seen in ((5, False), (6, True), (10, True), (11, False), (14, False)):
        other = features.clone()
        other[:, place] += 1
        assert bool((blocks(other, ids, 11) - alone).abs().max() > 1e-3) is seen, place
    for place, seen in ((10, False), (11, True), (12, False)):
        changed = ids.clone()
        changed[:, place] = 21 if int(ids[0, place]) != 21 else 22
        assert bool((blocks(features, changed, 11) - alone).abs().max() > 1e-3) is seen, place


def test_llama_cpp_computes_the_same_head(
    target: Decoder, head: dflash.DflashHead, text: tuple[torch.Tensor, torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    features, ids, chats = text
    write_model(tmp_path / "t.gguf", target, words=True)
    write_gguf_head(
        tmp_path / "d.gguf", ARCHITECTURE, head.shape, dflash.tensors(head), target=read_header(tmp_path / "t.gguf"),
        layers=low_middle_high(SHAPE.layers), more=dflash.metadata(head), text="answers",
        found=Acceptance((0.5, 0.25), (8, 4)), kind=gguf.GGMLQuantizationType.F32,
    )  # fmt: skip
    with torch.no_grad():
        ours = head(features[:, 6:], ids[:, 6:], chats[:, 6:], torch.tensor([[5]]))[0, 0].numpy()
    header = read_header(tmp_path / "d.gguf")
    options = ContextOptions(n_ctx=64, kv="f32", flash=False, threads=1, max_rows=8, max_leaves=1)
    with (
        closing(LlamaModel(tmp_path / "t.gguf")) as model,
        closing(LlamaTarget(model, options)) as opened,
        closing(LlamaModel(tmp_path / "d.gguf")) as own,
    ):
        assert not unfit_block(header, opened.abilities, model.header)
        context = BlockContext(opened, own, block_head(header))
        with closing(context):
            context.inject(features[0, 6:11].numpy())
            theirs = context.draft(int(ids[0, 11])).logits.copy()
    np.testing.assert_allclose(theirs, ours, atol=5e-3)
    assert theirs.argmax(-1).tolist() == ours.argmax(-1).tolist()
