"""Acceptance by depth on text of the target that no drafter was trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Acceptance:
    """Share of first-ranked guesses that are right at each depth, given that all before them were."""

    shares: tuple[float, ...]  # by depth, from 1
    reached: tuple[int, ...]  # how many guesses each share is computed from

    def tokens_per_step(self, drafted: int) -> float:
        """Expected tokens of a step that drafts a chain of that depth."""
        return 1.0 + float(np.cumprod(self.shares[:drafted]).sum())

    def __str__(self) -> str:
        return " ".join(f"{share:.3f}" for share in self.shares)


def by_depth(right: NDArray[np.bool_], written: NDArray[np.bool_]) -> Acceptance:
    """Acceptance of guesses.

    Args:
        right: (roots, depth), whether the guess at each depth below a root is the token that follows.
        written: the same shape, whether the reply has a token there.
    """
    alive = np.ones(len(right), np.bool_)
    shares: list[float] = []
    reached: list[int] = []
    for depth in range(right.shape[1]):
        alive = alive & written[:, depth]
        reached.append(int(alive.sum()))
        alive = alive & right[:, depth]
        shares.append(float(alive.sum()) / max(1, reached[-1]))
    return Acceptance(tuple(shares), tuple(reached))


def of_guesses(
    guesses: NDArray[np.int64], ids: NDArray[np.int64], weights: NDArray[np.float32], every: int = 1
) -> Acceptance:
    """Acceptance of guesses in one window of several chats.

    Args:
        guesses: (rows, length, depth); ``guesses[r, i, d]`` is the guess of id ``i + 1 + d`` below root ``i``, the last
            committed token.
        ids: (rows, length + 1).
        weights: (rows, length + 1), 1 where the target wrote the id.
        every: only each such place is a root.
    """
    rows, length, depth = guesses.shape
    right = np.zeros((rows, length, depth), np.bool_)
    written = np.zeros((rows, length, depth), np.bool_)
    for d in range(depth):
        have = length - d
        right[:, :have, d] = guesses[:, :have, d] == ids[:, 1 + d : 1 + d + have]
        written[:, :have, d] = weights[:, 1 + d : 1 + d + have] >= 1
    roots = (weights[:, :length] >= 1) & (np.arange(length) % every == 0)  # a root is a token that the target wrote
    return by_depth(right[roots], written[roots])


def mean(parts: Sequence[Acceptance]) -> Acceptance:
    reached = np.sum([part.reached for part in parts], axis=0)
    accepted = np.sum([np.multiply(part.shares, part.reached) for part in parts], axis=0)
    return Acceptance(tuple((accepted / np.maximum(1, reached)).tolist()), tuple(int(n) for n in reached))
