"""Attention on the processor is measured once, and models are opened as was found."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.engine import calibrate as attention
from slipstream.app.engine.calibrate import flash_attention_is_slower
from slipstream.app.engine.load import load
from slipstream.app.library.load_request import BUNDLED_DRAFT, BUNDLED_TARGET
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.target import Target

BUNDLED = Paths.default({}).bundled


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kind is faster, and no time passes: the target that was opened first uses flash attention."""
    kinds = ["scores"]
    order: list[Target] = []

    def timed(target: Target) -> float:
        if target not in order:
            order.append(target)
        return 1.0 if (order.index(target) % 2 == 1) == (kinds[0] == "scores") else 2.0

    monkeypatch.setattr(attention, "pass_time", timed)
    return kinds


def test_the_faster_kind_is_found_and_kept(faster: list[str], tmp_path: Path) -> None:
    small = BUNDLED / BUNDLED_TARGET
    assert flash_attention_is_slower(small, tmp_path)
    faster[0] = "flash"
    assert flash_attention_is_slower(small, tmp_path)  # as it was kept
    assert not flash_attention_is_slower(small, None) and not flash_attention_is_slower(small, tmp_path / "other")
    faster[0] = "scores"
    assert not flash_attention_is_slower(small, tmp_path / "other")
    assert not flash_attention_is_slower(tmp_path / "missing.gguf", tmp_path)


def test_a_small_difference_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "pass_time", lambda target: 1.0)
    assert not flash_attention_is_slower(BUNDLED / BUNDLED_TARGET, None)


@pytest.mark.parametrize("found", [True, False])
def test_both_models_are_opened_as_was_found(found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slipstream.app.engine.plan.flash_attention_is_slower", lambda small, folder: found)
    opened: list[bool] = []
    opens = LlamaTarget.__init__

    def hears(self: LlamaTarget, *given: object, **named: object) -> None:
        opens(self, *given, **named)  # type: ignore[arg-type]
        opened.append(self.scores)

    monkeypatch.setattr(LlamaTarget, "__init__", hears)
    request = choose(
        Paths.default({"SLIPSTREAM_HOME": str(tmp_path)}),
        str(BUNDLED / BUNDLED_TARGET),
        str(BUNDLED / BUNDLED_DRAFT),
        "kangaroo",
    )
    with closing(load(replace(request, exact="never"), lambda share: None)[0]):
        assert opened == [found, found, found]


def test_where_the_same_text_is_promised_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slipstream.app.engine.plan.flash_attention_is_slower", None)
    with closing(load(choose(Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})), lambda share: None)[0]):
        pass
