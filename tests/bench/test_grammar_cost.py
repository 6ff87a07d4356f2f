"""Part ``grammar`` of the developers' measurements."""

from __future__ import annotations

from tests.bench.grammar import GRAMMARS, grammar_text, measure_grammar


def test_the_part_reports_each_grammar_and_no_draw_takes_long() -> None:
    figures = measure_grammar(1, lambda _: None)
    text = grammar_text(figures)
    assert [cost.name for cost in figures.costs] == [name for name, *_ in GRAMMARS]
    for cost in figures.costs:
        assert cost.name in text and cost.mask.count == cost.pick.count == cost.plain.count > 10
        assert 0 < cost.mask.median < cost.pick.median < 5 and cost.pick.worst < 12  # a partition alone took 14 ms
