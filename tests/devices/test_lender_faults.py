"""A lender that is not there, is of another kind, or goes away: what was written is kept, and the words say which."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest
from tests.devices.conftest import Event, Open, ask, bundled, done_of
from tests.devices.lender import Lender, Wire, until
from tests.models.kinds import write_kind
from tests.models.other_servers import LOOPBACK, OTHERS, free_port, serving

from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.process.watchdog import Limits
from slipstream.app.protocol.events import Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import Devices, Load
from slipstream.models.errors import EngineDiedError, SlipstreamError

SOON: Final = 5.0
"""Seconds in which a closed connection is told."""
LONG: Final = 400


def far(endpoint: str) -> Load:
    return bundled(Devices(rpc=endpoint))


def written(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Stepped) for token in event.tokens]


def goes_on_alone(engine: Engine, load: Load, endpoint: str) -> Loaded:
    """The next message is answered by this machine; the words name the machine that is missing."""
    loaded = engine.load(load)
    assert loaded.machines == [] and loaded.device.startswith("CPU")
    assert endpoint in loaded.remark, loaded.remark
    assert done_of(list(engine.reply(ask(size=8)))).tokens
    return loaded


def breaks(engine: Engine, harm: Callable[[], None], at: Callable[[Event], bool]) -> tuple[str, list[Event], float]:
    """Harms the lender at an event of a reply; returns the error's words, what came, and the seconds until it did."""
    events: list[Event] = []
    began, process = 0.0, psutil.Process(engine.process_id)
    with pytest.raises(EngineDiedError) as error:
        for event in engine.reply(ask(size=LONG, prompt="Tell me a long story about a fox. " * 8)):
            events.append(event)
            if not began and at(event):
                harm()
                began = time.monotonic()
    assert began, "the reply was over before anything was harmed"
    seconds = time.monotonic() - began
    until(lambda: not process.is_running(), "the engine outlived its lender")
    return str(error.value), events, seconds


def writes(event: Event) -> bool:
    return isinstance(event, Stepped)


def reads(event: Event) -> bool:
    return isinstance(event, Prefilling)


# --- before anything is loaded --------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_lender_is_named_and_left_out(rpc: None, opened: Open, kind: str) -> None:
    answer, words = OTHERS[kind]
    endpoint = serving(answer)
    loaded = goes_on_alone(opened(), far(endpoint), endpoint)
    assert words in loaded.remark, loaded.remark


@pytest.mark.parametrize("host", [LOOPBACK, "no-such-machine.invalid"])
def test_a_lender_that_is_not_there_is_left_out(rpc: None, opened: Open, host: str) -> None:
    endpoint = f"{host}:{free_port()}"
    words = "connection refused" if host == LOOPBACK else "no machine of this name"
    assert words in goes_on_alone(opened(), far(endpoint), endpoint).remark


# --- while it is used -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cut", "garble"])
@pytest.mark.parametrize("after", [0, 100_000, 2_000_000])
def test_a_lender_that_is_lost_while_loading(own_lender: Lender, opened: Open, mode: str, after: int) -> None:
    wire, engine = Wire(own_lender.port), opened()
    harmed: list[float] = []

    def progress(share: float | None) -> None:
        if share and not harmed:
            harmed.append(share)
            wire.harm(mode, after)

    with pytest.raises(SlipstreamError) as error:
        engine.load(far(wire.endpoint), progress)
    wire.harm("cut")
    assert wire.endpoint in str(error.value), error.value
    goes_on_alone(engine, far(wire.endpoint), wire.endpoint)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lender_that_ends_or_stops_while_loading(own_lender: Lender, opened: Open, how: str) -> None:
    engine, child, harmed = opened(Limits(loading=4.0)), own_lender.child, list[float]()

    def progress(share: float | None) -> None:
        if share and not harmed:
            harmed.append(time.monotonic())
            child.suspend() if how == "stop" else own_lender.kill()

    with pytest.raises(SlipstreamError) as error:
        engine.load(far(own_lender.endpoint), progress)
    seconds = time.monotonic() - harmed[0]
    assert own_lender.endpoint in str(error.value), error.value
    assert seconds < (15 if how == "stop" else SOON), f"{seconds:.1f} s"
    goes_on_alone(engine, far(own_lender.endpoint), own_lender.endpoint)
    if how == "stop":
        child.resume()


@pytest.mark.parametrize("at", [reads, writes])
@pytest.mark.parametrize("how", ["kill", "cut", "garble"])
def test_a_lender_is_lost_in_a_reply(own_lender: Lender, opened: Open, how: str, at: Callable[[Event], bool]) -> None:
    engine, wire = opened(), Wire(own_lender.port)
    load = far(wire.endpoint)
    loaded = engine.load(load)
    assert loaded.machines == [wire.endpoint]
    harm = own_lender.kill if how == "kill" else lambda: wire.harm(how)
    words, events, seconds = breaks(engine, harm, at)
    assert wire.endpoint in words and "another machine was lost" in words, words
    assert "What was written is kept" in words, words
    assert seconds < SOON, f"{seconds:.1f} s"
    assert written(events) or at is reads
    wire.harm("cut")
    goes_on_alone(engine, load, wire.endpoint)


