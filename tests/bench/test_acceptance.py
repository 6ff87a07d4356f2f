"""The part that measures how often drafters are right: it counts the best path, and agrees with plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.bench.__main__ import bench
from tests.bench.acceptance import DEPTH, best_path
from tests.bench.test_command import TINY, options

from slipstream.app.platform.paths import HOME_VARIABLE
from slipstream.drafters.base import Draft, Step
from slipstream.models.types import EMPTY_TREE, Evaluation, TokenTree

NOTHING = Evaluation(np.empty((0, 0), np.float32))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((5, 6, 7, 1), [True, True, True]),
        ((5, 6, 9), [True, True, False]),
        ((5, 8, 1), [True, False]),  # right, but on another branch
        ((4, 1), [False]),
        ((), []),
    ],
)
def test_the_best_path_ends_with_its_first_wrong_guess(tokens: tuple[int, ...], expected: list[bool]) -> None:
    """Of a tree 5 -> (6 -> 7 | 8), with a mask below the root that is never accepted."""
    tree = TokenTree((5, 6, 7, 8, 99), (-1, 0, 1, 0, -1), frozenset({4}))
    assert best_path(Step(Draft(tree, (1.0,) * 5), (), tokens, NOTHING)) == expected


def test_a_plain_step_has_no_guesses() -> None:
    assert best_path(Step(Draft(EMPTY_TREE, ()), (), (5,), NOTHING)) == []


@pytest.mark.program
def test_the_text_is_that_of_plain_decoding_and_the_first_depth_is_tried_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    asked = options(tmp_path / "f.json", "acceptance", drafters="draft,lookup", tokens=24, prompts="chat", limit=2)
    assert bench(asked, TINY) == 0
    draft, lookup = json.loads((tmp_path / "f.json").read_text())["acceptance"]
    assert draft["tokens"] == lookup["tokens"] > 20
    assert draft["repeated"] == lookup["repeated"]
    # all steps but those that end a reply, and draft() of the last token that may follow
    assert draft["steps"] - 4 <= draft["depths"][0][0] <= draft["steps"]
    assert len(draft["depths"]) == DEPTH
    assert all(of >= right for of, right in draft["depths"])
    assert [right for _, right in draft["depths"][:-1]] >= [of for of, _ in draft["depths"][1:]]
