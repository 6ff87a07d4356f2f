"""A decoder that computes exactly what llama.cpp's ``llama`` architecture computes."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.tokenizer import CONTROL, END_OF_TEXT

_END_OF_TEXT_ID = CONTROL.index(END_OF_TEXT)


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; every width is a multiple of 32, so that each matrix can be stored as Q8_0."""

    width: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    ffn: int = 704
    vocabulary: int = 4096
    context: int = 1024
    rope_base: float = 10000.0
    eps: float = 1e-5


TARGET = Shape()
DRAFT = Shape(width=128, layers=2, heads=2, kv_heads=1, ffn=352)


class Norm(nn.Module):
    """Root mean square norm with a learned scale (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        """Starts with scale one."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, width) to the same shape."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):
    """Attention and gated feed-forward, each after a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        """Output projections start at zero, so that a new layer changes nothing."""
        super().__init__()
        width, kv = shape.width, shape.kv_heads * shape.head_size
        self.shape = shape
        self.attn_norm = Norm(width, shape.eps)
        self.attn_q = nn.Linear(width, shape.heads * shape.head_size, bias=False)
        self.attn_k = nn.Linear(width, kv, bias=False)
        self.attn_v = nn.Linear(width, kv, bias=False)
        self.attn_output = nn.Linear(shape.heads * shape.head_size, width, bias=False)
        self.ffn_norm = Norm(width, shape.eps)
        self.ffn_gate = nn.Linear(width, shape.ffn, bias=False)
        self.ffn_up = nn.Linear(width, shape.ffn, bias=False)
        self.ffn_down = nn.Linear(shape.ffn, width, bias=False)
        nn.init.zeros_(self.attn_output.weight)
        nn.init.zeros_(self.ffn_down.weight)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Maps the stream (batch, length, width) to the next layer's input.

        Args:
            x: the stream.
            turn: cosines and sines of the positions, each (length, head_size / 2).
            mask: True where a row may look, (batch, 1, length, length).
        """
        batch, length, _ = x.shape
        y = self.attn_norm(x)
        q = rotate(self.attn_q(y).view(batch, length, self.shape.heads, -1), turn)
        k = rotate(self.attn_k(y).view(batch, length, self.shape.kv_heads, -1), turn)
        v = self.attn_v(y).view(batch, length, self.shape.kv_heads, -1).transpose(1, 2)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))
        y = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Decoder(nn.Module):
    """Embedding, layers, norm, and the embedding again as the output matrix."""

    def __init__(self, shape: Shape) -> None:
        """Draws the weights from torch's current seed."""
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        nn.init.normal_(self.token_embd.weight, std=0.02)

    def hidden(self, ids: Tensor) -> Tensor:
        """Last hidden states, after the norm: (batch, length) to (batch, length, width)."""
        turn = rotations(ids.shape[1], self.shape)
        mask = chat_mask(ids)
        x = self.token_embd(ids)
        for layer in self.blk:
            x = layer(x, turn, mask)
        out: Tensor = self.output_norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every id: (…, width) to (…, vocabulary)."""
        return functional.linear(hidden, self.token_embd.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the id after each one: (batch, length) to (batch, length, vocabulary)."""
        return self.logits(self.hidden(ids))


def rotations(length: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 to length - 1, each (length, head_size / 2) (Su et al., arXiv 2104.09864)."""
    steps = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_base**-steps)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates adjacent pairs, as the ``llama`` architecture does.

    Args:
        x: (batch, length, heads, head_size).
        turn: what ``rotations`` gave.

    Returns:
        (batch, heads, length, head_size).
    """
    cos, sin = (part[:, None, :] for part in turn)
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype).transpose(1, 2)


def chat_mask(ids: Tensor) -> Tensor:
    """Each row sees itself and earlier rows of its own chat; chats end with the end-of-text id."""
    ends = (ids == _END_OF_TEXT_ID).int()
    chat = ends.cumsum(1) - ends
    same = chat[:, :, None] == chat[:, None, :]
    return (same & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()).unsqueeze(1)
