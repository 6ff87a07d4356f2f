"""How long a training run will take, measured before it starts."""

import time
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice

from slipstream.drafters.training.loop import Say
from slipstream.models.heads.file import Text
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.replies import ManyReplies
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler

_TRAINED_AS_READ = 3.0
"""Assumed cost of training heads on a token, in times of reading it: 1 for the forward pass, 2 for the backward one."""
_SIDE_BY_SIDE = 16


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


def forecast(text: Text, tokens: int, passes: int, pace: Pace, say: Say) -> None:
    """Prints how long the parts of a run will take."""
    parts = {"to write answers": tokens / pace.answering if text == "answers" else 0.0}
    parts["to read them" if text == "answers" else "to read the text"] = tokens / pace.reading
    parts["to train"] = _TRAINED_AS_READ * passes * tokens / pace.reading
    shown = ", ".join(f"{duration(seconds)} {what}" for what, seconds in parts.items() if seconds)
    say(f"this will take about {duration(sum(parts.values()))} ({shown}); it can be stopped and started again")


def duration(seconds: float) -> str:
    """Seconds in words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
