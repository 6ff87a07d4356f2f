"""Rotary positions and the mask of packed chats, as llama.cpp computes them."""

from typing import Literal

import torch
from torch import Tensor, nn

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
    """Turns every pair of numbers by its position's angle.

    Args:
        x: (batch, length, heads, head_size).
        rotation: the result of ``rotations``.

    Returns:
        (batch, heads, length, head_size).
    """
    cos, sin = (part.unsqueeze(-2) for part in rotation)
    if pairing == "pairs":
        first, second = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    else:
        first, second = (half.float() for half in x.chunk(2, dim=-1))
        turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(x.dtype).transpose(1, 2)


def chat_mask(chats: Tensor) -> Tensor:
    """Each row attends to itself and to earlier rows of its own chat.

    Args:
        chats: number of the chat that each id belongs to, (batch, length).

    Returns:
        True where a row may attend, (batch, 1, length, length).
    """
    length = chats.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=chats.device).tril()
    same = chats[:, :, None] == chats[:, None, :]
    return (same & earlier).unsqueeze(1)
