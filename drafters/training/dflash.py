"""DFlash: a small model that guesses a whole block of tokens in one pass, from the target's own features.

Chen et al., arXiv 2602.06036; the training follows the example of SpecForge (github.com/sgl-project/SpecForge). The
inputs of some target layers are concatenated and projected (``fc``); every layer of the head computes its keys and
values of the text from the result. A block is the last token, then masks. Its rows attend to the text and to each other
in both directions, and each mask's row guesses the token at its place. Embedding and vocabulary matrix are the
target's, frozen. A head is stored as llama.cpp's architecture ``dflash``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.decoder import DecoderLayer, DecoderShape, Norm, frequencies, rotations
from slipstream.drafters.training.loop import weighted
from slipstream.models.gguf.parse import U32, Value
from slipstream.models.heads.block_head import ARCHITECTURE

BLOCK = 8  # rows of a block: the last token and seven masks
LAYERS = 2
_ANCHORS = 16  # blocks in a training window
_GAMMA = 4.0  # the loss weight at depth k is exp(-(k - 1) / this), since a guess after a wrong one is useless


def dflash_shape(target: DecoderShape) -> DecoderShape:
    """The target's widths, with the other settings that llama.cpp's graph of ``dflash`` needs."""
    return replace(target, layers=LAYERS, rope="halves", rope_factors=False, rope_scaling=1.0, qk_norm=True)


class DflashHead(nn.Module):
    """The head; embedding and vocabulary matrix are the target's, frozen."""

    every = 4  # only each such place is checked: a block costs a pass

    def __init__(
        self, target: DecoderShape, embedding: Tensor, output: Tensor, places: Sequence[int], mask: int
    ) -> None:
        """Draws the weights from torch's seed; ``places``: which points after the last hidden state it reads."""
        super().__init__()
        self.shape, self.mask, self.places = dflash_shape(target), mask, tuple(places)
        shape = self.shape
        self.fc = nn.Linear(len(self.places) * shape.width, shape.width, bias=False)
        self.enc = nn.ModuleDict({"output_norm": Norm(shape.width, shape.eps)})
        self.blk = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        self.embedding: Tensor
        self.vocabulary: Tensor
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("vocabulary", output, persistent=False)

    def forward(self, features: Tensor, ids: Tensor, chats: Tensor, anchors: Tensor) -> Tensor:
        """Logits of blocks, (batch, blocks, BLOCK, vocabulary); row k guesses the token k places after the anchor.

        Args:
            features: (batch, length, points * width), of the text.
            ids: (batch, length), the text.
            chats: (batch, length), number of the chat of each place.
            anchors: (batch, blocks), places of the blocks' first tokens; a block attends to the features before.
        """
        (batch, length), blocks, device = ids.shape, anchors.shape[1], ids.device
        shape, rows = self.shape, blocks * BLOCK
        places = (anchors[..., None] + torch.arange(BLOCK, device=device)).flatten(1)
        tokens = torch.full((batch, blocks, BLOCK), self.mask, device=device)
        tokens[..., 0] = ids.gather(1, anchors)
        per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, device)
        of_text, of_block = (rotations(at, per_position) for at in (torch.arange(length, device=device), places))
        before = torch.arange(length, device=device) < anchors[..., None]
        text = before & (chats[:, None] == chats.gather(1, anchors)[..., None])  # (batch, blocks, length)
        own = torch.eye(blocks, dtype=torch.bool, device=device).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        mask = torch.cat((text.repeat_interleave(BLOCK, 1), own.expand(batch, rows, rows)), -1)[:, None]
        joined = self.enc["output_norm"](self.fc(features))
        x = functional.embedding(tokens.flatten(1), self.embedding)
        for layer in self.blk:
            _, keys, values = layer.parts(joined, of_text)
            q, k, v = layer.parts(layer.attn_norm(x), of_block)
            x = layer.fed(x + layer.mixed(q, torch.cat((keys, k), 2), torch.cat((values, v), 2), mask))
        return functional.linear(self.output_norm(x), self.vocabulary).view(batch, blocks, BLOCK, -1)

    def loss(self, ids: Tensor, weights: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> Tensor:
        """Cross-entropy of blocks at random places of replies against the target's distribution."""
        length = last.shape[1]
        wanted = (weights[:, 1 : length - BLOCK + 2] >= 1).float() + 1e-6  # a block begins before a token of a reply
        anchors = torch.multinomial(wanted, min(_ANCHORS, wanted.shape[1]))
        guessed = anchors[..., None] + torch.arange(1, BLOCK, device=ids.device)  # places of the guessed tokens
        flat = guessed.flatten(1)
        same = (chats.gather(1, flat) == chats.gather(1, anchors).repeat_interleave(BLOCK - 1, 1)).float()
        decay = torch.exp(-torch.arange(BLOCK - 1, device=ids.device) / _GAMMA).repeat(anchors.shape[1])
        features = torch.cat([others[place] for place in self.places], -1)
        with torch.autocast(last.device.type, torch.bfloat16):
            with torch.no_grad():
                at = (flat - 1)[..., None].expand(-1, -1, last.shape[2])  # where the target predicts it
                soft = functional.linear(last.gather(1, at), self.vocabulary).float().softmax(-1)
            made = self(features, ids[:, :length], chats[:, :length], anchors)
        logits = made[:, :, 1:].float().flatten(1, 2)
        losses = functional.cross_entropy(logits.flatten(0, 1), soft.flatten(0, 1), reduction="none")
        return weighted(losses, ((weights.gather(1, flat) >= 1) * same * decay).flatten())

    def guesses(self, ids: Tensor, chats: Tensor, last: Tensor, *others: Tensor) -> NDArray[np.int64]:
        """Best ids of a block at every fourth place."""
        length = ids.shape[1] - 1
        features = torch.cat([others[place] for place in self.places], -1)
        found = np.full((len(ids), length, BLOCK - 1), -1, np.int64)
        for first in range(0, length, self.every * _ANCHORS):
            places = torch.arange(first, min(first + self.every * _ANCHORS, length), self.every, device=ids.device)
            made = self(features, ids[:, :-1], chats[:, :length], places.expand(len(ids), -1))[:, :, 1:]
            found[:, places.cpu().numpy()] = made.argmax(-1).cpu().numpy()
        return found


def tensors(model: DflashHead) -> dict[str, NDArray[Any]]:
    """The weights under llama.cpp's names."""
    return {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}


def metadata(model: DflashHead) -> dict[str, tuple[int, Value]]:
    """What a file needs besides the shape."""
    return {f"{ARCHITECTURE}.block_size": (U32, BLOCK), "tokenizer.ggml.mask_token_id": (U32, model.mask)}
