"""Encoded text, and the sampler that draws training windows from it in a repeatable order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import UsageError

_HELD_OUT_EVERY = 20  # one chat in this many is held out


@dataclass(frozen=True)
class TrainingText:
    """Chats end to end: chat i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: NDArray[np.uint32]
    weights: NDArray[np.float32]  # loss weight of each id
    offsets: NDArray[np.int64]  # where each chat begins, and the length

    @staticmethod
    def of(chats: Iterable[tuple[Sequence[int], Sequence[float]]]) -> "TrainingText":
        """Packs (ids, weights) of chats."""
        pairs = [pair for pair in chats if len(pair[0]) > 1]
        offsets = np.cumsum([0] + [len(ids) for ids, _ in pairs])
        ids = np.fromiter((i for found, _ in pairs for i in found), np.uint32)
        weights = np.fromiter((w for _, found in pairs for w in found), np.float32)
        return TrainingText(ids, weights, offsets.astype(np.int64))

    def split(self) -> "tuple[TrainingText, TrainingText]":
        """Splits the chats into (training, held out); each part has at least one chat."""
        chats = [
            (self.ids[a:b].tolist(), self.weights[a:b].tolist())
            for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)
        ]
        if len(chats) < 2:
            raise UsageError("there is too little text to train on.", "Give more than one chat or file.")
        every = min(_HELD_OUT_EVERY, len(chats))
        return TrainingText.of(chat for i, chat in enumerate(chats) if i % every), TrainingText.of(chats[::every])


class WindowSampler:
    """Draws windows that start at chat boundaries, in shuffled rounds."""

    def __init__(self, text: TrainingText, seed: int) -> None:
        """Args: seed: fixes every draw."""
        self._text, self._seed = text, seed
        self._rng = np.random.default_rng(seed)
        self._drawn = 0
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "drawn": self._drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state, self._drawn = state["rng"], state["drawn"]

    def batch(self, rows: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Ids, weights, and the number of the chat that each id belongs to, all of shape (rows, length + 1)."""
        ids = np.zeros((rows, length + 1), np.int64)
        weights = np.zeros((rows, length + 1), np.float32)
        chats = np.zeros((rows, length + 1), np.int64)
        for row in range(rows):
            at = number = 0
            while at <= length:
                piece, weight = self._draw(length + 1, alone=at == 0)
                number += 1
                end = min(at + len(piece), length + 1)
                ids[row, at:end], weights[row, at:end] = piece[: end - at], weight[: end - at]
                chats[row, at:end] = number
                at = end
        return ids, weights, chats

    def _draw(self, most: int, alone: bool) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        text = self._text
        count = len(text.offsets) - 1
        epoch, place = divmod(self._drawn, count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(count)
        self._drawn += 1
        item = int(self._order[place])
        start, stop = int(text.offsets[item]), int(text.offsets[item + 1])
        if alone and stop - start > most:  # of a long text, any window may be drawn
            start += most * int(self._rng.integers(0, (stop - start) // most))
        return text.ids[start:stop], text.weights[start:stop]
