"""Replies stopped at random moments: what was written stays, and the next reply is as if undisturbed."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

from tests.app.engine.disturbed import Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.host import Engine

STOPS = 50


def test_fifty_stops_disturb_nothing(tmp_path: Path) -> None:
    with (
        closing(Engine(tmp_path / "engine.log")) as engine,
        closing(ChatStore(tmp_path / "chats.db")) as store,
    ):
        disturbed = Disturbed(engine, bundled(tmp_path / "derived"), store, random.Random(12))
        disturbed.begin()
        process = engine.process_id
        for turn in range(STOPS):
            assert disturbed.stop("prefill" if turn % 2 else "decode") == ""
        assert sum(disturbed.phases.values()) > 0 and engine.process_id == process