def test_a_lender_whose_server_was_killed_is_used_again(own_lender: Lender, opened: Open) -> None:
    engine, load = opened(), far(own_lender.endpoint)
    engine.load(load)
    first = done_of(list(engine.reply(ask()))).tokens
    words, _, _ = breaks(engine, own_lender.kill_child, writes)
    assert own_lender.endpoint in words
    own_lender.lends_again()
    loaded = engine.load(load)
    assert loaded.machines == [own_lender.endpoint] and "was started again with" in loaded.remark
    assert done_of(list(engine.reply(ask()))).tokens == first
    assert "started again" in own_lender.said()


def test_a_lender_that_is_lost_between_two_messages(own_lender: Lender, opened: Open) -> None:
    engine, load = opened(), far(own_lender.endpoint)
    engine.load(load)
    list(engine.reply(ask()))
    own_lender.kill()
    began = time.monotonic()
    with pytest.raises(EngineDiedError, match="another machine was lost"):
        list(engine.reply(ask(number=2)))
    assert time.monotonic() - began < SOON
    goes_on_alone(engine, load, own_lender.endpoint)


def test_a_lender_that_falls_silent_is_ended_in_time(own_lender: Lender, opened: Open) -> None:
    engine, awaited = opened(Limits(waiting=9.0)), list[tuple[str, float]]()
    engine.tell_wait(lambda names: awaited.append((names, time.monotonic())))
    engine.load(far(own_lender.endpoint))
    child, stopped = own_lender.child, list[float]()

    def harm() -> None:
        child.suspend()
        stopped.append(time.monotonic())

    words, events, seconds = breaks(engine, harm, writes)
    child.resume()
    assert written(events) and seconds < 20
    [(name, told)] = awaited
    assert name == f"{own_lender.endpoint} for at most 9 s" and 4 < told - stopped[0] < 9, told - stopped[0]
    assert "another machine was lost, it did nothing at all" in words, words


@pytest.mark.parametrize("at", [reads, writes])
def test_a_wait_for_a_silent_one_can_be_stopped(own_lender: Lender, opened: Open, at: Callable[[Event], bool]) -> None:
    engine = opened()
    engine.load(far(own_lender.endpoint))
    child = own_lender.child

    def harm() -> None:
        child.suspend()
        threading.Timer(1.0, engine.stop, (1,)).start()

    words, events, seconds = breaks(engine, harm, at)
    child.resume()
    assert (written(events) or at is reads) and seconds < 10, f"{seconds:.1f} s"
    assert "could not be stopped" in words, words


def test_a_load_that_waits_for_a_silent_lender_can_be_stopped(own_lender: Lender, opened: Open) -> None:
    engine, child, harmed = opened(), own_lender.child, list[float]()

    def progress(share: float | None) -> None:
        if share and not harmed:
            harmed.append(time.monotonic())
            child.suspend()
            threading.Timer(1.0, engine.stop, (1,)).start()

    with pytest.raises(SlipstreamError, match="could not be stopped") as error:
        engine.load(far(own_lender.endpoint), progress)
    seconds = time.monotonic() - harmed[0]
    child.resume()
    assert own_lender.endpoint in str(error.value) and seconds < 15, f"{seconds:.1f} s"


def test_of_two_lenders_one_is_lost(own_lender: Lender, tmp_path: Path, opened: Open) -> None:
    (tmp_path / "other").mkdir()
    other = Lender(tmp_path / "other")
    engine, load = opened(), bundled(Devices(rpc=f"{own_lender.endpoint},{other.endpoint}", tensor_split="1,1"))
    loaded = engine.load(load)
    assert loaded.machines == [own_lender.endpoint, other.endpoint]
    words, _, seconds = breaks(engine, other.kill, writes)
    assert other.endpoint in words and own_lender.endpoint not in words and seconds < SOON
    loaded = engine.load(bundled(Devices(rpc=f"{own_lender.endpoint},{other.endpoint}")))
    assert loaded.machines == [own_lender.endpoint] and other.endpoint in loaded.remark
    assert done_of(list(engine.reply(ask()))).tokens


def test_a_slow_network_writes_the_same(own_lender: Lender, opened: Open) -> None:
    wires, engine = [Wire(own_lender.port), Wire(own_lender.port, delay=0.005)], opened()
    replies = []
    for wire in wires:
        engine.load(far(wire.endpoint))
        replies.append(done_of(list(engine.reply(ask("draft")))).tokens)
    assert replies[0] == replies[1]


def test_another_model_on_the_same_lender(own_lender: Lender, opened: Open) -> None:
    """The engine gives a lender back before it asks for it again, in the same process."""
    engine = opened()
    for _ in range(3):
        assert engine.load(far(own_lender.endpoint)).machines == [own_lender.endpoint]


def test_a_lender_without_memory(rpc: None, tmp_path: Path, opened: Open) -> None:
    lender, engine = Lender(tmp_path, memory=400 << 20), opened()
    path = write_kind(tmp_path / "m.gguf", "llama", more={"context_length": 1 << 20})
    with pytest.raises(SlipstreamError, match="not enough memory for a context of 1,048,576 tokens"):
        engine.load(Load(str(path), n_ctx=1 << 20, devices=Devices(rpc=lender.endpoint)))
    assert engine.load(Load(str(path), devices=Devices(rpc=lender.endpoint))).machines == [lender.endpoint]
    lender.end()
