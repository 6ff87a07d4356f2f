"""The sampler: a pure function of (logits, history, position, seed).

Gumbel noise, a hash of (seed, position, token id), is added to the truncated logits divided by the temperature; the
token with the largest sum is drawn. It is the same token in plain decoding and in the verification of a draft
("drafter-invariant", Daliri et al., arXiv 2408.07978), and there is no generator state to clone or rewind.

DRY makes a token less likely the longer the repetition that it would continue. Source: p-e-w's "DRY" for
text-generation-webui (pull request 5677), as llama.cpp's sampler computes it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import UsageError
from slipstream.models.sampling.top_k import NONE, Doubles, Ids, best, cleaned, with_penalties
from slipstream.models.types import Floats, History, Token

_HEAD: Final = 1024  # best tokens that top-p tries first when top-k is off; sorting the whole row is slow
_CONFIDENCE_TOP: Final = 64
BREAKERS: Final = (b"\n", b":", b'"', b"*")
"""A token that contains one of these ends a repetition: they structure lists, names and dialogue."""
LONGEST: Final = 64
"""Maximum counted length of a repetition; the penalty of much shorter ones already exceeds any logit."""
_MASK: Final = (1 << 64) - 1
_WEYL: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64's finalizer (Steele et al., 2014)
_RECOMMENDED: Final = MappingProxyType(
    {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
)
"""Header keys below ``general.sampling.``, converted from generation_config.json, to fields of ``Sampler``."""
_LARGEST: Final = MappingProxyType(
    {"temperature": 10.0, "top_k": 1e6, "top_p": 1.0, "min_p": 1.0, "repetition_penalty": 100.0}
)
"""Largest accepted values: the file is not trusted."""


@dataclass(frozen=True)
class Sampler:
    """Draws tokens by these steps: bias, penalties, DRY, top-n-sigma, top-k, top-p, min-p, temperature, noise.

    Ties go to the lowest id.

    Raises:
        UsageError: If a value is out of its range.
    """

    temperature: float = 0.8  # divides the logits after truncation; 0 takes the best token
    top_k: int = 40  # keeps the k best; 0 is off. 1 to 64 is fast on large vocabularies
    top_p: float = 0.95  # keeps the fewest best tokens with at least this much probability; 1 is off
    min_p: float = 0.05  # keeps tokens with at least this fraction of the best token's probability; 0 is off
    repetition_penalty: float = 1.0  # divides positive and multiplies negative logits of tokens in the window; 1 is off
    presence_penalty: float = 0.0  # subtracted from logits of tokens in the window; 0 is off
    penalty_window: int = 256  # number of latest tokens to which the penalties apply
    top_n_sigma: float = 0.0  # keeps tokens within n standard deviations of the best logit; 0 is off
    dry: float = 0.0  # strength of the penalty for repetitions, 0 is off
    dry_base: float = 1.75  # the penalty is dry * dry_base ** (length of the repetition - dry_allowed)
    dry_allowed: int = 2  # length from which continuing a repetition is penalized
    dry_window: int = 1024  # number of latest tokens in which DRY finds repetitions
    breakers: frozenset[Token] = frozenset()  # tokens that end a repetition
    bias: tuple[tuple[Token, float], ...] = ()  # added to logits; minus infinity forbids a token
    seed: int = 0  # any integer; only its low 64 bits are used

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1 (off)"),
            ("min-p", self.min_p, 0 <= self.min_p < 1, "0 (off) or more and below 1"),
            ("repetition penalty", self.repetition_penalty, 0.01 <= self.repetition_penalty <= 100, "0.01 to 100"),
            ("presence penalty", self.presence_penalty, -100 <= self.presence_penalty <= 100, "-100 to 100"),
            ("penalty window", self.penalty_window, self.penalty_window >= 0, "0 or more"),
            ("top-n-sigma", self.top_n_sigma, 0 <= self.top_n_sigma < math.inf, "0 (off) or more"),
            ("dry", self.dry, 0 <= self.dry <= 100, "0 (off) to 100"),
            ("dry base", self.dry_base, 1 <= self.dry_base <= 4, "1 to 4"),
        )
        for name, value, fits, wanted in ranges:
            if not fits:  # false for a NaN
                raise UsageError(f"{name} is {value}; it must be {wanted}.")

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        """Draws the token after ``history`` and ``ahead``.

        Args:
            logits: [n_vocab], read only. NaN counts as minus infinity.
            ahead: Draft tokens between the history and this row.

        Raises:
            SlipstreamError: If no logit is a finite number.
        """
        if self.temperature == 0:
            ids, _ = best(logits, 1, *self._adjusted(logits, history, ahead))
            return int(ids[0])
        ids, scaled = self._tempered(logits, history, ahead)
        return int(ids[self._winner(ids, scaled, history.position + len(ahead))])

    def rank(
        self, logits: Floats, history: History, ahead: Sequence[Token] = (), count: int = 1
    ) -> tuple[list[Token], list[float]]:
        """Ranks the tokens that another model may draw here with the same noise; ``pick`` draws the first.

        Returns:
            At most ``count`` tokens, and the estimated probability that the other model draws each: the geometric mean
            of the token's softmax at temperature 1 with and without the noise. On the bundled models this estimate was
            calibrated at every temperature, and no other one separated right from wrong tokens better.
        """
        if self.temperature == 0:
            ids, values = best(logits, _CONFIDENCE_TOP, *self._adjusted(logits, history, ahead))
            weights = np.exp(values - values[0])
            return ids[:count].tolist(), (weights[:count] / weights.sum()).tolist()
        ids, scaled = self._tempered(logits, history, ahead)
        plain = scaled * self.temperature
        noisy = plain + self.temperature * gumbel(self.seed, history.position + len(ahead), ids)
        order = (-noisy).argsort(kind="stable")[:count]
        with_noise, without = np.exp(noisy - noisy[order[0]]), np.exp(plain)
        shares = np.sqrt(with_noise[order] * without[order] / (with_noise.sum() * without.sum()))
        return ids[order].tolist(), shares.tolist()

    def distribution(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> tuple[Ids, Doubles]:
        """Ids [n] that ``pick`` can draw, best first, and their probabilities [n]; one id at temperature 0."""
        if self.temperature == 0:
            ids, _ = best(logits, 1, *self._adjusted(logits, history, ahead))
            return ids, np.ones(1)
        ids, scaled = self._tempered(logits, history, ahead)
        order = np.argsort(-scaled, kind="stable")
        weights = np.exp(scaled[order])
        return ids[order], weights / weights.sum()

    @property
    def compared(self) -> bool:
        """Whether what is drawn depends on few of the best tokens alone: see ``contenders``."""
        return self.temperature == 0 or (self.top_k > 0 and self.top_n_sigma == 0)

    def contenders(
        self, logits: Floats, history: History, ahead: Sequence[Token], least: int
    ) -> tuple[list[Token], int]:
        """The best tokens, ``least`` or more if there are as many, and how many of them decide what is drawn."""
        count = 1 if self.temperature == 0 else self.top_k
        reach = self._min_p_margin if least == 1 and count > 1 else math.inf
        ids, _ = best(logits, max(count, least), *self._adjusted(logits, history, ahead), reach)
        return ids.tolist(), count

    @property
    def _min_p_margin(self) -> float:
        """Largest distance below the best logit at which min-p keeps a token."""
        return -math.log(self.min_p) if self.min_p > 0 else math.inf

    def _tempered(self, logits: Floats, history: History, ahead: Sequence[Token]) -> tuple[Ids, Doubles]:
        """The ids that truncation keeps, and their logits relative to the best one, divided by the temperature."""
        changed, adjusted = self._adjusted(logits, history, ahead)
        sigma_margin = math.inf
        if self.top_n_sigma > 0:
            row = with_penalties(cleaned(logits), changed, adjusted)
            sigma_margin = self.top_n_sigma * float(row[row > -np.inf].std(dtype=np.float64))
        if self.top_k:
            ids, values = best(logits, self.top_k, changed, adjusted, min(self._min_p_margin, sigma_margin))
            if len(ids) == 1:
                return ids, np.zeros(1)
            below = values - values[0]
            within = len(below) if sigma_margin == math.inf else int((-below).searchsorted(sigma_margin, side="right"))
            ids, below = ids[:within], below[:within]
            mass = np.exp(below).sum() if self.top_p < 1 else 1.0
        else:
            ids, below, mass = self._best_by_mass(logits, changed, adjusted, sigma_margin)
        keep = len(ids)
        if self.top_p < 1:
            keep = int(np.exp(below).cumsum().searchsorted(self.top_p * mass)) + 1
        if self.min_p > 0:
            keep = min(keep, int((-below).searchsorted(self._min_p_margin, side="right")))
        with np.errstate(over="ignore"):  # with a tiny temperature, only ties with the best token stay finite
            return ids[:keep], below[:keep] / self.temperature

    def _best_by_mass(
        self, logits: Floats, changed: Ids, adjusted: Floats, sigma_margin: float
    ) -> tuple[Ids, Doubles, float]:
        """Finds the ids that top-p and min-p may keep if top-k is off; sorted, best first, if either of them is on.

        Returns the ids, their logits relative to the best, and the row's sum of exponentials (1 if top-p is off).
        """
        row = with_penalties(cleaned(logits), changed, adjusted)
        highest = float(row.max())
        if sigma_margin < math.inf:
            row = np.where(highest - row.astype(np.float64) <= sigma_margin, row, np.float32(-np.inf))
        mass = float(np.exp(row.astype(np.float64) - highest).sum()) if self.top_p < 1 else 1.0
        if self.top_p < 1 and self.min_p == 0:
            ids, values = best(row, _HEAD, NONE, row[:0])
            if np.cumsum(np.exp(values - highest))[-1] < self.top_p * mass:
                ids, values = best(row, row.size, NONE, row[:0])
            return ids, values - highest, mass
        floor = highest + math.log(self.min_p) if self.min_p > 0 else -math.inf
        floor -= 1e-3 + 1e-6 * abs(highest)  # slightly low: the caller applies min-p in double precision
        ids = np.flatnonzero(row >= floor if self.min_p > 0 else row > -np.inf)
        below = row[ids].astype(np.float64) - highest
        if self.min_p == 0:
            return ids, below, mass
        order = np.argsort(-below, kind="stable")
        return ids[order], below[order], mass

    def _winner(self, ids: Ids, scaled: Doubles, position: int) -> int:
        if len(ids) == 1:
            return 0
        scores = scaled + gumbel(self.seed, position, ids)
        ties = (scores == scores.max()).nonzero()[0]
        return int(ties[ids[ties].argmin()])

    def _adjusted(self, logits: Floats, history: History, ahead: Sequence[Token]) -> tuple[Ids, Floats]:
        """The ids, ascending, whose logits are changed by bias, penalties or DRY, and their new logits."""
        penalizes = self.penalty_window and (self.repetition_penalty != 1 or self.presence_penalty != 0)
        if not (penalizes or self.bias or self.dry):
            return NONE, logits[:0]
        window = set(_last(self.penalty_window, history, ahead)) if penalizes else set[Token]()
        repeated: dict[Token, int] = {}
        if self.dry and self.dry_window:
            repeated = repetitions(_last(self.dry_window, history, ahead), self.breakers, self.dry_allowed)
        ids = np.array(list(window.union(repeated, (token for token, _ in self.bias))), np.int64)
        ids.sort()
        ids = ids[(ids >= 0) & (ids < logits.size)]
        values = np.fmax(logits[ids], np.float32(-np.inf))  # a NaN becomes minus infinity
        for token, bias in self.bias:
            values[ids == token] += np.float32(bias)
        if penalizes:
            inside = np.isin(ids, list(window))
            penalized = np.where(values > 0, values / self.repetition_penalty, values * self.repetition_penalty)
            values = np.where(inside, penalized - self.presence_penalty, values).astype(np.float32)
        for token, size in repeated.items():
            values[ids == token] -= np.float32(self.dry * self.dry_base ** (size - self.dry_allowed))
        return ids, values


def _last(count: int, history: History, ahead: Sequence[Token]) -> list[Token]:
    rest = count - len(ahead)
    return [*(history.tokens[-rest:] if rest > 0 else ()), *ahead[-count:]]


def repetitions(tokens: Sequence[Token], breakers: Collection[Token], least: int) -> dict[Token, int]:
    """The tokens that would continue a repetition at the end of the text, and the length of the longest one."""
    end = len(tokens)
    longest = 0
    while longest < min(LONGEST, end) and tokens[end - 1 - longest] not in breakers:
        longest += 1
    found: dict[Token, int] = {}
    if longest < max(least, 1):
        return found
    last = tokens[-1]
    for place, token in enumerate(tokens[:-1], 1):  # ``place`` is the index of the following token
        if token != last:
            continue
        size = 1
        while size < min(longest, place) and tokens[place - 1 - size] == tokens[end - 1 - size]:
            size += 1
        if size >= least and size > found.get(tokens[place], 0):
            found[tokens[place]] = size
    return found


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Hashes (seed, position, id) to standard Gumbel noise [n], the same everywhere up to the last bits of ``log``."""
    key = _mix_int(_mix_int(seed & _MASK) + _WEYL * (position + 1))
    whitening = _mix_int(_mix_int(key))  # mixed twice: once would equal the first round of id 1 and cancel it
    bits = _mix(_mix(ids.astype(np.uint64) * np.uint64(_WEYL) + np.uint64(key)) ^ np.uint64(whitening))
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # exact, and never 0 or 1
    return -np.log(-np.log(uniform))


