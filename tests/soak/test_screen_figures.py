"""The figures that are read from screens, and what each comparison finds in them."""

from typing import Any

import pytest
from tests.soak import screen_figures as figures

CHAT = """
 auto 1.8x faster · 44 tok/s instead of 24 · saved 2 s ·
 38 tokens · first token 12 ms
 with drafter  ██████████ 44 tok/s  1.8x faster
 without       █████      24 tok/s
"""
RESULT = """
 Slipstream mini · 25 November 2026, 08:58 · AMD EPYC

  ! Two runs without a drafter differ by 1.20x: smaller gains mean nothing.
  all texts
  draft     1.25x [1.20, 1.31]   ━━━━━━━━━━━━━━━━━━━━│━━━━─
  chat
  draft     0.80x                ━━━━━━━━━━━━━━━━    │                        ▅
  auto      guessed nothing

  drafter                   text         T  tok/s     speed-up [95 %]  right
  none                      chat       0.8  1,000                          –
  auto                      chat       0.8            guessed nothing      – ▁
  draft                     chat       0.8         0.80x                46 %
  none                      all texts  0.8  1,000                          –
  draft                     all texts  0.8         1.25x [1.20, 1.31]   58 %
"""
LIST = """
 Benchmark of Slipstream mini on this machine
  when                    model            text              auto  best
  25 Nov 08:58            Slipstream mini  chat story copy  1.1x  draft 1.2x, rough

 ──────────────────────────────────────────────────────────────────────────────
  25 November 2026, 08:58 · AMD EPYC                                         ▅
"""
FORM = """
 │  Prompts                             Drafters                              │
 │   ✓ chat                              · auto                               │
 │   · greedy (T 0)                      ✓ draft                              │
 │   · medium                                                                 │
 │  About 10 s (2 prompts a set, 48 tokens a reply); the time left is shown   │
"""
DRAFTERS = """
 Drafters for Slipstream mini · CPU, 1 thread

  ● draft       1.3x ━━━━━━━━━━│━━     bench  a smaller model writes ahead
    none        1.0x ━━━━━━━━━━│              no guessing: the model writes alone
    lookup      0.6x ━━━━━━    │       chats  copies what followed the same …
  No speed measured yet
    retrieval  what followed the same words in your past chats and files     ▇
 ──────────────────────────────────────────────────────────────────────────────
  lookup
  copies what followed the same words earlier in the chat
  Against no drafter: 0.6x in your chats · 0.7x in the last
  benchmark.
 ⏎ Use  v Race  i Import  f Index  Esc Back
"""
BENCHED = {"draft": figures.Gain("1.25"), "lookup": figures.Gain("0.66")}
MODELS = """
 ◢ slipstream  models                             AMD EPYC: 24 GB of 25 GB free

    Model                           Size    tok/s  Drafter
  ★ SmolLM2-360M-Instruct         386 MB    up to 190  draft 135M  ▇
    gpt-oss-20b                    12 GB    up to 5.0  eagle3
    Mistral-Small-3.2-24B-Inst…    15 GB    up to 1.1  –
 ────────────────────────────────────────────────────────────────────────────
  gpt-oss-20b · MXFP4
  Expected here: up to 5.0 tokens a second, estimated from this machine's
  memory speed.
"""
INSTALLED = """
  ● qwen3-0.6b    Q4_K_M  640 MB         up to 59      40k  –        imported
    mini          Q4_K_M   12 MB              40k  –        imported
"""


def rows(shown: str = RESULT) -> dict[tuple[str, str], figures.Row]:
    return {(row.kind, row.drafter): row for row in figures.table_rows(figures.lines_of(shown))}


def wrong(compared: object) -> list[str]:
    """What a comparison finds."""
    return [fault for fault in compared if fault]  # type: ignore[attr-defined]


