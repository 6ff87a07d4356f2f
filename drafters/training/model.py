"""A decoder that computes exactly what llama.cpp's ``llama`` and ``qwen3`` architectures compute."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.attention import (
    Pairing,
    RopeFactors,
    Rotation,
    chat_mask,
    frequencies,
    rotate,
    rotations,
)


@dataclass(frozen=True)
class Shape:
    """Sizes and kinds of a model's parts; the defaults are those of the bundled target.

    Every width is a multiple of 32, so that each matrix can be stored as Q8_0. Checkpoints contain these fields, so a
    new field needs a default.
    """

    width: int = 256
    layers: int = 14
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    ffn: int = 704
    vocabulary: int = 4096
    context: int = 2048
    rope_base: float = 10000.0  # base of the rotary wavelengths
    eps: float = 1e-5
    rope: Pairing = "pairs"  # which numbers of a head rotate together
    rope_scaling: float = 1.0  # every position is divided by it
    rope_factors: bool = False  # whether the frequencies have factors of their own (``rope_freqs.weight``)
    qk_norm: bool = False  # whether each head's query and key are normalized before they rotate
    tied: bool = True  # whether the embedding is also the output matrix


TARGET = Shape()
DRAFT = Shape(layers=2)


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

    def __init__(self, shape: Shape, reads: int = 0) -> None:
        """The output projection starts at zero, so that new attention changes nothing.

        Args:
            reads: width of its input; 0 for the model's width.
        """
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


class Layer(Attention):
    """Attention and gated feed-forward network, each after a norm and added to the residual stream."""

    def __init__(self, shape: Shape, reads: int = 0) -> None:
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
            rotation: cosines and sines of the positions.
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

    def __init__(self, shape: Shape) -> None:
        """Draws the weights from torch's current seed."""
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        if not shape.tied:
            self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.rope_freqs = RopeFactors(shape.head_size) if shape.rope_factors else nn.Identity()
        nn.init.normal_(self.token_embd.weight, std=0.02)

    def hidden(self, ids: Tensor, chats: Tensor | None = None) -> Tensor:
        """Last hidden states, after the norm, of windows of text.

        Args:
            ids: (batch, length).
            chats: number of the chat that each id belongs to, (batch, length); None if all belong to one.

        Returns:
            (batch, length, width).
        """
        chats = torch.zeros_like(ids) if chats is None else chats
        return self.run(self.token_embd(ids), torch.arange(ids.shape[1], device=ids.device), chat_mask(chats))

    def run(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Last hidden states, after the norm, of rows that need not be consecutive tokens.

        Args:
            x: embeddings, (batch, length, width).
            positions: of each row in its text, (length,) or (batch, length); rows may share one.
            mask: True where a row may attend, (batch, 1, length, length).

        Returns:
            (batch, length, width).
        """
        rotation = self.rotation(positions)
        for layer in self.blk:
            x = layer(x, rotation, mask)
        out: Tensor = self.output_norm(x)
        return out

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


@torch.no_grad()
def grow(small: Decoder, large: Decoder) -> None:
    """Copies the weights of a decoder to one with at least as many layers.

    The other layers lie between the copied ones and add nothing at first (their output projections are zero), so that
    both decoders compute the same (Gesmundo et al., arXiv 2308.06103, section 3.6).

    Args:
        large: A fresh decoder of the same widths.
    """
    weights = large.state_dict()
    for name, value in small.state_dict().items():
        if name.startswith("blk."):
            _, at, part = name.split(".", 2)
            name = f"blk.{int(at) * large.shape.layers // small.shape.layers}.{part}"
        weights[name].copy_(value)


@torch.no_grad()
def cut(large: Decoder, small: Decoder) -> None:
    """Copies layers of a larger decoder to a smaller one, the first and the last among them, and all other weights.

    A draft model that starts from these has less to learn (Muralidharan et al., arXiv 2407.14679).

    Args:
        small: Of the same widths, with no more layers.
    """
    last, others = large.shape.layers - 1, max(1, small.shape.layers - 1)
    weights = large.state_dict()
    for name, value in small.state_dict().items():
        if name.startswith("blk."):
            _, at, part = name.split(".", 2)
            name = f"blk.{int(at) * last // others}.{part}"
        value.copy_(weights[name])
