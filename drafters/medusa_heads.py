"""Medusa's heads on the target's device: from one hidden state to the best tokens of each place ahead.

Source: Medusa (Cai et al., arXiv 2401.10774; github.com/FasterDecoding/Medusa, medusa/model/medusa_model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf import Header, read_header
from slipstream.models.gguf_tensors import read_tensor
from slipstream.models.heads import HeadsInfo, read_info
from slipstream.models.heads_check import TOKEN_IDS
from slipstream.models.quoting import shown_path
from slipstream.models.runtime.ggml import Operations, Tensor
from slipstream.models.runtime.network import Network
from slipstream.models.types import Abilities, Floats

_SHARED: Final = "output.weight"
_OWN: Final = "head.{}.output.weight"


class MedusaHeads:
    """K heads: residual blocks x + SiLU(Wx + b), then a vocabulary matrix that is each head's own or one for all.

    Attributes:
        info: What the file says about them.
        count: Number of heads.
        kept: Tokens that each of them names.
    """

    def __init__(self, path: Path, threads: Callable[[], int], kept: int) -> None:
        """Loads heads.

        Args:
            path: File of trained heads, which ``unfit`` has found to fit the target.
            threads: Tells how many threads to use on a CPU.
            kept: Most tokens that each head names.

        Raises:
            ModelFileError: If the file is damaged.
            SlipstreamError: If there is not enough memory.
        """
        self.info, header = read_info(path), read_header(path)
        shapes = _shapes(header)
        count = self.count = _count(shapes, "head.{}.0.weight")
        layers = _count(shapes, "head.0.{}.weight")
        shared = _SHARED in shapes
        outputs = [_SHARED] if shared else [_OWN.format(head) for head in range(count)]
        width, rows = shapes[outputs[0]]
        kept = self.kept = min(kept, rows)
        self._ids = _token_ids(header, rows)
        weights = {"output": outputs}
        for layer in range(layers):
            for kind in ("weight", "bias"):
                weights[f"{kind}.{layer}"] = [f"head.{head}.{layer}.{kind}" for head in range(count)]

        def build(ops: Operations, tensors: Mapping[str, Tensor], states: int) -> None:
            total = states * count
            x = ops.input(width, states, count)
            for layer in range(layers):
                inner = ops.add(ops.multiply(tensors[f"weight.{layer}"], x), tensors[f"bias.{layer}"])
                x = ops.add(x, ops.silu(inner))
            if shared:  # the matrix is then read once for all heads
                x = ops.reshape(x, width, total, 1)
            probs = ops.reshape(ops.soft_max(ops.multiply(tensors["output"], x)), rows, total, 1)
            best = ops.top_k(probs, kept)
            ops.output(best, np.int32, kept, total, 1)
            ops.output(ops.rows(ops.reshape(probs, 1, rows, total), best), np.float32, 1, kept, total)

        self._network = Network(header, weights, build, threads)
        if not np.isfinite(self.best(np.ones(width, np.float32))[1]).all():
            self.close()
            raise ModelFileError(
                f"{shown_path(path)} is damaged: its weights are not all numbers.", "Train or import the heads again."
            )

    def best(self, state: Floats) -> tuple[NDArray[np.int32], Floats]:
        """Guesses.

        Args:
            state: [n_embd], the target's last hidden state of a token.

        Returns:
            Tokens [count, kept], the most probable first: head k's for place k + 2 after the state's own token; and
            their probabilities among the rows of the vocabulary matrix.
        """
        places, probs = self._network.run(np.broadcast_to(state, (self.count, 1, len(state))))
        order = (-probs[..., 0]).argsort(axis=1, kind="stable")
        places = np.take_along_axis(places[0], order, axis=1)
        return self._ids[places], np.take_along_axis(probs[..., 0], order, axis=1)

    def close(self) -> None:
        """Frees the heads."""
        self._network.close()


def unfit(path: Path, abilities: Abilities) -> str:
    """Says why heads cannot serve a target of these abilities; nothing if they can.

    Raises:
        ModelFileError: If the file is damaged or holds no heads.
    """
    info, header = read_info(path), read_header(path)
    if info.method != "medusa":
        return f"its medusa heads are {info.method} heads"
    shapes = _shapes(header)
    width, rows = shapes.get(_SHARED) or shapes[_OWN.format(0)]
    if width != abilities.n_embd:
        return f"its medusa heads read states of {width:,} numbers, and this model's have {abilities.n_embd:,}"
    ids = _token_ids(header, rows)
    if ids.min() < 0 or ids.max() >= abilities.n_vocab + abilities.spare_rows:
        return f"its medusa heads guess token {ids.max():,}, and this model has {abilities.n_vocab:,}"
    return ""


def rank_accuracies(info: HeadsInfo, heads: int) -> Floats:
    """How often the token of each rank was right, whatever came before: [heads, ranks].

    It is what training measured or, of published heads, what their authors did: the accuracy of the best token and of
    the best five for Vicuna 7B (assets/medusa_acc.csv), spread over ranks 1 to 4 as one over the rank.
    """
    found = info.settings.get("rank_accuracies")
    if isinstance(found, list) and found and len(found) % heads == 0:
        return np.array(found, np.float32).reshape(heads, -1)
    best, five = np.array([(0.56, 0.78), (0.316, 0.563), (0.201, 0.417), (0.147, 0.34), (0.118, 0.3)], np.float32).T
    others = (five - best)[:, None] / np.arange(1, 10, dtype=np.float32) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    ranks: Floats = np.concatenate((best[:, None], others), axis=1)
    return ranks[np.minimum(np.arange(heads), len(ranks) - 1)]


def _shapes(header: Header) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in header.tensors}


def _count(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    count = 0
    while name.format(count) in shapes:
        count += 1
    return count


def _token_ids(header: Header, rows: int) -> NDArray[np.int32]:
    """Which token each row of the vocabulary matrix stands for."""
    for tensor in header.tensors:
        if tensor.name == TOKEN_IDS:
            ids: NDArray[np.int32] = read_tensor(header, tensor)
            return ids
    return np.arange(rows, dtype=np.int32)
