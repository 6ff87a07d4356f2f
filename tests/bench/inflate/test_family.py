"""``--inflate``: what is asked for, missing room, files that come and go, figures that say what they are."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.bench.__main__ import bench, options
from tests.bench.inflate import shapes
from tests.bench.inflate.family import Family, Wish, check_room, families, inflated, inflated_folder, kept_text
from tests.bench.inflate.shapes import SHAPES, Shape
from tests.bench.parts import Sizes

from slipstream.app.bench.turns import BenchAmounts
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.self_draft import kept_cut
from slipstream.models.llama.devices import Device

TINY = Shape("tiny", 512, 16, 8, 4, 64, 768, 4500, of="nobody's model")
LESS = Shape("less", 256, 3, 4, 2, 64, 768, 4200, of="nobody's draft model")
BIG_MACHINE = [Device("CPU", "cpu", "a processor", 1 << 40, 1 << 40)]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Paths:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(shapes, "SHAPES", MappingProxyType({**SHAPES, "tiny": TINY, "less": LESS}))
    return Paths.default()


@pytest.fixture
def request_(home: Paths) -> Load:
    return choose(home)


def family(request: Load, keep: bool = False) -> Family:
    wish = Wish.of("tiny", "Q8_0", "less", keep)
    assert wish
    return families(request, wish)[0]


def test_options_name_shapes_and_quantizations() -> None:
    assert Wish.of(None, None, None, False) is None
    wish = Wish.of("1b, 7B,1b", "q4_0,BF16", "0.5b", True)
    assert wish == Wish((SHAPES["1b"], SHAPES["7b"]), ("Q4_0", "BF16"), SHAPES["0.5b"], True)
    usual = Wish.of("3b", None, None, False)
    assert usual == Wish((SHAPES["3b"],), ("Q4_0",), None, False)
    for given in (("2b", None, None, False), ("1b", "Q9", None, False), ("1b", None, "2b", False)):
        with pytest.raises(UsageError):
            Wish.of(*given)
    for alone in ((None, "Q4_0", None, False), (None, None, "1b", False), (None, None, None, True)):
        with pytest.raises(UsageError, match="nothing to widen"):
            Wish.of(*alone)


def test_too_small_a_disk_or_memory_is_told_before_anything_is_made(
    request_: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = Wish.of("1b,13b", "F16", None, False)
    assert wish
    planned = families(request_, wish)
    with pytest.raises(SlipstreamError, match="widened to 13b, F16 does not fit this machine") as memory:
        check_room(planned, tmp_path, [Device("CPU", "cpu", "a processor", 8 << 30, 6 << 30)], False)
    assert "GB" in memory.value.hint
    usage = namedtuple("usage", "total used free")
    for keep, wanted in ((False, "27"), (True, "30")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 20_000_000_000))
        with pytest.raises(SlipstreamError, match=rf"widening takes {wanted}\.\d GB, and .* has 20.0 GB free") as disk:
            check_room(planned, tmp_path, BIG_MACHINE, keep)
        assert "SLIPSTREAM_HOME" in disk.value.hint
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 100_000_000_000))
    check_room(planned, tmp_path, BIG_MACHINE, True)
    assert not list(tmp_path.rglob("*.gguf"))


def test_files_go_with_the_measurement_unless_they_are_to_stay(request_: Load, home: Paths) -> None:
    folder = inflated_folder(home.derived)
    told: list[str] = []
    with inflated(family(request_), folder, False, told.append) as made:
        paths = [Path(path) for path in (made.load.model, made.load.draft_model or "", *made.load.heads)]
        assert len(paths) == 7 and all(path.stat().st_size in made.sizes.values() for path in paths)
        assert made.seconds > 0 and len(told) == 7
        assert "WIDENED: it costs what nobody's model costs in Q8_0, and writes what Slipstream mini" in made.text()
        assert "would write in Q8_0, from the same 4,096 tokens" in made.text()
    assert not list(folder.iterdir()) and kept_text(folder) == ""

    with inflated(family(request_), folder, True, told.append) as made:
        kept = Path(made.load.model)
    told.clear()
    with inflated(family(request_), folder, False, told.append) as made:  # they are there: nothing is made
        assert (Path(made.load.model), made.seconds, told) == (kept, 0.0, [])
        assert "kept" in made.text()
    assert len(list(folder.glob("*.gguf"))) == 7 and kept.exists()
    listed = kept_text(folder)
    assert kept.name in listed and f"{kept.stat().st_size / 1e6:,.0f} MB" in listed


def test_only_what_was_left_long_ago_is_cleared_away(home: Paths) -> None:
    folder = inflated_folder(home.derived)
    for name, age in (("bench-old", 100_000), ("bench-new", 100)):
        (folder / name).mkdir()
        (folder / name / "model.gguf").write_bytes(b"x")
        now = (folder / name).stat().st_mtime
        os.utime(folder / name, (now - age, now - age))
    (folder / "a.gguf.part").write_bytes(b"x")
    os.utime(folder / "a.gguf.part", (now - 100_000, now - 100_000))
    inflated_folder(home.derived)
    assert [path.name for path in folder.iterdir()] == ["bench-new"]


def test_what_cannot_be_inflated_is_left_out_and_told(
    request_: Load, home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SlipstreamError("these heads cannot be widened.", "Leave them.")

    monkeypatch.setattr("tests.bench.inflate.family.inflated_heads", refuse)
    wish = Wish.of("tiny", None, None, False)
    assert wish
    (planned,) = families(request_, wish)
    assert set(planned.left_out) == {"medusa", "kangaroo", "space", "eagle3", "dflash", "draft"}
    assert planned.left_out["medusa"] == "these heads cannot be widened" and planned.draft is None
    with inflated(planned, inflated_folder(home.derived), False, lambda _: None) as made:
        assert made.load.heads == [] and made.load.draft_model is None
        assert "- Not widened: `draft`, no draft model was widened; see --inflate-drafter." in made.text()


def test_a_cut_of_an_inflated_model_knows_its_tokens_too(request_: Load, home: Paths, tmp_path: Path) -> None:
    with inflated(family(request_), inflated_folder(home.derived), False, lambda _: None) as made:
        heads = next(Path(path) for path in made.load.heads if "kangaroo" in path)
        cut = read_header(kept_cut(Path(made.load.model), heads, tmp_path / "cuts"))
    assert (cut.n_vocab, cut.n_rows) == (4096, TINY.n_vocab)


@pytest.mark.slow
def test_a_run_prints_and_writes_down_that_the_model_was_inflated(
    home: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--inflate", "tiny", "--quant", "Q8_0", "--inflate-drafter", "less", "--drafters", "medusa,draft"]
    arguments = ["drafters", *given, "--prompts", "story", "--json", str(tmp_path / "figures.json")]
    sizes = Sizes(replace(BenchAmounts.brief(), limit=1, temperatures=(0.0,), reply=6))
    assert bench(options(arguments), sizes) == 0
    printed = capsys.readouterr()
    assert "## Slipstream mini widened to tiny, Q8_0" in printed.out
    assert "drafters: on Slipstream mini widened to tiny, Q8_0" in printed.out
    assert "bench: making: Slipstream mini draft widened to less, Q8_0" in printed.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"machine", "inflated"}
    (found,) = figures["inflated"]
    assert found["inflated"] is True and found["measures_of"] == TINY.of and found["small_model"] == "Slipstream mini"
    assert (found["shape"], found["quantization"]) == ("tiny", "Q8_0")
    assert found["draft_model"] == "Slipstream mini draft widened to less, Q8_0"
    assert {row["drafter"] for row in found["drafters"]["rows"]} == {"none", "medusa", "draft"}
    assert found["drafters"]["model"] == "Slipstream mini widened to tiny, Q8_0"
    assert not list(inflated_folder(home.derived).iterdir())
