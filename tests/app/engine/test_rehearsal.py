"""Before the first reply every drafter has been asked, those on the target's hidden states too, and nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.rehearsal import rehearse
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.tree import chain_draft
from slipstream.models.runtime.fake import FakeTarget
from slipstream.models.sampling import Sampler
from slipstream.models.types import LAST_HIDDEN, Floats, History, Token


class Needy(Drafter):
    """Drafts where it has heard the hidden state of every token but the last."""

    name = "needy"
    needs = Needs(frozenset({LAST_HIDDEN}))

    def __init__(self) -> None:
        self.heard = 0

    def prefilled(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        assert len(hidden[LAST_HIDDEN]) == len(tokens)
        self.heard += len(tokens)

    def observe(self, history: History, step: Step) -> None:
        self.heard += len(step.evaluation.hidden[LAST_HIDDEN])

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        assert self.heard == len(history.tokens) - 1
        return chain_draft([1, 2], [0.5, 0.5], self.name) if worth(1.0, 2) else NO_DRAFT

    def rewind(self, length: int) -> None:
        self.heard = min(self.heard, length)


def test_each_is_timed_and_forgets_what_it_heard() -> None:
    target, model, needy = FakeTarget(), FakeTarget(blur=0.3), Needy()
    drafters = [PromptLookup(), DraftModel(model, target.abilities), needy]
    arms = [Arm(drafter.name, drafter) for drafter in drafters]
    rehearse(arms, target, plain_ms=1.0)
    assert [arm.record.asked for arm in arms] == [4, 4, 4]
    assert all(arm.record.draft_ms > 0 and not arm.record.judged for arm in arms)
    assert not target.tokens and needy.heard == 0 and not arms[2].ready
    assert drafters[1].reading_ms(History([5] * 400)) > 0  # how fast it reads is known
    assert not target.evaluate(1, chain_draft([2], [0.5], "x").tree).hidden


def test_nobody_is_begun_with_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("slipstream.app.engine.rehearsal.perf_counter", lambda: next(now))
    arms = [Arm("lookup", PromptLookup()), Arm("needy", Needy())]
    target = FakeTarget()
    rehearse(arms, target, plain_ms=1.0)
    assert [arm.record.asked for arm in arms] == [0, 0] and not target.decodes


def test_a_failing_one_leaves_the_target_in_order() -> None:
    class Broken(Needy):
        def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
            raise ValueError

    target = FakeTarget()
    with pytest.raises(ValueError):
        rehearse([Arm("needy", Broken())], target, plain_ms=1.0)
    assert not target.tokens
