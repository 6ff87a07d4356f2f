"""Which settings of another engine are its fastest."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.peers.process import PeerError
from tests.bench.peers.sweep import Sweep, Timing, Variant

VARIANTS = [Variant("fake", "draft", (("n_max", float(count)),)) for count in (2, 4, 8, 16)]


def tell(_line: str) -> None: ...


def timing(tokens: int, seconds: float) -> Timing:
    return Timing(tokens, seconds, 2 * seconds, "", None, None)


def test_the_fastest_setting_wins_and_the_slow_ones_leave_early() -> None:
    speeds = dict(zip(VARIANTS, (10, 20, 40, 30), strict=True))
    sweep = Sweep(VARIANTS, lambda variant, _: timing(speeds[variant], 1.0), prompts=2)
    assert sweep.run([[1], [2], [3]], tell) == VARIANTS[2]
    assert [(row.settings, row.tok_per_s, row.replies) for row in sweep.tried()] == [
        ({"n_max": 2.0}, 10, 2),
        ({"n_max": 4.0}, 20, 2),
        ({"n_max": 8.0}, 40, 4),
        ({"n_max": 16.0}, 30, 4),
    ]


def test_settings_are_compared_on_the_same_prompts_one_after_the_other() -> None:
    seen: list[tuple[Variant, tuple[int, ...]]] = []

    def reply(variant: Variant, prompt: Sequence[int]) -> Timing:
        seen.append((variant, tuple(prompt)))
        return timing(10, 1.0)

    assert Sweep(VARIANTS[:2], reply, prompts=2).run([[1], [2]], tell) == VARIANTS[0], "of equals the first"
    assert seen == [(variant, prompt) for prompt in ((1,), (2,)) for variant in VARIANTS[:2]]


def test_tokens_a_second_are_of_all_replies_not_the_mean_of_theirs() -> None:
    speeds = {
        (VARIANTS[0], 1): timing(10, 1.0),
        (VARIANTS[0], 2): timing(1, 0.001),  # a short one, fast by chance
        (VARIANTS[1], 1): timing(12, 1.0),
        (VARIANTS[1], 2): timing(1, 0.05),
    }
    sweep = Sweep(VARIANTS[:2], lambda variant, prompt: speeds[variant, prompt[0]], prompts=2)
    assert sweep.run([[1], [2]], tell) == VARIANTS[1]


def test_a_setting_that_is_refused_leaves_the_others_in() -> None:
    def reply(variant: Variant, _: Sequence[int]) -> Timing:
        if variant == VARIANTS[2]:
            raise PeerError("fake refuses: no.")
        return timing(dict(variant.settings)["n_max"].__int__(), 1.0)

    sweep = Sweep(VARIANTS, reply)
    assert sweep.run([[1]], tell) == VARIANTS[3]
    assert sweep.refused == {VARIANTS[2]: "fake refuses: no."}
    assert len(sweep.tried()) == 3


def test_nobody_wins_where_all_are_refused_or_there_is_nothing_to_try() -> None:
    def reply(_variant: Variant, _: Sequence[int]) -> Timing:
        raise PeerError("no.")

    sweep = Sweep(VARIANTS, reply)
    assert sweep.run([[1]], tell) is None and len(sweep.refused) == 4
    assert Sweep([], reply).run([[1]], tell) is None


def test_a_single_setting_is_only_asked_whether_it_can() -> None:
    sweep = Sweep(VARIANTS[:1], lambda *_: timing(1, 1.0))
    assert sweep.run([[1], [2], [3]], tell) == VARIANTS[0]
    assert sweep.tried()[0].replies == 1
