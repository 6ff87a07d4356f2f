"""The encoded corpus, and the sampler that draws training windows from it in a repeatable order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.training.chats import Chat
from slipstream.drafters.training.tokenizer import START_ID, ChatEncoder

SHARES = {
    "gpteacher": 0.06,
    "synthetic_persona_chat": 0.03,
    "simple_dictionary": 0.03,
    "pratham_books": 0.012,
    "fairytaleqa_stories": 0.02,
    "tldr": 0.06,
    "african_storybook": 0.015,
    "fairytaleqa_qa": 0.03,
    "sgd": 0.06,
    "rasbt_instruct": 0.012,
    "open_trivia_qa": 0.015,
    "gsm8k_train": 0.02,
    "taskmaster": 0.01,
    "self_instruct_human": 0.005,
    "chatterbot_corpus": 0.004,
    "everyday": 0.015,
    "identity": 0.015,
    "lists": 0.08,
    "tales": 0.22,
    "meanings": 0.1,
    "reasons": 0.07,
    "things": 0.1,
    "skills": 0.03,
    "plain_stories_a": 0.025,
    "plain_stories_b": 0.025,
    "plain_stories_c": 0.025,
    "plain_tales": 0.075,
    "plain_words": 0.025,
    "plain_wordsmore": 0.025,
    "plain_means": 0.05,
    "plain_facts": 0.025,
    "plain_explain": 0.02,
    "plain_explainmore": 0.025,
    "plain_why": 0.03,
    "plain_because": 0.05,
    "plain_how": 0.05,
    "plain_tasks": 0.025,
    "plain_tasksmore": 0.025,
    "plain_doing": 0.025,
    "plain_talk": 0.025,
    "plain_talkmore": 0.025,
    "plain_mixed": 0.02,
    "plain_basics": 0.02,
    "plain_nature": 0.05,
    "plain_made": 0.05,
    "plain_listing": 0.05,
    "plain_shorttales_a": 0.05,
    "answers": 1.0,
}
"""Parts of the training tokens by source; ``answers`` are the target's own, about half where they are there."""

_OTHER_SHARE = 0.05
_LONG = 1024
"""Windows from this length on hold joined chats."""


@dataclass(frozen=True)
class Source:
    """Chats of one source, end to end: chat i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: NDArray[Any]
    weights: NDArray[np.float32]
    offsets: NDArray[np.int64]


def encode(made: dict[str, list[Chat]], encoder: ChatEncoder) -> dict[str, Source]:
    """Encodes the chats of one split."""
    sources: dict[str, Source] = {}
    for name, chats in made.items():
        pairs = [encoder.encode(chat) for chat in chats]
        offsets = np.cumsum([0] + [len(ids) for ids, _ in pairs])
        ids = np.fromiter((i for ids, _ in pairs for i in ids), np.uint16)
        weights = np.fromiter((w for _, ws in pairs for w in ws), np.float32)
        sources[name] = Source(ids, weights, offsets.astype(np.int64))
    return sources


def save(path: Path, train: dict[str, Source], held_out: dict[str, Source]) -> None:
    """Writes both splits to one ``.npz``."""
    arrays = {
        f"{split}/{name}/{part}": getattr(source, part)
        for split, sources in (("train", train), ("held_out", held_out))
        for name, source in sources.items()
        for part in ("ids", "weights", "offsets")
    }
    np.savez(path, **arrays)


def load(path: Path, split: str) -> dict[str, Source]:
    """Reads one split, ``train`` or ``held_out``."""
    with np.load(path) as stored:
        names = sorted({key.split("/")[1] for key in stored.files if key.startswith(split + "/")})
        parts = ("ids", "weights", "offsets")
        return {name: Source(*(stored[f"{split}/{name}/{part}"] for part in parts)) for name in names}


class Sampler:
    """Draws windows that start at chat boundaries; each source is gone through in shuffled rounds."""

    def __init__(self, sources: dict[str, Source], seed: int) -> None:
        """Args: sources: one split. seed: fixes every draw."""
        self._sources = sources
        self._names = sorted(sources)
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._drawn = dict.fromkeys(self._names, 0)
        self._orders: dict[tuple[str, int], NDArray[np.int64]] = {}

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to go on from here."""
        return {"rng": self._rng.bit_generator.state, "drawn": dict(self._drawn)}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to a stored point; a source that was added since starts at its beginning."""
        self._rng.bit_generator.state = state["rng"]
        self._drawn = {name: state["drawn"].get(name, 0) for name in self._names}

    def rounds(self) -> dict[str, float]:
        """How often each source has been gone through so far."""
        return {name: self._drawn[name] / max(1, len(self._sources[name].offsets) - 1) for name in self._names}

    def batch(self, rows: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Ids, weights, and the number of the chat that each id belongs to, all of shape (rows, length + 1).

        In long windows half of the chats go on with the next one, as a long conversation does.
        """
        chances = self._chances(length)
        ids = np.zeros((rows, length + 1), np.int64)
        weights = np.zeros((rows, length + 1), np.float32)
        chats = np.zeros((rows, length + 1), np.int64)
        for row in range(rows):
            at = number = first = 0
            while at <= length:
                piece, weight = self._draw(chances, length + 1, alone=at == 0)
                if at and length >= _LONG and first == piece[0] == START_ID and self._rng.random() < 0.5:
                    at -= 1  # over the id that ended the last chat
                else:
                    number += 1
                end = min(at + len(piece), length + 1)
                ids[row, at:end], weights[row, at:end] = piece[: end - at], weight[: end - at]
                chats[row, at:end] = number
                at, first = end, int(piece[0])
        return ids, weights, chats

    def _chances(self, length: int) -> NDArray[np.float64]:
        means = [np.minimum(np.diff(self._sources[n].offsets), length + 1).mean() for n in self._names]
        chances = np.array([SHARES.get(n, _OTHER_SHARE) for n in self._names]) / np.array(means)
        return np.asarray(chances / chances.sum(), np.float64)

    def _draw(self, chances: NDArray[np.float64], most: int, alone: bool) -> tuple[NDArray[Any], NDArray[np.float32]]:
        name = self._names[int(self._rng.choice(len(self._names), p=chances))]
        source = self._sources[name]
        count = len(source.offsets) - 1
        turn, place = divmod(self._drawn[name], count)
        self._drawn[name] += 1
        item = int(self._order(name, turn, count)[place])
        start, stop = int(source.offsets[item]), int(source.offsets[item + 1])
        if alone and stop - start > most:  # a long text: any of its windows, not always the first
            start += most * int(self._rng.integers(0, (stop - start) // most))
        return source.ids[start:stop], source.weights[start:stop]

    def _order(self, name: str, turn: int, count: int) -> NDArray[np.int64]:
        key = (name, turn)
        if key not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k[0] != name}
            rng = np.random.default_rng([self._seed, turn, *name.encode()])
            self._orders[key] = rng.permutation(count)
        return self._orders[key]
