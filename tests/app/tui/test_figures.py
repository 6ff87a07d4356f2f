from dataclasses import replace

import pytest

from slipstream.app.chats.records import Figures
from slipstream.app.library.format import at_most, rate
from slipstream.app.platform.safe_text import plural
from slipstream.app.speed import Speed, times
from slipstream.app.tui.parts.format import ago, bar, duration, footnote, percent


def test_words_and_drawings() -> None:
    assert [rate(8.44), rate(19.96), rate(84.5), rate(1210.2)] == ["8.4", "20.0", "84", "1,210"]
    limits = [at_most(value) for value in (1.36, 8.6, 48.2, 194.0, 2140.0)]
    assert limits == [f"up to {limit}" for limit in ("1.4", "9", "48", "190", "2,100")]
    assert at_most(9.4, sure=False) == "about 9"
    assert [percent(None), percent(0.0), percent(0.714), percent(1.0)] == ["–", "0 %", "71 %", "100 %"]
    assert [times(None), times(0.04), times(0.94), times(1.96)] == ["–", "0.04x", "0.9x", "2.0x"]
    assert [duration(85.2), duration(1249.0)] == ["85 ms", "1.2 s"]
    assert [plural(1, "token"), plural(0, "token"), plural(1200, "token")] == ["1 token", "0 tokens", "1,200 tokens"]
    assert bar(0.5, 4) == ("━━", "──")
    assert bar(7.0, 4) == ("━━━━", "")
    assert bar(-1.0, 4) == ("", "────")
    since = [5, 90, 3600, 26 * 3600, 10 * 24 * 3600]
    assert [ago(seconds) for seconds in since] == ["just now", "2 min", "1 h", "1 day", "10 days"]


def test_footnotes() -> None:
    assert footnote(None, "draft", "") == "" and footnote(None, "draft", "", interrupted=True) == "interrupted"
    assert footnote(Figures(), "draft", "stop") == "no words came"
    speed = Speed(tok_per_s=44.0, tokens=1)
    assert footnote(Figures(speed), "none", "stop") == "44 tok/s · no drafter · 1 token"
    assert footnote(Figures(replace(speed, drafted=1), dropped_messages=3), "draft", "context") == (
        "draft · 44 tok/s · 1 token · the context is full · older messages left out: 3"
    )
    few, enough = (Speed(44.0, plain_tok_per_s=20.0, tokens=count, drafted=9) for count in (29, 30))
    assert "faster" not in footnote(Figures(few), "auto", "stop") and "2.2x" in footnote(
        Figures(enough), "auto", "stop"
    )


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (Speed(plain_tok_per_s=20.0, drafted=9), "auto 2.2x faster · 44 tok/s instead of 20 · saved 7.2 s"),
        (Speed(plain_tok_per_s=44.0, drafted=9), "auto same speed · 44 tok/s"),
        (Speed(plain_tok_per_s=55.0, drafted=9), "auto 0.8x as fast · 44 tok/s instead of 55"),
        (Speed(plain_tok_per_s=55.0, drafted=9, noise=0.11), "auto same speed · 44 tok/s"),
        (Speed(drafted=9, busy=True), "auto · 44 tok/s"),
        (Speed(plain_tok_per_s=20.0), "44 tok/s · nothing guessed"),
    ],
)
def test_a_footnote_compares_with_the_speed_without_a_drafter(speed: Speed, words: str) -> None:
    speed = replace(speed, tok_per_s=44.0, tokens=264)
    assert footnote(Figures(speed), "auto", "stop") == f"{words} · 264 tokens"
