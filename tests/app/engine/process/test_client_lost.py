"""The engine's process ends in a drafter's call, or its GPU is lost: real processes in which one call fails."""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.process.watchdog import Limits
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.models.errors import EngineDiedError, SlipstreamError

pytestmark = [pytest.mark.program, pytest.mark.slow]

BUNDLED: Final = Path(__file__).parents[4] / "models" / "bundled"
HEADS: Final = [str(path) for path in sorted(BUNDLED.glob("*.gguf"))]
LOAD: Final = Load(
    str(BUNDLED / "slipstream-mini-q8_0.gguf"), str(BUNDLED / "slipstream-mini-draft-q8_0.gguf"), HEADS, exact="always"
)
WORKER: Final = "from slipstream.app.engine.process import worker; worker.main()"
DIES: Final = """
import ctypes, os, signal, time
def ends(how):
    if how == "segv":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(7)
    elif how == "sleep":
        time.sleep(600)
"""
KINDS: Final = {
    "draft": "draft_model.DraftModel", "medusa": "medusa.Medusa", "kangaroo": "kangaroo.Kangaroo",
    "space": "space.Space", "eagle3": "feature_drafter.FeatureDrafter", "recycle": "recycle.TokenRecycling",
    "lookup": "prompt_lookup.PromptLookup",
}  # fmt: skip

Doctored = Callable[..., Engine]
Event = Prefilling | Stepped | Done


@pytest.fixture
def doctored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doctored]:
    """An engine whose process runs some code before it begins."""
    made: list[Engine] = []

    def make(code: str, limits: Limits = Limits()) -> Engine:  # noqa: B008 (frozen)
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\nimport sys\nsys.argv = sys.argv[2:]\n{DIES}\n{code}\n{WORKER}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(program))
        made.append(Engine(tmp_path / "logs" / "engine.log", limits))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def ask(drafter: str, number: int = 1, size: int = 40) -> Generate:
    question = Message("user", "Tell me a story about a small fox.")
    return Generate(number, [question], Sampling(0.8, seed=4), drafter, max_tokens=size)


def text_of(events: list[Event]) -> str:
    return "".join(piece.text for event in events if isinstance(event, Stepped) for piece in event.pieces)


