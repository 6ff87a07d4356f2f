"""The engine's process tells of its drafts when it is asked to, and writes the same text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.engine.process.client import Engine
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done, DraftTree, Stepped
from slipstream.app.protocol.requests import Generate, Message, Sampling

pytestmark = pytest.mark.program

BUNDLED = replace(choose(Paths.default({})), derived=None, index=None, chats=None, drafter="recycle")


def ask(engine: Engine, number: int) -> tuple[list[DraftTree], str, Done]:
    question = [Message("user", "Tell me about the sea")]
    asked = Generate(number, question, Sampling(seed=5), "recycle", max_tokens=40)
    events = list(engine.reply(asked))
    steps = [event for event in events if isinstance(event, Stepped)]
    done = events[-1]
    assert isinstance(done, Done)
    trees = [tree for step in steps if step.watched for tree in step.watched.trees]
    return trees, "".join(piece.text for step in steps for piece in step.pieces), done


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
