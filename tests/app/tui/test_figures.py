from slipstream.app.chats.records import Figures
from slipstream.app.protocol import Speed
from slipstream.app.tui.parts.format import ago, bar, duration, footnote, percent, plural, rate, sparkline, times


def test_words() -> None:
    assert [rate(8.44), rate(19.96), rate(84.5), rate(1210.2)] == ["8.4", "20.0", "84", "1,210"]
    assert [percent(None), percent(0.0), percent(0.714), percent(1.0)] == ["–", "0 %", "71 %", "100 %"]
    assert [times(None), times(0.04), times(0.94), times(1.96)] == ["–", "0.04x", "0.9x", "2.0x"]
    assert [duration(85.2), duration(1249.0)] == ["85 ms", "1.2 s"]
    assert [plural(1, "token"), plural(0, "token"), plural(1200, "token")] == ["1 token", "0 tokens", "1,200 tokens"]


def test_drawings() -> None:
    assert sparkline([], 8) == ""
    assert sparkline([0.0, 0.0], 8) == "▁▁"
    assert sparkline([1.0, 2.0, 4.0, 8.0], 3) == "▃▅█"
    assert bar(0.5, 4) == ("━━", "──")
    assert bar(7.0, 4) == ("━━━━", "")
    assert bar(-1.0, 4) == ("", "────")


def test_footnotes() -> None:
    assert footnote(None, "draft", "") == ""
    assert footnote(None, "draft", "", interrupted=True) == "interrupted"
    speed = Speed(tok_per_s=44.0, tokens=1)
    assert footnote(Figures(speed), "none", "stop") == "1 token · 44 tok/s · plain"
    assert footnote(Figures(speed, dropped_messages=3), "draft", "context") == (
        "1 token · 44 tok/s · the context is full · older messages left out: 3"
    )


def test_ago() -> None:
    times = [5, 90, 3600, 26 * 3600, 10 * 24 * 3600]
    assert [ago(seconds) for seconds in times] == ["just now", "2 min", "1 h", "1 day", "10 days"]
