"""Windows of text with the target's hidden states: read by llama.cpp and stored, or computed as they are drawn.

llama.cpp reads any model, as the quantized file computes; collecting can be resumed. On a GPU the torch decoder
computes the states of a batch sooner than they could be read from a disk.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import Tensor

from slipstream.drafters.training.acceptance import Acceptance, mean, of_guesses
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import Decoder, chat_mask
from slipstream.drafters.training.loop import Draws, Say
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.tensors import replacing
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions, PrefillChunk
from slipstream.models.types import Floats

_PROGRESS = "progress.json"
_TEXT = ("ids", "weights", "chats")
_SEED = 7  # of the order of the windows
_AT_ONCE = 16  # windows that are read at once for a check


def low_middle_high(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs EAGLE-3 and DFlash heads read, picked as in EAGLE's code (github.com/SafeAILab/EAGLE)."""
    picked = (2, layers // 2, layers - 3)
    return picked if len(set(picked)) == 3 and min(picked) >= 0 else (0, layers // 2, layers - 1)


class Windows(Draws, Protocol):
    """Text with hidden states: ids, weights, chat numbers (rows, window + 1), and by point (rows, window, d)."""

    def checked(
        self, most: int, device: torch.device
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], tuple[Tensor, ...]]]:
        """Yields the first ``most`` windows in batches: ids, weights, and as tensors chat numbers and hidden states."""

    def counts(self, n_vocab: int) -> NDArray[np.int64]:
        """How often each id is written by the model in these windows: [n_vocab]."""


@torch.no_grad()
def acceptance(model: Any, held_out: Windows, most: int) -> Acceptance:
    """Acceptance by depth of heads on up to ``most`` windows.

    Args:
        model: has ``guesses``, which takes a window's tensors but its weights; with ``every``, only at each such place.
    """
    device, every = next(model.parameters()).device, getattr(model, "every", 1)
    return mean(
        [
            of_guesses(model.guesses(torch.from_numpy(ids).to(device), *tensors), ids, weights, every)
            for ids, weights, tensors in held_out.checked(most, device)
        ]
    )


