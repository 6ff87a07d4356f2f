"""What a training run needs, told before it starts: its time, measured, and its memory, estimated."""

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from operator import itemgetter
from typing import Any, Final

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

from slipstream.drafters.training.loop import Say
from slipstream.drafters.training.replies import ManyReplies
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header
from slipstream.models.heads.file import Text
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler

_SIDE_BY_SIDE: Final = 16
_STATES: Final = 3  # copies of the trained weights: two of the optimizer, one of the best ones


@dataclass(frozen=True)
class Pace:
    """Tokens a second of a model on this machine."""

    reading: float  # of a prompt
    answering: float  # of several replies at a time

    @staticmethod
    def measured(model: LlamaModel, options: ContextOptions) -> "Pace":
        """Reads a hundred tokens and writes a few; under a second for small models, a few passes for large ones."""
        tokens = list(islice(cycle(range(1, min(100, model.n_vocab))), 128))
        with closing(LlamaTarget(model, options)) as target:
            target.prefill(tokens[:64])  # the first pass also touches the weights for the first time
            began = time.perf_counter()
            target.prefill(tokens)
            reading = 64 / (time.perf_counter() - began)
        with closing(ManyReplies(model, _SIDE_BY_SIDE, 64, options)) as replies:
            prompts = ((tokens[:2], Sampler(temperature=1.0, seed=seed)) for seed in range(_SIDE_BY_SIDE))
            began = time.perf_counter()
            made = sum(len(reply) for _, reply in replies.replies(prompts, 4))
            answering = made / (time.perf_counter() - began)
        return Pace(reading, answering)


def forecast(header: Header, text: Text, tokens: int, work: float, pace: Pace, *, say: Say, made: int = 0) -> None:
    """Prints how long the parts of a run will take.

    Args:
        work: multiplications and additions of the training, taken to be as fast as those of reading.
        made: tokens of answers that are there already.
    """
    parts = {"to write answers": max(0, tokens - made) / pace.answering if text == "answers" else 0.0}
    parts["to read them" if text == "answers" else "to read the text"] = tokens / pace.reading
    parts["to train"] = work / (2 * weights_of(header) * pace.reading)
    shown = ", ".join(f"{duration(seconds)} {what}" for what, seconds in parts.items() if seconds)
    say(f"this will take about {duration(sum(parts.values()))} ({shown}); it can be stopped and started again")


def larger_targets(header: Header, pace: Pace, tokens: int, work: float) -> str:
    """What heads of one method would take here for models of 1 and 4 billion weights, scaled from this one's pace."""
    weights = weights_of(header)
    seconds = tokens / pace.answering + tokens / pace.reading + work / (2 * weights * pace.reading)
    shown = " and ".join(f"{duration(seconds * size / weights)} for {size / 1e9:.0f}B" for size in (1e9, 4e9))
    return f"one method on {tokens:,} tokens would take about {shown} on this machine"


def weights_of(header: Header) -> int:
    """How many weights a model has."""
    return sum(math.prod(info.shape) for info in header.tensors)


def duration(seconds: float) -> str:
    """Seconds in words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class StepCost:
    """What one training step of a method takes."""

    memory: int  # bytes at its peak, with the weights, the optimizer's state and the best weights
    work: int  # multiplications and additions, those of the optimizer not counted

    @staticmethod
    def of(build: Callable[[], tuple[Any, Sequence[Tensor]]]) -> "StepCost":
        """Finds it by a step on tensors that have shapes but no values, which takes no memory.

        Args:
            build: makes the module, which has a method ``loss``, and a batch.
        """
        with FakeTensorMode(), _LiveBytes() as live, FlopCounterMode(display=False) as counter:
            model, batch = build()
            model.loss(*batch).backward()
        trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        return StepCost(live.most + _STATES * trained, counter.get_total_flops())


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that exist at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self._now = 0
        self._storages = WeakIdKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, values: Any = (), named: Any = None) -> Any:
        found = function(*values, **(named or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._storages:
                self._storages[storage] = size = storage.nbytes()
                self._now += size
                self.most = max(self.most, self._now)
                weakref.finalize(storage, self._freed, size)
        return found

    def _freed(self, size: int) -> None:
        self._now -= size


def check_memory(costs: Mapping[str, StepCost], available: int, say: Say) -> None:
    """Prints the memory that the methods need, and refuses those that need more than there is."""
    method, largest = max(((name, cost.memory) for name, cost in costs.items()), key=itemgetter(1))
    shown = ", ".join(f"{name} {cost.memory / 1e9:.1f}" for name, cost in costs.items())
    say(f"memory to train, in GB: {shown}; {available / 1e9:.1f} are available")
    if largest > available:
        less = [name for name, cost in costs.items() if cost.memory <= available] or ["medusa, which needs least"]
        raise SlipstreamError(
            f"training {method} needs {largest / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available.",
            f"Close other programs, choose a smaller model, or train {' or '.join(less)}.",
        )