def done_of(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Done:
    engine = Engine(tmp_path_factory.mktemp("plain") / "engine.log")
    try:
        engine.load(replace(LOAD, heads=[], draft_model=None))
        return done_of(list(engine.reply(ask("none"))))
    finally:
        engine.close()


def in_call(kind: str, verb: str, how: str, after: int) -> str:
    """Code that ends the process in a call of a drafter, which its name in the file of that class stands for."""
    module, name = kind.rsplit(".", 1)
    return f"""
def doctor():
    from slipstream.drafters.{module} import {name} as kind
    calls, right = [0], kind.{verb}
    def wrong(*arguments):
        calls[0] += 1
        if calls[0] > {after}:
            ends({how!r})
        return right(*arguments)
    kind.{verb} = wrong
doctor()
"""


@pytest.mark.parametrize(
    ("name", "how"), [*((name, "segv") for name in KINDS), *(("medusa", how) for how in ("abort", "kill", "exit"))]
)
def test_a_process_that_ends_in_a_drafter(doctored: Doctored, plain: Done, name: str, how: str) -> None:
    engine = doctored(in_call(KINDS[name], "draft", how, 5))
    engine.load(LOAD)
    first = engine.process_id
    events: list[Event] = list(engine.reply(ask(name)))
    done = done_of(events)
    assert (done.text, done.tokens, done.reason) == (plain.text, plain.tokens, plain.reason)
    assert text_of(events) == plain.text and "the engine ended in it" in done.failed[name]
    assert sum(len(event.tokens) for event in events if isinstance(event, Stepped)) == done.speed.tokens
    assert engine.process_id != first
    assert done_of(list(engine.reply(ask(name, 2)))).text == plain.text  # it stays out, and is told once


@pytest.mark.parametrize("name", ["auto", "lookup+draft", "lookup|draft"])
@pytest.mark.parametrize("verb", ["draft", "observe", "begin"])
def test_a_process_that_ends_in_one_of_several(doctored: Doctored, plain: Done, name: str, verb: str) -> None:
    engine = doctored(in_call("draft_model.DraftModel", verb, "segv", 0))
    failed = engine.load(replace(LOAD, heads=[], drafter=name)).failed  # the autopilot warms its drafters up
    done = done_of(list(engine.reply(ask(name))))
    assert done.text == plain.text
    if (name, verb) != ("auto", "observe"):  # in so short a reply it may hear no step
        assert "SIGSEGV" in (failed | done.failed)["draft"]


def test_several_drafters_end_it_one_after_the_other(doctored: Doctored, plain: Done) -> None:
    kinds = ("draft_model.DraftModel", "medusa.Medusa", "space.Space", "recycle.TokenRecycling")
    engine = doctored("".join(in_call(kind, "draft", "abort", 3) for kind in kinds))
    engine.load(LOAD)
    done = done_of(list(engine.reply(ask("draft|medusa|recycle+space"))))
    assert done.text == plain.text and len(done.failed) >= 3


def test_a_drafter_that_hangs_is_ended_and_the_reply_goes_on(doctored: Doctored, plain: Done) -> None:
    engine = doctored(in_call("medusa.Medusa", "draft", "sleep", 5), Limits(still=2.0))
    engine.load(LOAD)
    done = done_of(list(engine.reply(ask("medusa"))))
    assert done.text == plain.text and "did nothing at all" in done.failed["medusa"]


@pytest.mark.parametrize("name", ["draft", "lookup+draft", "kangaroo"])
def test_a_file_that_is_cut_short_under_a_running_reply(tmp_path: Path, name: str) -> None:
    """Its mapped pages end the process with SIGBUS."""
    draft = tmp_path / "draft.gguf"
    shutil.copyfile(LOAD.draft_model or "", draft)
    engine, derived = Engine(tmp_path / "engine.log"), tmp_path / "derived"
    try:
        engine.load(replace(LOAD, draft_model=str(draft), derived=str(derived), drafter=name))
        plain = done_of(list(engine.reply(ask("none", 2, 300))))  # long enough for the cut on a busy machine
        events: list[Event] = []
        for event in engine.reply(ask(name, 1, 300)):
            events.append(event)
            if len(events) == 6:
                for path in (draft, *derived.glob("*.gguf")):
                    os.truncate(path, 0)
        done = done_of(events)
        assert done.text == text_of(events) == plain.text and name.split("+")[-1] in done.failed
    finally:
        engine.close()


def test_a_reply_that_is_stopped_while_its_engine_starts_again_stays_stopped(doctored: Doctored, plain: Done) -> None:
    engine = doctored(in_call("medusa.Medusa", "draft", "abort", 3))
    engine.load(LOAD)
    events: list[Event] = []
    for event in engine.reply(ask("medusa")):
        events.append(event)
        if isinstance(event, Stepped) and event.tokens:
            engine.stop(1)
    assert done_of(events).reason == "cancelled" and plain.text.startswith(done_of(events).text)


GPU: Final = """
import slipstream.app.engine.load as load
from slipstream.app.engine import devices, plan
from slipstream.models.llama.devices import Device, Survey, cpu
from slipstream.models.llama.placement import Placement
devices.survey_here = lambda: Survey((Device("CUDA0", "gpu", "a GPU", 8 << 30, 8 << 30), cpu()))
load.placement = plan.draft_placement = lambda *_, **__: Placement()
from llama_cpp import llama_cpp as C
evaluate, decodes = C.llama_decode, [0]
def decode(*arguments):
    decodes[0] += bool(loads) and fits[-1] != 0
    if decodes[0] > 5:
        print("CUDA error: unspecified launch failure" if LOUD else "", file=sys.stderr, flush=True)
        return FAILS()
    return evaluate(*arguments)
C.llama_decode = decode
right, whole, fits, loads = plan.fitted, load.load, [], []
def fitted(*arguments, **named):
    fits.append(right(*arguments, **named).gpu_layers)
    return right(*arguments, **named)
def loaded(*arguments, **named):
    loads.append(whole(*arguments, **named))
    return loads[-1]
plan.fitted, load.load = fitted, loaded
"""


@pytest.mark.parametrize(
    ("fails", "loud"),
    [
        ("lambda: ends('sleep')", False), ("lambda: ends('segv')", True), ("lambda: ends('abort')", True),
        ("lambda: -3", False), ("lambda: -2", False),
    ],
    ids=["hangs", "faults", "aborts", "returns an error", "returns another"],
)  # fmt: skip
def test_a_lost_gpu_is_not_used_again(doctored: Doctored, plain: Done, fails: str, loud: bool) -> None:
    engine = doctored(f"{GPU}\nFAILS, LOUD = {fails}, {loud}", Limits(still=2.0))
    load = replace(LOAD, heads=[], draft_model=None)
    engine.load(load)
    with pytest.raises(EngineDiedError, match=r"the GPU failed or was lost.*on the processor"):
        list(engine.reply(ask("none", 1, 200)))
    loaded = engine.load(load)
    assert loaded.remark == "the engine was started again on the processor, since the GPU failed."
    assert loaded.device.startswith("CPU")
    assert done_of(list(engine.reply(ask("none", 2)))).text == plain.text


def test_a_full_kv_cache_is_no_lost_gpu(doctored: Doctored, plain: Done) -> None:
    engine = doctored(f"{GPU}\nFAILS, LOUD = lambda: 1, False")
    engine.load(replace(LOAD, heads=[], draft_model=None))
    with pytest.raises(SlipstreamError, match="no room in the KV cache") as caught:
        list(engine.reply(ask("none", 1, 200)))
    assert not isinstance(caught.value, EngineDiedError) and engine.process_id