class LiveWindows:
    """Windows whose hidden states the torch decoder computes when they are drawn."""

    def __init__(self, target: Decoder, text: TrainingText, layers: Sequence[int], window: int, seed: int) -> None:
        """Args: layers: whose inputs follow the last hidden state."""
        self._target, self._text, self._layers, self._seed = target, text, layers, seed
        self._draws = WindowSampler(text, seed)
        self.window = window

    def batch(self, rows: int, length: int) -> tuple[NDArray[Any] | Tensor, ...]:
        ids, weights, chats = self._draws.batch(rows, length)
        return ids, weights, *self._states(ids, chats)

    def checked(
        self, most: int, device: torch.device
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], tuple[Tensor, ...]]]:
        draws = WindowSampler(self._text, self._seed)
        count = max(1, min(most, len(self._text.ids) // self.window))
        for start in range(0, count, _AT_ONCE):
            ids, weights, chats = draws.batch(min(_AT_ONCE, count - start), self.window)
            yield ids, weights, self._states(ids, chats)

    def counts(self, n_vocab: int) -> NDArray[np.int64]:
        return np.bincount(self._text.ids[self._text.weights >= 1], minlength=n_vocab)

    def state(self) -> dict[str, Any]:
        return self._draws.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._draws.restore(state)

    @torch.no_grad()
    def _states(self, ids: NDArray[np.int64], chats: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Chat numbers (rows, window + 1), and hidden states (rows, window, width) by point."""
        target = self._target
        device = target.token_embd.weight.device
        numbers, tokens = (torch.from_numpy(part).to(device) for part in (chats, ids[:, :-1]))
        places = torch.arange(tokens.shape[1], device=device)
        found = target.states(target.token_embd(tokens), places, chat_mask(numbers[:, :-1]), self._layers)
        return numbers, *(part.float() for part in found)


class Features:
    """Stored windows, drawn in shuffled rounds; a ``Draws`` for the training loop.

    Attributes:
        points: Hidden points that are stored, in the order in which batches carry them.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a folder that ``collect`` has filled."""
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        self.points: tuple[int, ...] = tuple(progress["points"])
        self._count: int = progress["done"]
        names = [*_TEXT, *(f"hidden{point}" for point in self.points)]
        self._arrays = [np.load(folder / f"{name}.npy", mmap_mode="r")[: self._count] for name in names]
        self.window = self._arrays[0].shape[1] - 1
        self._drawn = 0
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._count

    @property
    def tokens(self) -> int:
        return self._count * self.window

    def batch(self, rows: int, length: int) -> tuple[NDArray[Any], ...]:
        if length != self.window:
            raise ValueError(f"windows hold {self.window} tokens, not {length}")
        picked = [self._pick(self._drawn + i) for i in range(rows)]
        self._drawn += rows
        return self._read(picked)

    def _read(self, windows: Sequence[int]) -> tuple[NDArray[Any], ...]:
        ids, weights, chats, *hidden = (array[list(windows)] for array in self._arrays)
        return ids.astype(np.int64), weights, chats.astype(np.int64), *(h.astype(np.float32) for h in hidden)

    def checked(
        self, most: int, device: torch.device
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], tuple[Tensor, ...]]]:
        count = min(most, self._count)
        for start in range(0, count, _AT_ONCE):
            ids, weights, *others = self._read(range(start, min(start + _AT_ONCE, count)))
            yield ids, weights, tuple(torch.from_numpy(part).to(device) for part in others)

    def counts(self, n_vocab: int) -> NDArray[np.int64]:
        ids, weights = self._arrays[0], self._arrays[1]
        return np.bincount(ids[weights >= 1].ravel(), minlength=n_vocab)

    def state(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self._drawn = state["drawn"]

    def _pick(self, draw: int) -> int:
        epoch, place = divmod(draw, self._count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([_SEED, epoch]).permutation(self._count)
        return int(self._order[place])


def bytes_needed(windows: int, window: int, points: int, width: int) -> int:
    return windows * ((window + 1) * 12 + window * points * width * 2)


def collect(
    model: LlamaModel,
    options: ContextOptions,
    draws: WindowSampler,
    *,
    points: Sequence[int],
    windows: int,
    window: int,
    folder: Path,
    say: Say,
) -> Features:
    """Evaluates windows of text with the target and stores its hidden states in float16.

    Each chat of a window is evaluated separately, from position 0. A run that was killed resumes where its progress was
    last stored.

    Args:
        options: how its context is opened when it runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {"points": list(points), "windows": windows, "window": window}
    done = _done(folder, stored)
    needed, free = bytes_needed(windows, window, len(points), model.n_embd), shutil.disk_usage(folder).free
    if not done and needed > 0.95 * free:
        raise SlipstreamError(
            f"the hidden states need {needed / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} GB are free.",
            "Make room, or train on fewer tokens (--tokens).",
        )
    with closing(LlamaTarget(model, options)) as target:
        missing = frozenset(points) - target.abilities.hidden
        if missing:
            raise SlipstreamError(
                f"{model.header.title} ({model.header.architecture}) does not hand out the inputs of its layers.",
                "Train medusa heads: they need its last hidden state only.",
            )
        target.request(frozenset(points))
        arrays = _arrays(folder, points, windows, window, model.n_embd, fresh=not done)
        for number in range(windows):
            ids, weights, chats = (part[0] for part in draws.batch(1, window))
            if number < done:
                continue
            hidden = _read(target, points, ids[:-1], chats[:-1])
            for array, values in zip(arrays, (ids, weights, chats, *hidden), strict=True):
                array[number] = values
            if (number + 1) % 64 == 0 or number + 1 == windows:
                for array in arrays:
                    array.flush()
                _store_progress(folder, stored | {"done": number + 1})
                say(f"hidden states: {(number + 1) * window:,} of {windows * window:,} tokens")
    return Features(folder)


def _read(target: LlamaTarget, points: Sequence[int], ids: NDArray[Any], chats: NDArray[Any]) -> list[Floats]:
    found: list[list[Floats]] = [[] for _ in points]

    def keep(chunk: PrefillChunk) -> None:
        for rows, point in zip(found, points, strict=True):
            rows.append(chunk.hidden[point].copy())

    starts = [0, *(np.flatnonzero(np.diff(chats)) + 1).tolist(), len(ids)]
    for start, stop in pairwise(starts):
        target.rewind(0)
        target.prefill(ids[start:stop].tolist(), on_chunk=keep)
    return [np.concatenate(rows) for rows in found]


def _arrays(
    folder: Path, points: Sequence[int], windows: int, window: int, width: int, fresh: bool
) -> list[np.memmap[Any, Any]]:
    shapes: list[tuple[str, Any, tuple[int, ...]]] = [
        ("ids", np.uint32, (windows, window + 1)),
        ("weights", np.float32, (windows, window + 1)),
        ("chats", np.uint32, (windows, window + 1)),
        *((f"hidden{point}", np.float16, (windows, window, width)) for point in points),
    ]
    if fresh:
        return [open_memmap(folder / f"{n}.npy", mode="w+", dtype=d, shape=shape) for n, d, shape in shapes]
    return [open_memmap(folder / f"{name}.npy", mode="r+") for name, _, _ in shapes]


def _done(folder: Path, stored: dict[str, Any]) -> int:
    try:
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    done = int(progress.pop("done"))
    return done if progress == stored else 0


def _store_progress(folder: Path, progress: dict[str, Any]) -> None:
    with replacing(folder / _PROGRESS) as part:
        part.write_text(json.dumps(progress), encoding="utf-8")
