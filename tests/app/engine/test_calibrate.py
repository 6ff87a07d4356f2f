"""What is promised of the text is measured until it was shown once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.fake_target import FakeTarget

from slipstream.app.engine import calibrate
from slipstream.app.engine.calibrate import SAME_DISTRIBUTION, SAME_TEXT, kept_promise
from slipstream.drafters.memory import DrafterMemory


def test_a_promise_that_was_proved_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, memory = FakeTarget(), DrafterMemory(tmp_path, "0123456789abcdef")
    answers = [SAME_DISTRIBUTION, SAME_TEXT, SAME_DISTRIBUTION, SAME_DISTRIBUTION]
    monkeypatch.setattr(calibrate, "measure_promise", lambda target, ms: answers.pop(0))
    assert kept_promise(target, 1.0, memory, "this machine") == SAME_DISTRIBUTION  # a busy machine: measured again
    assert [kept_promise(target, 1.0, memory, "this machine") for _ in range(3)] == [SAME_TEXT] * 3
    assert kept_promise(target, 1.0, memory, "another machine") == SAME_DISTRIBUTION
    assert kept_promise(target, 1.0, None, "this machine") == SAME_DISTRIBUTION
    assert not answers
