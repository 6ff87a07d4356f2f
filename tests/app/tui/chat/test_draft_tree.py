"""One step as a drawing, and how often each drafter was right over a chat's replies."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual.geometry import Size

from slipstream.app.chats.records import Figures
from slipstream.app.protocol.events import DraftTree, Piece
from slipstream.app.tui.chat.authorship import BONUS, COPIED, DRAFTERS, RECOVERED
from slipstream.app.tui.chat.draft_panel import SAMPLE, AcceptanceChart, AcceptanceRecord
from slipstream.app.tui.chat.draft_tree import MOST_DRAWN, SMALLEST, drawn, drawn_plain

TREE = DraftTree(
    step=1_128, texts=[" sea", " is", " wide", " and", " big", " was", " ocean"], parents=[-1, 0, 1, 2, 1, 0, -1],
    probs=[0.92, 0.81, 0.4, 0.3, 0.12, 0.1, 0.05], sources=["medusa"] * 7, path=[0, 1, 4],
    last=Piece(" blue", "recovered"), probes=0, ms=5.24,
)  # fmt: skip


def lines(tree: DraftTree, width: int = 60) -> list[str]:
    return drawn(tree, width).plain.split("\n")


def styles(tree: DraftTree, width: int = 60) -> dict[str, str]:
    content = drawn(tree, width)
    return {content.plain[span.start : span.end]: str(span.style) for span in content.spans}


def test_the_first_line_is_what_was_written_and_the_rest_hangs_below() -> None:
    assert lines(TREE) == [
        "step 1,128  medusa guessed 7, kept 3: 3 steps saved · 5.2 ms",
        "┯·sea 92┯·is 81┯·big 12━·blue",
        "│       │      └·wide 40─·and 30",
        "│       └·was 10",
        "└·ocean 5",
    ]
    shown = styles(TREE)
    assert shown["·sea"] == shown["·is"] == shown["·big"] == DRAFTERS["medusa"]
    assert shown["·blue"] == RECOVERED
    assert shown["·wide"] == shown["·ocean"] != shown["·sea"]


def test_a_chain_is_words_in_a_row_and_goes_on_below() -> None:
    words = [" a", " good", " thing", " to"]
    tree = replace(TREE, texts=words, parents=[-1, 0, 1, 2], probs=[0.9] * 4, sources=["lookup"] * 4, path=[0, 1])
    assert lines(tree)[1:] == ["  a ✓  good ✓  │ thing ✗  to ✗  │ corrected blue"]
    assert lines(replace(tree, path=[]))[0].startswith("step 1,128  lookup guessed 4, kept 0 · ")
    words = [" and", " it", " is", " never", " quite"]
    tree = replace(TREE, texts=words, parents=[-1, 0, 1, 2, 3], probs=[0.9] * 5, sources=["lookup"] * 5)
    tree = replace(tree, path=[0, 1, 2, 3, 4], last=Piece(" still", "bonus"), probes=12, ms=31.4)
    assert lines(tree, 80)[0] == "step 1,128  lookup guessed 5, kept 5: 5 steps saved · 12 probes · 31 ms"
    assert lines(tree, 40)[0] == "step 1,128  lookup guessed 5, kept 5"  # nothing is cut
    assert lines(tree)[1:] == ["  and ✓  it ✓  is ✓  never ✓  quite ✓  │ extra still"]
    assert lines(tree, 30)[1:] == ["  and ✓  it ✓  is ✓  never ✓", "  quite ✓  │ extra still"]
    assert styles(tree)["quite ✓"] == COPIED and styles(tree)["│ extra still"] == BONUS


def test_several_drafters_are_told_apart_and_plain_steps_are_one_line() -> None:
    tree = replace(TREE, texts=[" a", " b"], parents=[-1, -1], probs=[0.6, 0.3], sources=["x"] * 2, path=[])
    assert lines(tree)[1:] == ["┯·blue", "├·a 60", "└·b 30"]
    tree = replace(TREE, sources=["medusa", "medusa", "lookup", "lookup", "medusa", "medusa", "medusa"])
    assert lines(tree)[0].startswith("step 1,128  medusa¹ + lookup² guessed 7")
    assert lines(tree)[2] == "│        │       └·wide² 40─·and² 30"
    assert drawn_plain(14, 32, 80, skipped=False).plain == "steps 14–32   no guesses"
    assert drawn_plain(3, 3, 80, skipped=False).plain == "step 3   no guesses"
    assert drawn_plain(3, 900, 90, skipped=True).plain == "… steps 3–900   no guesses"
    assert drawn_plain(3, 900, 20, skipped=True).cell_length == 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31m", "␛[31m"), ("[b]x[/b]", "[b]x[/b]"), ("\u202eab", "\ufffdab"), ("", "<end>"), ("\u0301", "◌\u0301")],
)
def test_tokens_are_inert(text: str, shown: str) -> None:
    assert lines(replace(TREE, last=Piece(text, "recovered")))[1].endswith(f"━{shown}")


def test_of_a_large_tree_the_likeliest_nodes_are_drawn() -> None:
    size = MOST_DRAWN + 20
    tree = DraftTree(
        1, [f"n{node}" for node in range(size)], [-1] * size, [1 / (node + 1) for node in range(size)],
        ["draft"] * size, [size - 1], Piece("end", "bonus"), 0, 1.0,
    )  # fmt: skip
    shown = "\n".join(lines(tree, 80))
    assert "20 not drawn" in shown
    assert f"n{size - 1} " in shown and "n0 " in shown and f"n{size - 2} " not in shown
    assert len(lines(tree)) == 1 + MOST_DRAWN


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    size = draw(st.integers(1, 24))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    path: list[int] = []
    while children := [node for node in range(size) if parents[node] == (path or [-1])[-1]]:
        if not draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(children)))
    texts = [f"{draw(st.text(st.characters(exclude_characters='…'), max_size=8))}" for _ in range(size)]
    probs = [draw(st.floats(0, 1)) for _ in range(size)]
    sources = [draw(st.sampled_from(["draft", "lookup", "x[b]"])) for _ in range(size)]
    return DraftTree(7, texts, parents, probs, sources, path, Piece("LAST", "recovered"), 0, 3.0)


@given(trees(), st.integers(1, 120))
@example(
    DraftTree(7, ["", "0000", "0000"], [-1, 0, 1], [0.0] * 3, ["draft"] * 3, [0], Piece("LAST", "recovered"), 0, 3), 41
)
def test_any_tree_fits_any_width(tree: DraftTree, width: int) -> None:
    content = drawn(tree, width)
    for line in content.split("\n", allow_blank=True):
        assert line.cell_length <= width
    if width >= SMALLEST:
        parts = [content.plain[span.start : span.end] for span in content.spans]
        shares = [part for part in parts if re.fullmatch(r" \d+", part)]
        assert content.plain.count("LAST") == 1
        in_a_row = all(parent == node - 1 for node, parent in enumerate(tree.parents))
        assert len(shares) == len(tree.texts) or in_a_row  # every node is there, with its probability


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
    assert record.drafters()["draft"].depths == [[48, 30]] and record.drafters()["draft"].acceptance == 30 / 48


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


def test_kept_figures_of_several_drafters_fill_the_depths_of_each() -> None:
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
    assert depths.split() == ["position", "███", "▅▅▅", "▁▁▁"]
    assert figures.split() == ["%", "right", "100", "50", "0"]
    assert [depths.index("▅"), depths.index("▁")] == [figures.index("50") - 1, figures.index(" 0") - 1]
    assert "[b]" in lookup and "\x1b" not in lookup


@pytest.mark.parametrize("size", [(40, 3), (30, 2), (12, 8), (1, 1), (200, 30)])
def test_it_fits(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    lines = chart(monkeypatch, *size)
    assert len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)
    if size == (40, 3):
        assert lines[1].split() == ["draft", "50", "%", "█▅▁", "▅"]
