"""The prompts that the target is judged on, and the filter that keeps them out of its training text.

The *development set* is 40 prompts that guided the writing of text and the choice of weights. So it shows the goals,
not how good the model is. The *test set* is drawn by hash from held-out prompts; ``test_set.sha256`` lists only their
digests, so that the set is fixed before training and is not read by accident.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from slipstream.drafters.training.family.same_question import SameQuestion, key
from slipstream.drafters.training.family.sources import Row, held_out

_DEVELOPMENT = Path(__file__).with_name("development.txt")
_TEST = Path(__file__).with_name("test_set.sha256")
BY_HEART = frozenset({"greeting", "identity"})
"""Kinds of development prompts that the model should know by heart; only these may occur in training text."""
TEST_PROMPTS = 40
_MOST_WORDS = 20


def development() -> list[tuple[str, str]]:
    """The development set as (kind, prompt), in order."""
    lines = _DEVELOPMENT.read_text(encoding="utf-8").splitlines()
    return [(kind, prompt) for kind, _, prompt in (line.partition(": ") for line in lines if line)]


def _barred() -> list[str]:
    return [prompt for kind, prompt in development() if kind not in BY_HEART]


def choose_test_set(rows: Iterable[Row]) -> list[str]:
    """Draws a test set: the first prompts in the order of their digests.

    Args:
        rows: the text; only its held-out chats that begin with a short question count.
    """
    near = SameQuestion(_barred())
    found = {prompt for prompt in _held_prompts(rows) if key(prompt) and not near.find(prompt)}
    return sorted(found, key=digest)[:TEST_PROMPTS]


def digest(prompt: str) -> str:
    """The digest of a prompt, as in ``test_set.sha256``."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def fixed_digests() -> list[str]:
    """The digests of the prompts of the test set."""
    return _TEST.read_text(encoding="utf-8").split()


def test_set(rows: Iterable[Row]) -> list[str]:
    """The prompts of the test set.

    Args:
        rows: the text that it was drawn from.

    Raises:
        ValueError: If the text no longer contains a prompt.
    """
    wanted = fixed_digests()
    found = {digest(prompt): prompt for prompt in _held_prompts(rows)}
    if missing := [each for each in wanted if each not in found]:
        raise ValueError(f"{len(missing)} prompts of the test set are not in the held-out text any more")
    return [found[each] for each in wanted]


def barred_from_training(rows: Iterable[Row]) -> SameQuestion:
    """Finds text that asks a prompt of the test set, or one of the development set that is not of ``BY_HEART``.

    Args:
        rows: the text that the test set was drawn from.
    """
    return SameQuestion([*_barred(), *test_set(rows)])


def _held_prompts(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        if row.messages and held_out(row) and row.messages[0]["role"] == "user":
            prompt = row.messages[0]["content"]
            if len(prompt.split()) <= _MOST_WORDS:
                yield prompt
