"""The statistics of the benchmark, on made-up numbers."""

import numpy as np
import pytest

from slipstream.app.bench.intervals import FEW, Interval, ReplyPair, TimedTokens, advantage, between, speedup


def prompts(ratios: list[float], tokens: float = 100.0) -> list[ReplyPair]:
    return [ReplyPair(TimedTokens(tokens, 1.0 / ratio), TimedTokens(tokens, 1.0)) for ratio in ratios]


def test_a_drift_cancels_and_the_ratio_is_of_total_times_by_tokens_a_second() -> None:
    for step in (-0.05, 0.0, 0.2):
        seconds = [1.0 + step * at for at in range(7)]  # of a plain reply at that time
        for at in (1, 3, 5):
            plain = between(TimedTokens(80, seconds[at - 1]), TimedTokens(80, seconds[at + 1]))
            assert ReplyPair(TimedTokens(80, seconds[at] / 1.7), plain).speedup == pytest.approx(1.7, rel=1e-12)
    naive = ReplyPair(TimedTokens(80, 1.2 / 1.7), TimedTokens(80, 1.0)).speedup
    assert naive and naive < 1.5  # what the plain reply before alone would say
    long, short = (
        ReplyPair(TimedTokens(900, 1.0), TimedTokens(900, 3.0)),
        ReplyPair(TimedTokens(100, 1.0), TimedTokens(100, 0.5)),
    )
    assert speedup([long, short]).value == pytest.approx(3.5 / 2)
    assert (long + short).speedup == pytest.approx(3.5 / 2)
    assert speedup([ReplyPair(TimedTokens(50, 1.0), TimedTokens(100, 1.0))]).value == pytest.approx(0.5)


def test_few_prompts_have_no_interval_and_the_same_figures_the_same_one() -> None:
    for count in (1, 2, FEW - 1):
        found = speedup(prompts([2.0] * count))
        assert found == Interval(2.0) and found.low is found.high is None and found.text() == "2.00x"
    assert speedup(prompts([1.0, 1.5, 2.0, 2.5, 3.0])).text().endswith("]")
    made = prompts(np.random.default_rng(3).uniform(0.5, 3, 12).tolist())
    assert speedup(made) == speedup(list(made))


@pytest.mark.parametrize(("count", "least"), [(8, 0.88), (30, 0.91)])
def test_the_interval_covers_the_truth(count: int, least: float) -> None:
    """Seconds of a plain reply and its ratio vary; 95 % is promised, and few skewed prompts may cost some of it."""
    rng = np.random.default_rng(7)
    covered = widths = 0.0
    trials = 200
    for _ in range(trials):
        plain = rng.uniform(0.5, 1.5, count)
        ours = plain / 2.0 * rng.lognormal(0.0, 0.3, count) / np.exp(0.045)  # of mean 1: the truth is 2.0
        made = [
            ReplyPair(TimedTokens(100, float(a)), TimedTokens(100, float(b))) for a, b in zip(ours, plain, strict=True)
        ]
        found = speedup(made)
        assert found.low is not None and found.high is not None
        assert found.low <= found.value <= found.high
        covered += found.low <= 2.0 <= found.high
        widths += found.high - found.low
    assert covered / trials >= least
    assert widths / trials < 1.2  # and it is no excuse


def test_two_drafters_are_compared_prompt_by_prompt() -> None:
    # Prompts differ widely, the two drafters hardly: paired, the interval is narrow.
    ratios = np.random.default_rng(5).uniform(0.5, 4, 16)
    auto, best = prompts((ratios * 0.97).tolist()), prompts(ratios.tolist())
    found = advantage(auto, best)
    assert found.value == pytest.approx(0.97)
    assert found.low == pytest.approx(0.97) and found.high == pytest.approx(0.97)
    alone = speedup(auto)
    assert alone.low is not None and alone.high is not None and alone.high - alone.low > 0.5
    fast = [ReplyPair(TimedTokens(100, 0.5), TimedTokens(100, 1.0))] * 5
    slow = [ReplyPair(TimedTokens(100, 1.0), TimedTokens(100, 2.0))] * 5
    assert advantage(fast, slow).value == pytest.approx(1.0)
