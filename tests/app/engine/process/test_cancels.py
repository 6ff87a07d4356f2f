"""Kills and stops at random moments: what was written stays, and the next reply is as if undisturbed."""

import random
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.engine.disturbed import PHASES, SIGNALS, Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.models.errors import SlipstreamError

pytestmark = pytest.mark.program

STOPS = 50


def test_fifty_stops_disturb_nothing(tmp_path: Path) -> None:
    with closing(Engine(tmp_path / "engine.log")) as engine, closing(ChatStore(tmp_path / "chats.db")) as store:
        disturbed = Disturbed(engine, bundled(tmp_path / "derived"), store, random.Random(12))
        disturbed.begin()
        process = engine.process_id
        for turn in range(STOPS):
            assert disturbed.stop("prefill" if turn % 2 else "decode") == ""
        assert sum(disturbed.phases.values()) > 0 and engine.process_id == process


def test_a_stop_is_heard_while_a_long_prompt_is_made(tmp_path: Path) -> None:
    """Whitespace has no bound: this message is refused only once all of it is tokens, which takes a second and more."""
    long = ("a" + " " * 300) * 6_000
    with closing(Engine(tmp_path / "engine.log")) as engine:
        engine.load(bundled(tmp_path / "derived"))
        whole = time.monotonic()
        with pytest.raises(SlipstreamError, match="but the context holds"):
            list(engine.reply(Generate(1, [Message("user", long)], Sampling(seed=1), "none")))
        whole = time.monotonic() - whole
        threading.Timer(whole / 10, engine.stop, (2,)).start()
        begun = time.monotonic()
        (done,) = engine.reply(Generate(2, [Message("user", long)], Sampling(seed=1), "none"))
        assert isinstance(done, Done) and done.reason == "cancelled"
        assert time.monotonic() - begun < whole / 2
        last = list(engine.reply(Generate(3, [Message("user", "Hi")], Sampling(seed=1), "none", 4)))[-1]
        assert isinstance(last, Done) and last.text


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
