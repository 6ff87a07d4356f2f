"""The one test that every drafter joins: with it or without it, the same seed gives the same tokens.

Here on a target without weights; tests/app/engine/test_same_text_bundled.py does the same on the bundled pair.
"""

from textwrap import dedent
from types import MappingProxyType
from typing import Any

import pytest
from tests.drafters.replies import write
from tests.models.fake_target import FakeTarget

from slipstream import drafters
from slipstream.drafters import registry
from slipstream.drafters.resources import Resources
from slipstream.models.sampling.sampler import Sampler

TEMPERATURES = [0.0, 0.2, 0.8, 1.5]
SHAPES = [
    {},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5},
]


def target_of(seed: int, blur: float = 0.0) -> FakeTarget:
    """Another table of logits for each seed: its greedy text ends in cycles of length 10, 1, 2, 5, 1 and 7."""
    return FakeTarget(n_vocab=24, order=1, seed=seed + 1, blur=blur)


def parts(blur: float, seed: int = 0) -> Resources:
    return Resources(target_of(seed).abilities, target_of(seed, blur))


WITHOUT_WEIGHTS = [name for name in registry.METHODS if not registry.why_not(name, parts(0.0))]
"""The others draft from trained heads: test_same_text_bundled.py runs them all."""


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_every_drafter_gives_the_text_of_plain_decoding(name: str, temperature: float, shape: int) -> None:
    totals = [0, 0]
    for seed in range(6):
        sampler = Sampler(temperature=temperature, seed=seed, **SHAPES[shape])  # type: ignore[arg-type]
        plain, _ = write(registry.make("none", parts(0.0)), target_of(seed), sampler)
        text, stats = write(registry.make(name, parts(0.3, seed)), target_of(seed), sampler)
        assert text == plain
        totals[0] += stats.whole.accepted
        totals[1] += stats.whole.drafted - stats.whole.accepted
        assert stats.whole.steps > 2
    if name != "none":
        assert sum(totals) > 0, (
            "nothing was drafted, so this run shows nothing: either draft() was empty, or should_extend refused its "
            "probabilities (a path needs 0.5 here; see base.ShouldExtend)"
        )
        assert totals[0] > 0, (
            "drafts were made and none was ever right, so this run shows nothing: either the drafter guesses badly, or "
            "none of these texts holds what it looks for (at temperature 0 they end in the cycles of target_of)"
        )
        if temperature:  # at 0 the text soon repeats itself, and a copy is never wrong
            assert totals[1] > 0, "no draft was ever wrong: this run shows nothing"


def test_the_example_of_a_new_drafter_gives_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    example: dict[str, Any] = {}
    exec(dedent((drafters.__doc__ or "").partition("::\n")[2]), example)
    method = example["METHOD"]
    monkeypatch.setattr(registry, "METHODS", MappingProxyType({**registry.METHODS, method.name: method}))
    for temperature in TEMPERATURES:
        test_every_drafter_gives_the_text_of_plain_decoding(method.name, temperature, 0)
