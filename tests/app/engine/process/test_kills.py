"""The engine killed at random moments: the reason is told, the text is kept, the next reply is as if undisturbed."""

import random
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.engine.disturbed import PHASES, SIGNALS, Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine

pytestmark = pytest.mark.program

KILLS = 40


def test_forty_kills_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(11)
    load = bundled(tmp_path / "derived")
    with closing(Engine(tmp_path / "engine.log")) as engine, closing(ChatStore(tmp_path / "chats.db")) as store:
        disturbed = Disturbed(engine, load, store, chance)
        disturbed.begin()
        for turn in range(KILLS):
            assert disturbed.kill(SIGNALS[turn % len(SIGNALS)], PHASES[turn % len(PHASES)]) == ""
        assert len(disturbed.processes) == KILLS and disturbed.orphans() == set()
        assert sum(disturbed.phases.values()) > 0
