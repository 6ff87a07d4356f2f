"""Encoded text, and the sampler that draws training windows from it in a repeatable order."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LONG = 1024  # from this length on, windows may join chats


@dataclass(frozen=True)
class Source:
    """Chats of one source, end to end: chat i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: NDArray[Any]  # of all chats
    weights: NDArray[np.float32]  # loss weight of each id
    offsets: NDArray[np.int64]  # where each chat begins, and the length
    share: float = 0.05  # part of the training tokens, relative to the other sources
    # the id that a chat begins with if long windows may join it with the next chat; None if they may not
    opening: int | None = None


class Sampler:
    """Draws windows that start at chat boundaries, from each source in shuffled rounds."""

    def __init__(self, sources: dict[str, Source], seed: int) -> None:
        """Args: sources: one split. seed: fixes every draw."""
        self._sources = sources
        self._names = sorted(sources)
        self._openings = {source.opening for source in sources.values()} - {None}
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._drawn = dict.fromkeys(self._names, 0)
        self._orders: dict[tuple[str, int], NDArray[np.int64]] = {}

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "drawn": dict(self._drawn)}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to a stored state; a source that was added later starts at its beginning."""
        self._rng.bit_generator.state = state["rng"]
        self._drawn = {name: state["drawn"].get(name, 0) for name in self._names}

    def batch(self, rows: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Ids, weights, and the number of the chat that each id belongs to, all of shape (rows, length + 1).

        In long windows half of the chats are joined with the next one, to resemble long conversations.
        """
        chances = self._chances(length)
        ids = np.zeros((rows, length + 1), np.int64)
        weights = np.zeros((rows, length + 1), np.float32)
        chats = np.zeros((rows, length + 1), np.int64)
        for row in range(rows):
            at = number = first = 0
            while at <= length:
                piece, weight = self._draw(chances, length + 1, alone=at == 0)
                joins = at and length >= _LONG and first == piece[0] and first in self._openings
                if joins and self._rng.random() < 0.5:
                    at -= 1  # overwrites the id that ends the last chat
                else:
                    number += 1
                end = min(at + len(piece), length + 1)
                ids[row, at:end], weights[row, at:end] = piece[: end - at], weight[: end - at]
                chats[row, at:end] = number
                at, first = end, int(piece[0])
        return ids, weights, chats

    def _chances(self, length: int) -> NDArray[np.float64]:
        means = [np.minimum(np.diff(self._sources[n].offsets), length + 1).mean() for n in self._names]
        chances = np.array([self._sources[n].share for n in self._names]) / np.array(means)
        return np.asarray(chances / chances.sum(), np.float64)

    def _draw(self, chances: NDArray[np.float64], most: int, alone: bool) -> tuple[NDArray[Any], NDArray[np.float32]]:
        name = self._names[int(self._rng.choice(len(self._names), p=chances))]
        source = self._sources[name]
        count = len(source.offsets) - 1
        epoch, place = divmod(self._drawn[name], count)
        self._drawn[name] += 1
        item = int(self._order(name, epoch, count)[place])
        start, stop = int(source.offsets[item]), int(source.offsets[item + 1])
        if alone and stop - start > most:  # of a long text, any window may be drawn
            start += most * int(self._rng.integers(0, (stop - start) // most))
        return source.ids[start:stop], source.weights[start:stop]

    def _order(self, name: str, epoch: int, count: int) -> NDArray[np.int64]:
        key = (name, epoch)
        if key not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k[0] != name}
            rng = np.random.default_rng([self._seed, epoch, *name.encode()])
            self._orders[key] = rng.permutation(count)
        return self._orders[key]