def _mix_int(value: int) -> int:
    value = (value + _WEYL) & _MASK
    for shift, factor in _MIX:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> 31)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes an array in place, as ``_mix_int`` does after its increment."""
    for shift, factor in _MIX:
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> 31
    return bits


def recommended(metadata: Mapping[str, object]) -> dict[str, float]:
    """A header's valid values by field of ``Sampler``; min-p is off if only top-k or top-p is given."""
    named = {field: metadata.get(f"general.sampling.{key}") for key, field in _RECOMMENDED.items()}
    return checked({field: value for field, value in named.items() if isinstance(value, int | float)})


def checked(values: Mapping[str, float]) -> dict[str, float]:
    """Leaves out values that ``Sampler`` would reject, and adds min-p; see ``recommended``."""
    found: dict[str, float] = {}
    for field, value in values.items():
        if isinstance(value, bool) or not abs(value) <= _LARGEST[field]:  # also true of a NaN
            continue
        number = max(int(value), 0) if field == "top_k" else round(float(value), 6)  # removes single-precision error
        try:
            Sampler(**{field: number})  # type: ignore[arg-type]
        except UsageError:
            continue
        found[field] = number
    if found.keys() & {"top_k", "top_p"}:
        found.setdefault("min_p", 0.0)
    return found
