"""How often each drafter was right, summed over a chat's replies and drawn."""

import pytest
from textual.geometry import Size

from slipstream.app.chats.records import Figures
from slipstream.app.tui.chat.draft_panel import SAMPLE, AcceptanceChart, AcceptanceRecord


def count(drafted: int, accepted: int) -> dict[str, int]:
    return {"steps": 1, "drafted": drafted, "accepted": accepted}


def test_a_reply_under_way_is_counted_once() -> None:
    record = AcceptanceRecord()
    for drafted, accepted in ((SAMPLE, 12), (SAMPLE + 4, 16), (2 * SAMPLE, 30)):
        record.add({"draft": count(drafted, accepted), "none": count(0, 0)}, {"draft": [[drafted, accepted]]})
    assert list(record.drafters()) == ["draft"]
    fared = record.drafters()["draft"]
    assert (fared.drafted, fared.accepted, fared.depths) == (48, 30, [[48, 30]])
    assert list(fared.points) == [0.5, 0.75]  # each over as many tokens
    record.end()
    record.end()
    assert record.drafters()["draft"].depths == [[48, 30]]
    assert record.drafters()["draft"].acceptance == 30 / 48


def test_replies_add_up_and_a_short_one_makes_a_point_too() -> None:
    record = AcceptanceRecord()
    record.add({"draft": count(3, 3)}, {"draft": [[2, 2], [1, 1]]})
    assert list(record.drafters()["draft"].points) == []
    record.end()
    record.add({"draft": count(2, 0), "lookup": count(9, 9)}, {"draft": [[2, 0]], "lookup": [[9, 9]]})
    record.end()
    fared = record.drafters()
    assert list(fared) == ["lookup", "draft"]  # who drafted most is first
    assert (fared["draft"].depths, list(fared["draft"].points)) == ([[4, 2], [1, 1]], [1.0, 0.0])


def test_kept_figures_fill_it_and_depths_only_where_they_are_one_drafters() -> None:
    record = AcceptanceRecord()
    record.add({"old": count(5, 5)}, {})
    record.fill(
        [
            Figures(by_depth=[[4, 3]], by_drafter={"draft": count(4, 3), "none": count(0, 0)}),
            Figures(by_depth=[[8, 8]], by_drafter={"draft": count(4, 1), "lookup": count(4, 4)}),
            Figures(),
        ]
    )
    fared = record.drafters()
    assert set(fared) == {"draft", "lookup"}
    assert (fared["draft"].drafted, fared["draft"].depths, list(fared["draft"].points)) == (8, [[4, 3]], [0.75, 0.25])
    assert fared["lookup"].depths == []


def test_kept_figures_of_several_drafters_fill_the_depths_of_each() -> None:
    record = AcceptanceRecord()
    drafters = {"draft": count(4, 1), "lookup": count(4, 4)}
    kept = Figures(
        by_depth=[[8, 5]], by_drafter=drafters, drafter_depths={"draft": [[4, 1]], "lookup": [[3, 3], [1, 1]]}
    )
    record.fill([kept, Figures(by_depth=[[2, 2]], by_drafter={"draft": count(2, 2)})])
    fared = record.drafters()
    assert (fared["draft"].depths, fared["lookup"].depths) == ([[6, 3]], [[3, 3], [1, 1]])


def chart(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> list[str]:
    monkeypatch.setattr(AcceptanceChart, "size", Size(width, height))
    record = AcceptanceRecord()
    record.add({"draft": count(40, 20)}, {"draft": [[20, 20], [20, 10], [10, 0]]})
    record.end()
    record.add({"lookup[b]\x1b": count(10, 9)}, {})
    return str(AcceptanceChart(record).render()).split("\n")


def test_there_are_bars_and_figures_for_each_depth_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, draft, depths, figures, lookup, *_ = chart(monkeypatch, 40, 8)
    assert draft.split() == ["draft", "50", "%", "▅"]
    assert depths.split() == ["position", "██", "▅▅", "▁▁"]
    assert figures.split() == ["✓", "50", "0"]
    assert [depths.index("▅"), depths.index("▁")] == [figures.index("50"), figures.index(" 0")]
    assert "[b]" in lookup and "\x1b" not in lookup


@pytest.mark.parametrize("size", [(40, 3), (30, 2), (12, 8), (1, 1), (200, 30)])
def test_it_fits(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    lines = chart(monkeypatch, *size)
    assert len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)
    if size == (40, 3):
        assert lines[1].split() == ["draft", "50", "%", "█▅▁", "▅"]
