"""One decayed ratio of observed over expected outcomes, and the probabilities that it corrects."""

import numpy as np
import pytest

from slipstream.drafters.base import NO_DRAFT, Step
from slipstream.drafters.calibration import ProbabilityCalibration, RankedTokens, Ratio
from slipstream.models.types import Evaluation, History, Token

NO_ROWS = Evaluation(np.zeros((1, 1), np.float32))


def test_ratios_and_probabilities_follow_what_came_true() -> None:
    ratio = Ratio(0.99, 0.0, 0.0)
    assert ratio.given(0.3, 4) == pytest.approx(0.3)
    for _ in range(400):
        ratio.add(1, 1)
    assert ratio.given(0.3, 4) > 0.95
    for _ in range(400):
        ratio.add(0, 1)
    assert ratio.given(0.3, 4) < 0.05
    calibration = ProbabilityCalibration()
    assert calibration.corrected(0.75) == pytest.approx(0.75)
    for turn in range(900):
        calibration.add(0.72 + 0.06 * (turn % 2), turn % 4 == 0)
    assert calibration.corrected(0.75) == pytest.approx(0.25, abs=0.08)
    assert calibration.corrected(0.65) == pytest.approx(0.65)


def observed(ranked: RankedTokens, tokens: list[Token], drafted_for: int = 2) -> None:
    history = History([1, 2][:drafted_for] + tokens)
    ranked.observe(history, Step(NO_DRAFT, (), tuple(tokens), NO_ROWS))


def test_ranked_tokens_are_measured_along_the_path_that_the_target_took_in_their_text() -> None:
    ranked = RankedTokens()
    for _ in range(300):
        ranked.begin(History([1, 2]))
        ranked.add((), [5, 6], [0.6, 0.3])
        ranked.add((5,), [7], [0.9])  # beside the target's path: not decided
        ranked.add((6,), [8], [0.8])
        observed(ranked, [6, 9])
    assert () in ranked and (7,) not in ranked
    ranked.begin(History([1, 2]))
    assert () not in ranked
    low, high = ranked.add((), [5, 6], [0.6, 0.3])
    assert low < 0.1 and high > 0.9
    assert ranked.after(()) == [(6, high), (5, low)]  # the most probable first
    assert ranked.add((5,), [7], [0.9]) == [pytest.approx(0.9)] and ranked.add((6,), [8], [0.85])[0] < 0.15
    ranked = RankedTokens()
    for _ in range(50):
        ranked.begin(History([1, 2]))
        ranked.add((), [5], [0.6])
        observed(ranked, [6], drafted_for=1)
    ((token, prob),) = ranked.after(())
    assert token == 5 and prob == pytest.approx(0.6)
