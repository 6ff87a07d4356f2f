"""What the interface makes of an engine's process that says nonsense, is of another version, or does not end."""

import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.process.frames import read_frame, write_frame
from slipstream.app.engine.process.watchdog import Limits
from slipstream.app.protocol.events import VERSION, Beat, Counted, Done, Failed, Frame, Hello, Loaded, Loading
from slipstream.app.protocol.requests import Generate, Load, Message, Prepare, Quit, Sampling, Watch
from slipstream.app.speed import Speed
from slipstream.models.errors import EngineDiedError, SlipstreamError

pytestmark = pytest.mark.program

Pretend = Callable[..., Engine]
LOAD = Load("mini.gguf")
LOADED = Loaded("mini", "llama", 8, "f", "CPU", "same text", [], 1.0)
WAITS = """
import ctypes, signal
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it waits for ever, but not for a test that was killed
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """An engine whose process writes these frames or bytes, and then does something else."""
    python = sys.executable

    def made(*said: Frame | bytes, then: str = "", limits: Limits = Limits()) -> Engine:  # noqa: B008 (frozen)
        raw = io.BytesIO()
        for one in said:
            if isinstance(one, bytes):
                raw.write(one)
            else:
                write_frame(raw, one)
        program = tmp_path / "python"
        check = "if 'import llama_cpp' in sys.argv[-1]: sys.exit()"  # whether llama.cpp can be loaded
        program.write_text(f"#!{python}\nimport os, sys\n{check}\nos.write(1, {raw.getvalue()!r})\n{then}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(program))
        return Engine(tmp_path / "logs" / "engine.log", limits)

    return made


def test_another_version_and_a_process_that_says_nonsense_are_refused(pretend: Pretend) -> None:
    engine = pretend(replace(Hello(), version=VERSION + 1), then=WAITS)
    with pytest.raises(SlipstreamError, match="another version"):
        engine.load(LOAD)
    assert engine.process_id is None
    engine = pretend(Hello(), b"\xff" * 64, then=WAITS)
    with pytest.raises(EngineDiedError, match=r"it spoke nonsense .*so it was ended"):
        engine.load(LOAD)
    assert engine.process_id is None


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, b"\x02\0\0\0[]", b"\x05\0\0\0hello", b"\x40\0\0\0{}"])
def test_a_bad_frame_ends_the_process(pretend: Pretend, nonsense: bytes) -> None:
    engine = pretend(Hello(), nonsense, then="os.read(0, 1)")
    with pytest.raises(EngineDiedError, match="while it loaded the model"):
        engine.load(LOAD)
    assert engine.process_id is None


def test_the_last_words_of_the_log_are_told_where_it_can_be_read(pretend: Pretend, tmp_path: Path) -> None:
    words = "os.read(0, 1); sys.stderr.write('loading\\nggml.c:1: GGML_ASSERT(x > 0) failed\\nmore\\n'); sys.exit(3)"
    engine = pretend(Hello(), then=words)
    with pytest.raises(EngineDiedError, match=r"exit code 3 \(ggml.c:1: GGML_ASSERT\(x > 0\) failed\)"):
        engine.load(LOAD)
    log = tmp_path / "logs" / "engine.log"
    engine = pretend(then=f"os.remove({os.fspath(log)!r}); sys.exit(3)")
    with pytest.raises(EngineDiedError, match="while it started: exit code 3\\."):
        engine.load(LOAD)


def test_a_process_that_does_not_leave_is_killed(pretend: Pretend) -> None:
    engine = pretend(Hello(), Failed("no", "", 1, 0), then=WAITS)
    with pytest.raises(SlipstreamError, match="no"):
        engine.load(LOAD)
    pid = engine.process_id
    assert pid is not None
    engine.close(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_refusal_of_an_earlier_reply_is_nobodys(pretend: Pretend) -> None:
    engine = pretend(Hello(), Failed("old", "", 1, 7), Failed("new", "", 2, 0), then=WAITS)
    with pytest.raises(SlipstreamError, match="new") as caught:
        engine.load(LOAD)
    assert caught.value.code == 2
    engine.close(0.01)


def test_without_a_process_nothing_is_sent(pretend: Pretend) -> None:
    engine = pretend()
    messages = [Message("user", "x")]
    engine.stop(1)
    engine.prepare(Prepare(messages, "none"))
    with pytest.raises(EngineDiedError, match="it is not running"):
        list(engine.reply(Generate(1, messages, Sampling(), "none")))
    engine.close()


@pytest.mark.parametrize(
    ("said", "limits", "why"),
    [
        ((), Limits(start=0.1), "no sign of life"),
        ((Hello(),), Limits(silent=0.1), "no sign of life"),
        ((Hello(), Beat(31, 31)), Limits(), "nothing at all for 31 seconds"),
        ((Hello(), Beat(660, 0)), Limits(), "no further for 11 minutes"),
    ],
)
def test_a_process_that_hangs_is_ended(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, said: tuple[Frame, ...], limits: Limits, why: str
) -> None:
    monkeypatch.setattr("slipstream.app.engine.process.process._LOOK_EVERY", 0.01)
    engine = pretend(*said, then=WAITS, limits=limits)
    with pytest.raises(EngineDiedError, match=f"{why}.*, so it was ended"):
        engine.load(LOAD)
    assert engine.process_id is None


def test_a_process_that_reads_nothing_keeps_nobody_waiting(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.process.process._LOOK_EVERY", 0.01)
    engine = pretend(Hello(), then=WAITS, limits=Limits(silent=0.1))
    with pytest.raises(EngineDiedError, match="no sign of life"):
        engine.load(replace(LOAD, heads=["x" * 1000] * 1000))
    engine = pretend(Hello(), then=WAITS)
    engine.start()
    writing = threading.Thread(target=engine.prepare, args=(Prepare([Message("user", "x" * 1_000_000)]),))
    writing.start()
    engine.close(0.01)
    writing.join()


def test_a_crash_loop_stops_with_advice_until_it_is_asked_again(pretend: Pretend) -> None:
    engine = pretend(Hello(), then="os.read(0, 1)")
    for _ in range(2):
        with pytest.raises(EngineDiedError):
            engine.load(LOAD)
    with pytest.raises(EngineDiedError):
        engine.load(LOAD)
    for _ in range(2):
        with pytest.raises(SlipstreamError, match="3 times in a row") as caught:
            engine.load(LOAD)
        assert not isinstance(caught.value, EngineDiedError) and "smaller model" in caught.value.hint
        with pytest.raises(EngineDiedError):
            engine.load(LOAD)


def test_a_program_that_cannot_start_is_said(pretend: Pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = pretend()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(SlipstreamError, match="process cannot be started: no such file"):
        engine.load(LOAD)
    (tmp_path / "logs" / "engine.log").unlink()
    (tmp_path / "logs" / "engine.log").mkdir()
    with pytest.raises(SlipstreamError, match="cannot write to"):
        engine.load(LOAD)


def test_neither_beats_nor_an_earlier_reply_are_events_of_a_load(pretend: Pretend) -> None:
    earlier = Done(3, "cancelled", "", [], 1, 1, 0, 1.0, Speed())
    engine = pretend(Hello(), Beat(1, 1), earlier, LOADED, Beat(2, 2), then=WAITS)
    engine.start()
    process = engine.process_id
    engine.start()
    assert engine.load(LOAD) == LOADED and engine.process_id == process
    engine.close(0.01)


def test_what_a_prompt_takes_is_told_to_who_listens_whatever_is_asked(pretend: Pretend) -> None:
    later = io.BytesIO()
    write_frame(later, Counted(2, 4096, 3, 700))
    write_frame(later, LOADED)
    one_load = "sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), 'little'))\n"
    then = f"{2 * one_load}os.write(1, {later.getvalue()!r})\n{WAITS}"
    engine = pretend(Hello(), Counted(1, 40), LOADED, then=then)
    told: list[Counted] = []
    assert engine.load(LOAD) == LOADED  # nobody listens yet, and it is no event of a load
    engine.tell_count(told.append)
    assert engine.load(LOAD) == LOADED and told == [Counted(2, 4096, 3, 700)]
    engine.close(0.01)


def test_a_new_process_is_told_first_that_somebody_looks(pretend: Pretend, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    engine = pretend(Hello(), LOADED, then=f"open({os.fspath(asked)!r}, 'wb').write(sys.stdin.buffer.read())")
    for looks in (True, False):
        engine.watch(looks)
        assert engine.load(LOAD) == LOADED
        engine.close(60)
        heard = [*iter(partial(read_frame, io.BytesIO(asked.read_bytes())), None)]
        assert heard == [Watch(True)] * looks + [LOAD, Quit()]


def test_an_end_at_the_last_moment_of_a_load_is_told_too(pretend: Pretend) -> None:
    told: list[EngineDiedError] = []
    engine = pretend(Hello(), Loading(0.5), LOADED, then="os.read(0, 1)")
    engine.tell_end(told.append)

    def wait_for_the_end(_share: float | None) -> None:
        assert engine._process
        engine._process._ended.wait()

    assert engine.load(LOAD, wait_for_the_end) == LOADED
    assert len(told) == 1 and "while nothing was asked of it: exit code 0" in str(told[0])
    assert engine.process_id is None


def test_the_process_gets_no_secrets(pretend: Pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "MY_API_KEY", "AWS_PROFILE", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "hush")
    seen = tmp_path / "environment"
    engine = pretend(then=f"open({str(seen)!r}, 'w').write(repr(dict(os.environ)))")
    with pytest.raises(EngineDiedError):
        engine.load(LOAD)
    assert "hush" not in seen.read_text() and "'GGML_NO_BACKTRACE': '1'" in seen.read_text()


def test_a_process_that_hangs_as_it_starts_is_named(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.process.client._WAITS", 0.2)
    awaited: list[str] = []
    engine = pretend(then=WAITS, limits=Limits(start=2))
    engine.tell_wait(awaited.append)
    with pytest.raises(EngineDiedError, match="no sign of life for 2 seconds"):
        engine.load(LOAD)
    assert awaited == ["the engine for at most 2 s"]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and links are POSIX's")
@pytest.mark.parametrize("kind", ["endless", "pipe"])
def test_a_log_that_never_ends_is_not_read_to_its_end(pretend: Pretend, tmp_path: Path, kind: str) -> None:
    engine = pretend(then="sys.exit(3)")
    log = tmp_path / "logs" / "engine.log"
    log.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to("/dev/zero")
    with pytest.raises(SlipstreamError):
        engine.load(LOAD)