def test_the_chat_shows_one_ratio_that_means_something() -> None:
    assert wrong(figures.faults(CHAT)) == wrong(figures.end_faults(CHAT)) == []
    assert figures.plain_speed(CHAT) == "24" and figures.plain_speed("") == ""
    assert wrong(figures.faults(CHAT.replace("38 tokens", "12 tokens"))) == ["footnote of auto: 1.8x of 12 tokens"]
    assert "footnote" in wrong(figures.end_faults(CHAT.replace("1.8x faster · 44", "1.9x faster · 44")))[0]
    assert wrong(figures.faults("is 1.5x faster here: 2.0 s instead of 4.0 s.")) == ["race: 1.5x, but 4.0 against 2.0"]
    assert wrong(figures.faults("loses 0.2 s here: 3.2 s instead of 2.0 s.")) == [
        "race: 0.2 s lost, but 3.2 against 2.0"
    ]
    assert not wrong(figures.faults("auto loses 0.2 s here: 2.22 s instead of 2.00 s."))
    assert figures.ratio_fault("here", "0.8", "faster", "8", "10") == "here: 0.8x is called faster"
    before = " auto 0.9x as fast · 21 tok/s instead of 23 · 34 tokens · first token 36 ms\n\n  █ And?\n\n Leaves.\n"
    assert list(figures.end_faults(before + CHAT)) == [""] and wrong(figures.faults(before + CHAT)) == []
    assert wrong(figures.faults(" auto 1.0x faster · 44 tok/s instead of 44 · 99 tokens"))[-2:] == [
        "44 instead of 44",
        "1.0x is no gain and no loss",
    ]


def test_the_first_example_agrees_with_the_bar() -> None:
    shown = """
    eagle3 · 107 tok/s · 95 tokens · first token 339 ms
  █ i 70 tokens (words or parts of words) were guessed, 59 of them right ▃
  █ (84 %): 2.6 tokens per step instead of 1.
  █   Speeds vary too much now to say whether that is faster; /race
  █ compares.
 eagle3 guessed         84 % right  2.6 tokens per step   text identical ✓
"""
    assert wrong(figures.example_faults(shown)) == []
    assert len(wrong(figures.example_faults(shown.replace("84 % right", "83 % right")))) == 1
    assert len(wrong(figures.example_faults(shown.replace("70 tokens (", "75 tokens (")))) == 1
    assert len(wrong(figures.example_faults("nothing"))) == 1


def test_a_run_is_the_sum_of_its_steps() -> None:
    step = '{"tokens": [1, 2], "drafted": 2, "accepted": 1}'
    done = '{"tokens": 2, "acceptance": 0.5, "speedup": null, "tok_per_s": 9, "plain_tok_per_s": 8}'
    assert wrong(figures.json_faults([step, done])) == []
    assert len(wrong(figures.json_faults([step, step, done.replace("null", "2.0").replace("0.5", "0.9")]))) == 4


def test_the_table_and_the_bars_of_a_benchmark() -> None:
    wide = "  draft   chat   0.8         0.53x [0.40, 0.63]             1.31   46 %        19 ms        2/2       ▄"
    assert figures.table_rows(figures.lines_of(wide)) == [
        figures.Row("draft", "chat", "", figures.Gain("0.53", "0.40", "0.63"), "46")
    ]
    assert [(bar.drafter, bar.kind) for bar in figures.bars(figures.lines_of(RESULT))] == [
        ("draft", "all texts"),
        ("draft", "chat"),
    ]
    assert wrong(figures.bench_faults(figures.lines_of(RESULT), rows())) == []
    other = rows(RESULT.replace("1.25x [1.20, 1.31]   58", "1.35x [1.20, 1.31]   58"))
    assert len(wrong(figures.bench_faults(figures.lines_of(RESULT), other))) == 1
    outside = RESULT.replace("1.25x [1.20", "1.25x [1.28")
    assert len(wrong(figures.bench_faults(figures.lines_of(outside), rows(outside)))) == 1


