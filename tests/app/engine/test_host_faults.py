"""What the interface makes of an engine's process that says nonsense, is of another version, or does not end."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.engine.frames import write_frame
from slipstream.app.engine.host import Engine
from slipstream.app.engine.protocol import VERSION, Failed, Frame, Hello
from slipstream.app.engine.requests import Generate, Load, Message, Prepare, Sampling
from slipstream.models.errors import EngineDiedError, SlipstreamError

Pretend = Callable[..., Engine]
LOAD = Load("mini.gguf")
WAITS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """An engine whose process writes these frames or bytes, and then does something else."""

    def made(*said: Frame | bytes, then: str = "") -> Engine:
        raw = io.BytesIO()
        for one in said:
            if isinstance(one, bytes):
                raw.write(one)
            else:
                write_frame(raw, one)
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\nimport os, sys\nos.write(1, {raw.getvalue()!r})\n{then}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(program))
        return Engine(tmp_path / "logs" / "engine.log")

    return made


def test_another_version_is_refused(pretend: Pretend) -> None:
    engine = pretend(replace(Hello(), version=VERSION + 1), then=WAITS)
    with pytest.raises(SlipstreamError, match="another version"):
        engine.load(LOAD)
    assert engine.process_id is None


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, b"\x02\0\0\0[]", b"\x05\0\0\0hello", b"\x40\0\0\0{}"])
def test_a_bad_frame_ends_the_process(pretend: Pretend, nonsense: bytes) -> None:
    engine = pretend(Hello(), nonsense, then="os.read(0, 1)")
    with pytest.raises(EngineDiedError, match="while it loaded the model"):
        engine.load(LOAD)
    assert engine.process_id is None


def test_a_process_that_says_nonsense_and_stays_is_killed(pretend: Pretend) -> None:
    engine = pretend(Hello(), b"\xff" * 64, then=WAITS)
    with pytest.raises(EngineDiedError, match="it spoke nonsense .*so it was ended"):
        engine.load(LOAD)
    assert engine.process_id is None


def test_the_last_words_of_the_log_are_told(pretend: Pretend) -> None:
    words = "os.read(0, 1); sys.stderr.write('loading\\nggml.c:1: GGML_ASSERT(x > 0) failed\\nmore\\n'); sys.exit(3)"
    engine = pretend(Hello(), then=words)
    with pytest.raises(EngineDiedError, match=r"exit code 3 \(ggml.c:1: GGML_ASSERT\(x > 0\) failed\)"):
        engine.load(LOAD)


def test_a_log_that_cannot_be_read_changes_nothing(pretend: Pretend, tmp_path: Path) -> None:
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
