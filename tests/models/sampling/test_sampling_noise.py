"""The keyed noise by chi-square: over seeds, positions and ids, alone and in neighbouring pairs."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.models.sampling.sampler import Sampler, gumbel
from slipstream.models.sampling.top_k import Doubles
from slipstream.models.types import History

DRAWS = 20_000
IDS = (0, 1, 2, 1234, 151_935)


def chance_of(counts: NDArray[np.int64], expected: Doubles) -> float:
    """Probability of counts at least this far from what is expected (Wilson and Hilferty, 1931)."""
    assert expected.min() >= 5
    x = float(((counts - expected) ** 2 / expected).sum())
    k = counts.size - 1
    z = ((x / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return math.erfc(z / math.sqrt(2)) / 2


def uniform(noise: Doubles) -> Doubles:
    return np.exp(-np.exp(-noise))


def over_seeds(count: int) -> Doubles:
    return np.stack([gumbel(seed, 77, np.array(IDS)) for seed in range(-count // 2, count - count // 2)])


def over_far_seeds(count: int) -> Doubles:
    return np.stack([gumbel(seed << 40, 77, np.array(IDS)) for seed in range(count)])


def over_positions(count: int) -> Doubles:
    return np.stack([gumbel(42, position, np.array(IDS)) for position in range(count)])


def over_ids(count: int) -> Doubles:
    return np.stack([gumbel(seed, position, np.arange(count)) for seed, position in ((0, 0), (42, 77), (-1, 9))]).T


@pytest.mark.parametrize("over", [over_seeds, over_far_seeds, over_positions, over_ids])
def test_noise_is_uniform_and_neighbours_are_independent(over: Callable[[int], Doubles]) -> None:
    for u in uniform(over(DRAWS)).T:
        assert 0 < u.min() < u.max() < 1
        assert chance_of(np.bincount((u * 100).astype(int), minlength=100), np.full(100, DRAWS / 100)) >= 1e-4
        for lag in (1, 2, 64):
            pairs = (u[:-lag] * 10).astype(int) * 10 + (u[lag:] * 10).astype(int)
            assert chance_of(np.bincount(pairs, minlength=100), np.full(100, (DRAWS - lag) / 100)) >= 1e-4


@pytest.mark.parametrize("other", [(8, 77), (7, 78), (-7, 77), (0, 77), (7, 0)])
def test_neighbouring_keys_share_nothing_over_the_ids(other: tuple[int, int]) -> None:
    ids = np.arange(DRAWS)
    u, v = uniform(gumbel(7, 77, ids)), uniform(gumbel(*other, ids))
    pairs = (u * 10).astype(int) * 10 + (v * 10).astype(int)
    assert chance_of(np.bincount(pairs, minlength=100), np.full(100, DRAWS / 100)) >= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("key", ["seeds", "positions"])
@pytest.mark.parametrize("temperature", [0.8, 1.5])
def test_picks_have_the_distribution(key: str, temperature: float) -> None:
    row = np.random.default_rng(9).normal(size=50).astype(np.float32)
    sampler = Sampler(temperature, top_k=12, min_p=0.02, seed=3)
    ids, probs = sampler.distribution(row, History([]))
    if key == "seeds":
        picks = [Sampler(temperature, top_k=12, min_p=0.02, seed=s).pick(row, History([])) for s in range(DRAWS)]
    else:
        picks = [sampler.pick(row, History([], trimmed=position)) for position in range(DRAWS)]
    counts = np.bincount(picks, minlength=50)
    assert counts.sum() == counts[ids].sum() and chance_of(counts[ids], probs * DRAWS) >= 1e-4


def test_every_id_wins_as_often_and_seeds_give_different_texts() -> None:
    row = np.zeros(100, np.float32)
    sampler = Sampler(1.0, top_k=0, top_p=1.0, min_p=0.0)
    picks = [sampler.pick(row, History([], trimmed=position)) for position in range(DRAWS)]
    assert chance_of(np.bincount(picks, minlength=100), np.full(100, DRAWS / 100)) >= 1e-4
    row = np.zeros(40, np.float32)
    texts = {
        tuple(Sampler(1.0, seed=seed).pick(row, History([], trimmed=i)) for i in range(20))
        for seed in (-(2**70) - 5, -(2**63), -2, -1, 0, 1, 2, 3, 2**31, 2**32, 2**62, 2**64 - 3)
    }
    assert len(texts) == 12


def test_noise_is_what_it_always_was_and_only_the_low_64_bits_of_a_seed_count() -> None:
    # A kept seed must give the same text after an update.
    assert gumbel(7, 3, np.array([0, 1, 151_935])).tolist() == pytest.approx(PINNED, rel=1e-12)
    ids = np.arange(10)
    assert np.array_equal(gumbel(-1, 5, ids), gumbel(2**64 - 1, 5, ids))


PINNED = [0.8300287057627603, -0.2038633730793731, -1.0164297190514857]
