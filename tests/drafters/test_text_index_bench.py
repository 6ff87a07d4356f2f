"""The measurement of costs measures: it builds, drafts and prints; its figures are the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench import text_index as costs

from slipstream.drafters.prompt_lookup import PromptLookup


@pytest.mark.slow
def test_an_index_is_built_and_drafted_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_BATCH", 4_000)
    found = costs.measure(tmp_path / "index", 9_000, (50, 400))
    assert found.tokens == 9_000
    assert 8 <= found.bytes < 9
    assert min(found.build, found.reply, found.remove) > 0
    assert [step.history for step in found.steps] == [50, 400]
    assert all(step.microseconds > 0 and step.nodes > 0.1 for step in found.steps)
    assert "retrieval, 9,000 indexed tokens" in str(found) and "step at 400 tokens of history" in str(found)


def test_lookup_is_measured_alike() -> None:
    found = costs.step_cost(PromptLookup(), 2_000)
    assert found.microseconds > 0 and found.nodes > 0.1


@pytest.mark.slow
def test_the_command_prints_both(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "HISTORIES", (100,))
    costs.main([3_000])
    out = capsys.readouterr().out
    assert out.index("retrieval, ") < out.index("MB on disk") < out.index("lookup\n")
    assert out.count("step at ") == 3  # the index at 1,000 and 32,000 as by default, lookup at 100
