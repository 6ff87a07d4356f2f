"""The engine's process: stopped, killed, started again."""

import os
import random
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.engine.disturbed import PHASES, SIGNALS, Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.models.errors import EngineDiedError, SlipstreamError, UsageError

pytestmark = pytest.mark.program

BUNDLED = replace(choose(Paths.default({})), derived=None, index=None, chats=None)


STOPS = 50


def ask(number: int = 1, size: int = 20, text: str = "Tell me about the sea", drafter: str = "draft") -> Generate:
    return Generate(number, [Message("user", text)], Sampling(temperature=1.5, seed=5), drafter, max_tokens=size)


def done_of(events: list[Prefilling | Stepped | Done]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def test_a_reply_comes_step_by_step_and_adds_up(engine: Engine) -> None:
    shares: list[float] = []
    loaded = engine.load(BUNDLED, lambda share: shares.append(share or 0.0))
    assert loaded.n_ctx >= 1024 and shares == sorted(shares) and shares[-1] == 1.0
    events = list(engine.reply(ask()))
    done = done_of(events)
    steps = [event for event in events if isinstance(event, Stepped)]
    assert "".join(piece.text for step in steps for piece in step.pieces) == done.text
    assert sum(len(step.tokens) for step in steps) == done.speed.tokens
    assert done_of(list(engine.reply(ask(2)))).text == done.text


def test_a_listener_that_leaves_ends_the_reply(engine: Engine) -> None:
    engine.load(BUNDLED)
    next(iter(engine.reply(ask(1, 0))))
    assert done_of(list(engine.reply(ask(2)))).reason in ("length", "stop")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
def test_a_killed_engine_says_how_it_ended_and_starts_again(engine: Engine, number: signal.Signals) -> None:
    engine.load(BUNDLED)
    heard: list[Prefilling | Stepped | Done] = []
    with pytest.raises(EngineDiedError, match=number.name):
        for event in engine.reply(ask(1, 0)):
            heard.append(event)
            if engine.process_id:
                os.kill(engine.process_id, number)
    assert heard and not isinstance(heard[-1], Done)
    with pytest.raises(EngineDiedError):
        list(engine.reply(ask(2)))
    engine.load(BUNDLED)
    assert done_of(list(engine.reply(ask(3)))).text


def test_what_is_refused_is_refused_and_the_engine_lives_on(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match="no such file"):
        engine.load(Load(str(tmp_path / "no.gguf")))
    with pytest.raises(SlipstreamError, match="needs a draft model") as caught:
        engine.load(Load(BUNDLED.model, drafter="draft"))
    assert caught.value.code == UsageError.code
    with pytest.raises(SlipstreamError, match="no model is loaded"):
        list(engine.reply(ask()))
    engine.load(BUNDLED)
    pid = engine.process_id
    with pytest.raises(SlipstreamError, match="the prompt is empty"):
        list(engine.reply(ask(1, text="  ")))
    with pytest.raises(SlipstreamError, match="there is no drafter 'x'"):
        list(engine.reply(ask(2, drafter="x")))
    assert done_of(list(engine.reply(ask(3)))).text and engine.process_id == pid


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


KILLS = len(SIGNALS) * len(PHASES)


def test_kills_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(11)
    load = bundled(tmp_path / "derived")
    with closing(Engine(tmp_path / "engine.log")) as engine, closing(ChatStore(tmp_path / "chats.db")) as store:
        disturbed = Disturbed(engine, load, store, chance)
        disturbed.begin()
        for turn in range(KILLS):
            assert disturbed.kill(SIGNALS[turn % len(SIGNALS)], PHASES[turn // len(SIGNALS)]) == ""
        assert len(disturbed.processes) == KILLS and disturbed.orphans() == set()
        assert sum(disturbed.phases.values()) > 0
