"""What the engine tells somebody who looks at the drafts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.process.worker import Event, Throttle
from slipstream.app.engine.reply import LOOK_EVERY, PLAIN_EVERY, DraftTrace
from slipstream.app.engine.stats import PlainClock, ReplyStats
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done, DraftTree, Piece, Stepped, Watched
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.drafters.base import NO_DRAFT, Draft, Step
from slipstream.models.types import Evaluation, TokenTree

BUNDLED = replace(choose(Paths.default({})), derived=None, index=None, chats=None, drafter="recycle")
NOTHING = Evaluation(np.zeros((1, 1), np.float32))
# nodes 2 and 3 are probes
TREE = Draft(
    TokenTree((1, 2, 9, 9, 3), (-1, 0, 1, 0, -1), frozenset({2, 3})), (0.9, 0.5, 0, 0, 0.1), ("a", "b") * 2 + ("a",)
)


class Words:
    """Token n is the n-th of these; whoever reads one while nobody looks is found out."""

    allowed = True
    ends = frozenset[int]()

    def piece(self, token: int) -> bytes:
        assert self.allowed
        return (b"<0>", b" one", b"\xe2\x82", b" three", b"four", b"")[min(token, 5)]


def step(draft: Draft, path: tuple[int, ...], last: int = 4) -> Step:
    return Step(draft, path, (*(draft.tree.tokens[node] for node in path), last), NOTHING)


def watch(steps: list[Step], looks: Iterator[bool], clock: Iterator[float]) -> list[Watched | None]:
    words, stats = Words(), ReplyStats(PlainClock())
    seen = False

    def watched() -> bool:
        nonlocal seen
        seen = words.allowed = next(looks)
        return seen

    lookout = DraftTrace(watched, words, stats, lambda: next(clock))
    told = []
    for one in steps:
        stats.add(one, 2.0)
        told.append(lookout.of(one, 2.0))
    return told


def test_a_tree_is_told_without_its_probes() -> None:
    (told,) = watch([step(TREE, (0,))], iter([True]), iter([0.0]))
    assert told is not None
    (tree,) = told.trees
    assert tree.texts == [" one", "\\xe2\\x82", " three"]  # bytes that are no character are spelled out
    assert (tree.parents, tree.path, tree.probes, tree.step, tree.ms) == ([-1, 0, -1], [0], 2, 1, 2.0)
    assert (tree.probs, tree.sources) == ([0.9, 0.5, 0.1], ["a", "b", "a"])
    assert tree.last == Piece("four", "recovered")
    assert told.by_drafter == {"a": {"steps": 1, "drafted": 2, "accepted": 1}}
    assert told.drafter_depths == {"a": [[1, 1], [1, 0]]}


def test_a_plain_step_has_an_empty_tree_and_what_was_told_does_not_change() -> None:
    (told,) = watch([step(NO_DRAFT, (), last=5)], iter([True]), iter([0.0]))
    assert told is not None and (told.trees[0].texts, told.trees[0].last) == ([], Piece("", "plain"))
    assert told.drafter_depths == {}
    first, second = watch([step(TREE, (0,))] * 2, iter([True] * 2), iter([0.0, 1.0]))
    assert first is not None and first.drafter_depths == {"a": [[1, 1], [1, 0]]}
    assert second is not None and second.drafter_depths == {"a": [[2, 2], [2, 0]]}


def test_nothing_is_made_while_nobody_looks_and_quick_or_plain_steps_are_passed_over() -> None:
    looks = [False, True, False, True]
    told = watch([step(TREE, (0,))] * 4, iter(looks), iter([1.0, 2.0]))
    assert [each is not None for each in told] == looks
    assert told[3] is not None and told[3].trees[0].step == 4
    times = [0.0, LOOK_EVERY / 2, LOOK_EVERY * 1.1, LOOK_EVERY * 1.2]
    told = watch([step(TREE, (0,))] * 4, iter([True] * 4), iter(times))
    assert [each is not None for each in told] == [True, False, True, False]
    plain, drafted = step(NO_DRAFT, ()), step(TREE, (0,))
    steps = [plain, plain, drafted, plain, plain, plain]
    times = [0.0, LOOK_EVERY * 1.1, LOOK_EVERY * 1.2, PLAIN_EVERY]
    times += [PLAIN_EVERY * 1.1 + LOOK_EVERY * 1.2, PLAIN_EVERY * 2]
    told = watch(steps, iter([True] * 6), iter(times))
    assert [each is not None for each in told] == [True, False, True, False, True, False]


def test_joined_steps_keep_all_trees_and_the_later_figures() -> None:
    first, second = watch([step(TREE, (0,))] * 2, iter([True] * 2), iter([0.0, 1.0]))
    assert first and second
    heard: list[Event] = []
    pace = Throttle(heard.append, 60_000.0)
    plain = Stepped(1, [], [7], "none", 0, 0, 1.0, speed=ReplyStats(PlainClock()).speed())
    for watched in (None, None, first, None, second, None):
        pace(replace(plain, watched=watched))
    pace.flush()
    at_once, joined = heard
    assert isinstance(at_once, Stepped) and at_once.watched is None
    assert isinstance(joined, Stepped)
    assert joined.watched == Watched(first.trees + second.trees, second.by_drafter, second.drafter_depths)


def ask(engine: Engine, number: int) -> tuple[list[DraftTree], str, Done]:
    question = [Message("user", "Tell me about the sea")]
    asked = Generate(number, question, Sampling(seed=5), "recycle", max_tokens=40)
    events = list(engine.reply(asked))
    steps = [event for event in events if isinstance(event, Stepped)]
    done = events[-1]
    assert isinstance(done, Done)
    trees = [tree for step in steps if step.watched for tree in step.watched.trees]
    return trees, "".join(piece.text for step in steps for piece in step.pieces), done


@pytest.mark.program
def test_drafts_come_while_somebody_looks_even_after_a_new_start(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "engine.log")
    try:
        engine.watch(True)  # before there is a process to hear it
        engine.load(BUNDLED)
        trees, text, done = ask(engine, 1)
        assert trees and trees[0].step == 1
        for tree in trees:
            written = "".join(tree.texts[node] for node in tree.path) + tree.last.text
            assert written in text
            assert len(tree.texts) == len(tree.parents) == len(tree.probs) == len(tree.sources)
            assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
        drafted = {name: count for name, count in done.by_drafter.items() if count["drafted"]}
        assert set(done.drafter_depths) == set(drafted)
        assert sum(at[1] for depths in done.drafter_depths.values() for at in depths) <= done.speed.accepted
        engine.watch(False)
        assert ask(engine, 2)[:2] == ([], text)
    finally:
        engine.close()
