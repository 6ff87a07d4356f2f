"""Part ``interface``: keys, a long reply and a long chat on a real terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.interface_calls import calls_text, measure_calls
from tests.bench.interface_chat import LAST, text_of
from tests.bench.interface_person import at_the_chat
from tests.bench.test_command import TINY, options

from slipstream.models.errors import SlipstreamError

MOST_CALLS = 1145  # half of what a message called on 27 November 2026, before the parts of the screen were put together


@pytest.mark.slow
def test_keys_are_answered_and_all_tokens_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    settings = replace(TINY, interface_keys=2, interface_tokens=2000, interface_messages=30, interface_rounds=1)
    assert bench(options(tmp_path / "f.json", "interface"), settings) == 0
    figures = json.loads((tmp_path / "f.json").read_text())["interface"]
    assert figures["keys"] == 5 and figures["tokens"] == 2000 and figures["messages"] == 30
    assert 0 < figures["key_ms"]["low"] <= figures["key_ms"]["median"] <= figures["key_p95_ms"]
    assert figures["first_us"] > 0 and figures["last_us"] > 0 and figures["first_mb"] > 0
    assert figures["begin_us"] > 0 and figures["end_us"] > 0 and figures["open_ms"]["low"] > 0
    shown = capsys.readouterr().out
    assert "a reply of 2,000 tokens" in shown and "a chat of 30 messages" in shown


def test_a_message_calls_few_functions() -> None:
    for _ in range(3):  # on a busy machine a reply is stored more often
        counts = measure_calls(lambda words: None)
        if counts.own < MOST_CALLS:
            break
    assert counts.by_file["app/tui/chat/replying.py"] and counts.by_file["app/chats/messages.py"]
    assert counts.own < MOST_CALLS, calls_text(counts)


def test_the_text_that_is_played_is_the_same_each_time_and_never_has_the_last_word() -> None:
    text = "".join(map(text_of, range(2000)))
    assert text == "".join(map(text_of, range(2000))) and LAST not in text
    assert text.count("```") == 8 and "\n\n## On\n\n" in text


def test_a_chat_that_ends_is_no_wait_without_end(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match="before it showed 'never'"), at_the_chat(tmp_path, 1.0) as person:
        person.press(b"\x11", b"never")
