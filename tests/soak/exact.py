"""Whether drafting changes what is written: enumerated, and drawn.

A command: ``python -m tests.soak.exact [CASES [DRAWS]]``; 5,000 and 1,000,000. Prints two lines:
what, how many, how many failed, the 95 % bound.

1. Random targets, drafts and settings over a tiny vocabulary, every branch enumerated: no text's probability may differ
   from the target's by more than 1e-12.
2. Twenty of them drawn with the sampler's own noise: chi-square against the target's distribution, cells of an
   expectation below 5 pooled, p >= 1e-4.
"""

import math
import sys
from collections import Counter

from tests.drafters.test_accept_exact import Case, Chance, Text, every_branch, shipped, worst_error

from slipstream.drafters.accept import accept
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History

ERROR = 1e-12
LEAST_P = 1e-4
PAIRS = 20


def enumerated(cases: int) -> int:
    worst, failed = 0.0, 0
    for seed in range(cases):
        error = worst_error(Case(seed), shipped)
        worst, failed = max(worst, error), failed + (error > ERROR)
    told("verifier, enumerated", f"{cases:,} targets and drafts", cases, failed, f"; largest error {worst:.1e}")
    return failed


def drawn(draws: int) -> int:
    failed, least, distance = 0, 1.0, 0.0
    cases = [case for case in map(Case, range(4 * PAIRS)) if case.sampler.temperature > 0][:PAIRS]
    for case in cases:
        counts = Counter(text_of(case, seed) for seed in range(draws))
        p, far = compared(counts, target(case), draws)
        least, distance, failed = min(least, p), max(distance, far), failed + (p < LEAST_P)
    more = f"; least p {least:.2g}, largest total variation {distance:.4f}"
    told("verifier, drawn", f"{len(cases)} targets and drafts, {draws:,} texts each", len(cases), failed, more)
    return failed


def text_of(case: Case, seed: int) -> Text:
    sampler = Sampler(
        temperature=case.sampler.temperature, top_k=case.sampler.top_k, top_p=case.sampler.top_p,
        min_p=case.sampler.min_p, repetition_penalty=case.sampler.repetition_penalty,
        penalty_window=case.sampler.penalty_window, seed=seed,
    )  # fmt: skip
    text: list[int] = []
    while len(text) < case.length:
        context = case.prompt + text
        draft, evaluation = case.step(context)
        text += accept(draft, evaluation, sampler, History(context), lambda tokens: False).tokens
    return tuple(text[: case.length])


def target(case: Case) -> dict[Text, float]:
    def ancestral(chance: Chance) -> Text:
        text: list[int] = []
        while len(text) < case.length:
            text.append(chance.choose(case.next(case.prompt + text)))
        return tuple(text)

    return every_branch(ancestral)


def compared(counts: Counter[Text], expected: dict[Text, float], draws: int) -> tuple[float, float]:
    """The chi-square test's p, by Wilson and Hilferty's approximation, and the total variation."""
    if counts.keys() - expected.keys():
        return 0.0, 1.0
    cells = [(counts[text], p * draws) for text, p in expected.items() if p * draws >= 5]
    rest = [(counts[text], p * draws) for text, p in expected.items() if p * draws < 5]
    pooled = sum(wanted for _, wanted in rest)
    if pooled >= 5:
        cells.append((sum(seen for seen, _ in rest), pooled))
    distance = sum(abs(counts[text] / draws - p) for text, p in expected.items()) / 2
    free = len(cells) - 1
    if free < 1:
        return 1.0, distance
    x = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    z = ((x / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return math.erfc(z / math.sqrt(2)) / 2, distance


def told(name: str, what: str, count: int, failed: int, more: str) -> None:
    bound = f", 95 % bound {3 / count:.2%}" if not failed else ""
    print(f"{name}: {what}, {failed} failed{bound}{more}", flush=True)


def main(cases: int = 5000, draws: int = 1_000_000) -> int:
    return int(enumerated(cases) + drawn(draws) > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
