"""A decoder that computes exactly what llama.cpp's ``llama`` and ``qwen3`` do, also for packed chats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Pairing = Literal["pairs", "halves"]
"""Which numbers of a head rotate together: 2i and 2i + 1 (``llama``), or i and i + head_size / 2 (``qwen3``)."""
Rotation = tuple[Tensor, Tensor]  # cosines and sines, each (length, head_size / 2) or (batch, length, head_size / 2)


class RopeFactors(nn.Module):
    """Divides each frequency by a factor, as Llama 3 does for the slow ones (in the file: ``rope_freqs.weight``)."""

    weight: Tensor

    def __init__(self, head_size: int) -> None:
        """Starts with ones, which change nothing."""
        super().__init__()
        self.register_buffer("weight", torch.ones(head_size // 2))

    def forward(self, frequencies: Tensor) -> Tensor:
        """Maps (head_size / 2) to the same shape."""
        return frequencies / self.weight.float()


def frequencies(head_size: int, base: float, scaling: float, device: torch.device) -> Tensor:
    """Angle per position of each pair, (head_size / 2), radians (Su et al., arXiv 2104.09864).

    Args:
        base: of the geometric series of wavelengths.
        scaling: linear scaling: every position is divided by it (Chen et al., arXiv 2306.15595).
    """
    steps = torch.arange(0, head_size, 2, dtype=torch.float32, device=device) / head_size
    return base**-steps / scaling


def rotations(positions: Tensor, per_position: Tensor) -> Rotation:
    """Cosines and sines of the angles at these positions, (length,) or (batch, length)."""
    angles = positions[..., None].float() * per_position
    return angles.cos(), angles.sin()


def shorter(rotation: Rotation, length: int) -> Rotation:
    """The rotations of the first ``length`` places."""
    return rotation[0][:length], rotation[1][:length]


def rotate(x: Tensor, rotation: Rotation, pairing: Pairing) -> Tensor:
    """Turns all pairs of numbers of (batch, length, heads, size) by their angles: (batch, heads, length, size)."""
    cos, sin = (part.unsqueeze(-2) for part in rotation)
    if pairing == "pairs":
        first, second = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    else:
        first, second = (half.float() for half in x.chunk(2, dim=-1))
        turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(x.dtype).transpose(1, 2)


def chat_mask(chats: Tensor) -> Tensor:
    """True where a row may attend, (batch, 1, length, length): at itself and at earlier rows of its own chat.

    Args:
        chats: number of the chat that each id belongs to, (batch, length).
    """
    length = chats.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=chats.device).tril()
    same = chats[:, :, None] == chats[:, None, :]
    return (same & earlier).unsqueeze(1)


@dataclass(frozen=True)
class DecoderShape:
    """Sizes and kinds of a model's parts."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    context: int
    rope_base: float = 10000.0  # base of the rotary wavelengths
    eps: float = 1e-5
    rope: Pairing = "pairs"  # which numbers of a head rotate together
    rope_scaling: float = 1.0  # every position is divided by it
    rope_factors: bool = False  # whether the frequencies have factors of their own (``rope_freqs.weight``)
    qk_norm: bool = False  # whether each head's query and key are normalized before they rotate
    tied: bool = True  # whether the embedding is also the output matrix


class Norm(nn.Module):
    """Root mean square norm with a learned scale (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, width) to the same shape."""
        dtype = torch.promote_types(x.dtype, self.weight.dtype)  # autocast hands bfloat16 to float32 weights
        return functional.rms_norm(x.to(dtype), self.weight.shape, self.weight.to(dtype), self.eps)


