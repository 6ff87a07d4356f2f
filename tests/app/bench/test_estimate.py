"""How long a benchmark still takes, in virtual time."""

from collections.abc import Sequence

import pytest

from slipstream.app.bench.drafters import turn_of
from slipstream.app.bench.estimate import Estimate, about

NAMES = ("auto", "lookup", "recycle")
PACE = {"none": 0.05, "auto": 0.03, "lookup": 0.055, "recycle": 0.14}
LENGTHS = {"chat": 60, "story": 110, "copy": 90}


def played(kinds: Sequence[str], warm: dict[str, float]) -> list[tuple[float, float]]:
    """Plays it; the time that was said to be left and the time that was left, at the begin of each reply and in it."""
    now, seen = 0.0, list[tuple[float, float]]()
    estimate = Estimate(turn_of(NAMES), 160, lambda: now)
    estimate.pace |= warm
    for at, kind in enumerate(kinds):
        estimate.begin(kind, 1, [(later, 1) for later in kinds[at + 1 :]])
        for name in turn_of(NAMES):
            estimate.reply(name)
            for token in range(LENGTHS[kind]):
                if token % 20 == 0:
                    left = estimate.left()
                    assert left is not None
                    seen.append((now, left))
                now += PACE[name]
            estimate.end(LENGTHS[kind])
    return [(left, now - at) for at, left in seen]


def within(seen: Sequence[tuple[float, float]], factor: float) -> float:
    """The share of the times that were said right within a factor."""
    return sum(1 / factor <= (said + 1) / (truth + 1) <= factor for said, truth in seen) / len(seen)


def test_it_is_right_within_a_half_once_a_turn_was_written_and_said_in_words() -> None:
    kinds = ["chat", "chat", "story", "story", "copy", "copy"]
    seen = played(kinds, {name: 1.7 * pace for name, pace in PACE.items()})
    first = len(seen) // 6
    assert within(seen[first:], 1.5) == 1.0
    assert 1.5 < seen[0][0] / seen[0][1] < 4.5  # the first knows only a slow warm-up, and that replies may be long
    estimate = Estimate(["none"], 160)
    estimate.begin("chat", 1, [])
    assert estimate.left() is None and estimate.share == 0.0
    assert (about(3), about(200), about(9000)) == ("about 5 s", "about 3 min", "about 2.5 h")


def test_later_turns_count() -> None:
    now = 0.0
    estimate = Estimate(["none", "auto", "none"], 100, lambda: now)
    estimate.pace |= {"none": 0.1, "auto": 0.1}
    estimate.begin("chat", 2, [("chat", 1)])
    assert estimate.left() == pytest.approx(3 * 3 * 100 * 0.1)
    for _ in range(3):
        estimate.reply("none" if _ != 1 else "auto")
        now += 5.0
        estimate.end(50)
    assert estimate.left() == pytest.approx(2 * 3 * 50 * 0.1)