def test_the_list_of_results_and_the_kept_one_have_the_figures_of_the_table() -> None:
    told = rows() | {("all texts", "auto"): figures.Row("auto", "all texts", "", figures.Gain("1.08"), "50")}
    above, _ = figures.panes(LIST)
    assert wrong(figures.listed_faults(above, told, "all texts")) == []
    assert wrong(figures.listed_faults(figures.panes(LIST.replace("1.1x", "    "))[0], told, "all texts")) == []
    assert len(wrong(figures.listed_faults(figures.panes(LIST.replace("1.1x", "0.9x"))[0], told, "all texts"))) == 1
    none = figures.panes(LIST.replace("draft 1.2x, rough", "none, rough"))[0]
    assert len(wrong(figures.listed_faults(none, told, "all texts"))) == 1
    assert wrong(figures.listed_faults([], told, "all texts")) == ["list of results: its newest row cannot be read"]

    def row(drafter: str, tok_per_s: float, ratio: float, acceptance: float | None, **more: Any) -> dict[str, Any]:
        speedup = {"value": ratio, "low": None, "high": None}
        return {
            "drafter": drafter, "kind": "chat", "tok_per_s": tok_per_s, "speedup": speedup, "acceptance": acceptance,
            "tokens": 96, **more,
        }  # fmt: skip

    every = [row("none", 1000.2, 1.0, None), row("auto", 989.9, 0.97, None), row("draft", 800.4, 0.8, 0.457)]
    assert wrong(figures.kept_faults(rows(), {"drafters": {"rows": every}})) == []
    bad = [row("draft", 810.4, 0.81, 0.5, tokens=20), row("medusa", 1.0, 1.0, 1.0), row("none", 9.0, 1.0, None)]
    assert len(wrong(figures.kept_faults(rows(), {"drafters": {"rows": bad}}))) == 5


def test_the_form_says_how_long_it_takes_and_models_at_most_how_fast() -> None:
    assert figures.picks(FORM) == {"auto": False, "draft": True} and figures.picks("") == {}
    assert not figures.estimate_fault(FORM, 18.0) and not figures.estimate_fault(FORM, 5.1)
    assert figures.estimate_fault(FORM, 19.0) == "form of the benchmark: about 10 s, but it took 19 s"
    assert figures.estimate_fault(FORM, 4.9) and figures.estimate_fault("", 10.0)
    models = figures.expected_rows(INSTALLED.splitlines())
    assert models == [figures.Expected("qwen3-0.6b", "59", in_use=True)]
    assert not figures.measured_note(models, "38") and not figures.measured_note([], "1")
    assert figures.measured_note(models, "61") == (
        "qwen3-0.6b was expected to write at most 59 tok/s without a drafter and writes 61"
    )


def test_the_drafters_have_one_gain_each() -> None:
    above, below = figures.panes(DRAFTERS)
    assert figures.gained(above)[0] == figures.Gained("draft", "1.3", "━" * 10 + "│━━", "bench", False)
    assert figures.against(below) == ("lookup", {"chats": ("0.6", False), "bench": ("0.7", False)}) and figures.against(
        []
    ) == ("", {})
    assert wrong(figures.drafters_faults(DRAFTERS, BENCHED)) == []
    busy = DRAFTERS.replace("  benchmark.", "  benchmark (machine busy).").replace(
        "your chats", "your chats (machine busy)"
    )
    assert "'chats': ('0.6', True)" in wrong(figures.drafters_faults(busy, BENCHED))[0]
    assert wrong(figures.drafters_faults(busy.replace("chats  copies", "chats, busy  copies"), BENCHED)) == []


@pytest.mark.parametrize(
    ("said", "instead", "count"),
    [
        ("0.6x ━━━━━━ ", "1.1x ━━━━━━ ", 3),  # the order, the bar, the details
        ("0.6x in your chats", "0.8x in your chats", 1),
        ("0.7x in the last", "0.8x in the last", 1),
        ("1.3x ━", "1.4x ━", 1),
    ],
)
def test_a_gain_that_differs_is_found(said: str, instead: str, count: int) -> None:
    assert len(wrong(figures.drafters_faults(DRAFTERS.replace(said, instead), BENCHED))) == count


def test_a_model_has_one_prediction() -> None:
    above, _ = figures.panes(MODELS)
    assert figures.expected_rows(above)[2].fits("Mistral-Small-3.2-24B-Instruct-2506")

    def speed(high: float) -> dict[str, Any]:
        told = {"plain": {"low": None, "high": high}, "drafted": None}
        return {"pair": {"target": {"model": "gpt-oss-20b"}}, "speed": told}

    none = {"pair": {"target": {"model": "gpt-oss-20b"}}, "speed": None}
    assert wrong(figures.models_faults(MODELS, [none, speed(4.97)])) == []
    assert wrong(figures.models_faults(MODELS, [speed(8.0)])) == []  # it was measured again
    assert len(wrong(figures.models_faults(MODELS, [speed(3.9)]))) == 1
    assert len(wrong(figures.models_faults(MODELS.replace("here: up to 5.0", "here: up to 4.0"), []))) == 1