class Attention(nn.Module):
    """Attention shaped like a model's own, without the addition to the residual stream."""

    def __init__(self, shape: DecoderShape, reads: int = 0) -> None:
        """The output starts at zero, so that new attention changes nothing; ``reads`` 0 is the model's width."""
        super().__init__()
        width, kv = shape.width, shape.kv_heads * shape.head_size
        reads = reads or width
        self.shape = shape
        self.attn_q_norm = Norm(shape.head_size, shape.eps) if shape.qk_norm else nn.Identity()
        self.attn_k_norm = Norm(shape.head_size, shape.eps) if shape.qk_norm else nn.Identity()
        self.attn_q = nn.Linear(reads, shape.heads * shape.head_size, bias=False)
        self.attn_k = nn.Linear(reads, kv, bias=False)
        self.attn_v = nn.Linear(reads, kv, bias=False)
        self.attn_output = nn.Linear(shape.heads * shape.head_size, width, bias=False)
        nn.init.zeros_(self.attn_output.weight)

    def parts(self, y: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows (batch, length, reads): each (batch, heads, length, head_size)."""
        batch, length, _ = y.shape
        q = self.attn_q_norm(self.attn_q(y).view(batch, length, self.shape.heads, -1))
        k = self.attn_k_norm(self.attn_k(y).view(batch, length, self.shape.kv_heads, -1))
        q, k = (rotate(part, rotation, self.shape.rope) for part in (q, k))
        v = self.attn_v(y).view(batch, length, self.shape.kv_heads, -1).transpose(1, 2)
        groups = self.shape.heads // self.shape.kv_heads
        return q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The output of attention, (batch, length, width); the mask is True where a row may attend."""
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.attn_output(attended.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1))
        return out


class DecoderLayer(Attention):
    """Attention and gated feed-forward network, each after a norm and added to the residual stream."""

    def __init__(self, shape: DecoderShape, reads: int = 0) -> None:
        """Output projections start at zero, so that a new layer changes nothing; arguments as for ``Attention``."""
        super().__init__(shape, reads)
        self.attn_norm = Norm(shape.width, shape.eps)
        self.ffn_norm = Norm(shape.width, shape.eps)
        self.ffn_gate = nn.Linear(shape.width, shape.ffn, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.ffn, bias=False)
        self.ffn_down = nn.Linear(shape.ffn, shape.width, bias=False)
        nn.init.zeros_(self.ffn_down.weight)

    def forward(self, x: Tensor, rotation: Rotation, mask: Tensor) -> Tensor:
        """Maps the residual stream (batch, length, width) to the next layer's input.

        Args:
            mask: True where a row may attend, (batch, 1, length, length).
        """
        return self.fed(x + self.mixed(*self.parts(self.attn_norm(x), rotation), mask))

    def fed(self, x: Tensor) -> Tensor:
        """Adds the output of the feed-forward network to the residual stream."""
        y = self.ffn_norm(x)
        out: Tensor = x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return out


class Decoder(nn.Module):
    """Embedding, layers, norm, and the output matrix, which may be the embedding."""

    def __init__(self, shape: DecoderShape) -> None:
        """Draws the weights from torch's current seed."""
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        if not shape.tied:
            self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.rope_freqs = RopeFactors(shape.head_size) if shape.rope_factors else nn.Identity()
        nn.init.normal_(self.token_embd.weight, std=0.02)

    def hidden(self, ids: Tensor, chats: Tensor | None = None) -> Tensor:
        """Last hidden states, after the norm, of windows of text, (batch, length, width).

        Args:
            ids: (batch, length).
            chats: number of the chat that each id belongs to, (batch, length); None if all belong to one.
        """
        chats = torch.zeros_like(ids) if chats is None else chats
        return self.run(self.token_embd(ids), torch.arange(ids.shape[1], device=ids.device), chat_mask(chats))

    def run(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Last hidden states, after the norm, of rows that need not be consecutive tokens, (batch, length, width).

        Args:
            x: embeddings, (batch, length, width).
            positions: of each row in its text, (length,) or (batch, length); rows may share one.
            mask: True where a row may attend, (batch, 1, length, length).
        """
        return self.states(x, positions, mask, ())[0]

    def states(self, x: Tensor, positions: Tensor, mask: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """As ``run``, with the inputs of some layers: the last hidden state, then those."""
        rotation, inputs = self.rotation(positions), dict[int, Tensor]()
        for number, layer in enumerate(self.blk):
            if number in layers:
                inputs[number] = x
            x = layer(x, rotation, mask)
        return [self.output_norm(x), *(inputs[layer] for layer in layers)]

    def rotation(self, positions: Tensor) -> Rotation:
        """Rotations of its heads at these positions, (length,) or (batch, length)."""
        shape = self.shape
        per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, positions.device)
        return rotations(positions, self.rope_freqs(per_position))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every id: (…, width) to (…, vocabulary)."""
        return functional.linear(hidden, (self.token_embd if self.shape.tied else self.output).weight)

    def forward(self, ids: Tensor, chats: Tensor | None = None) -> Tensor:
        """Logits of the id after each one, (batch, length, vocabulary); arguments as for ``hidden``."""
        return self.logits(self.hidden(ids, chats))
