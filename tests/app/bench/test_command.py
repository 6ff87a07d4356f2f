"""The command ``bench`` from its options to its tables and its JSON."""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.app.bench import turns
from slipstream.app.bench.figures import ALL_KINDS, RunningBench, decoded
from slipstream.app.bench.runner import BenchMachine
from slipstream.app.bench.turns import BenchAmounts, BenchTurn, CtrlC, WrittenReply, never
from slipstream.app.cli.bench import bench
from slipstream.app.cli.options import make_parser
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import AUTO
from slipstream.drafters.registry import METHODS
from slipstream.models.errors import SlipstreamError, UsageError

TINY = BenchAmounts(temperatures=(0.8,), reply=32, drafter_steps=0)


def options(json_file: Path | None = None, *only: str, **given: object) -> argparse.Namespace:
    """The options as the command line gives them: ``drafters="lookup"``, ``prompts=[file]``, ``check=True``."""
    arguments = [word for part in only for word in ("--only", part)]
    if json_file:
        arguments += ["--json", str(json_file)]
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            arguments += [f"--{name}"] if each is True else [f"--{name}={each}"]
    return make_parser().parse_args(["bench", *arguments])


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path_factory.mktemp("home")))


def test_share_prints_one_line_of_prose_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(options(share=True, limit=1), TINY) == 0
    line, end = capsys.readouterr().out.split("\n")
    parts = line.split(" | ")
    assert not end and parts[0].startswith("slipstream ")
    assert parts[2].endswith(" Q8_0") and parts[3].startswith("plain ") and parts[3].endswith(" tok/s")
    assert parts[4].startswith("auto: prose ") and "; code " in parts[4] and parts[4].count("tokens a step") == 2
    with pytest.raises(UsageError, match="without --prompts"):
        bench(options(share=True, prompts=["story"]), TINY)


@pytest.mark.slow
def test_every_drafter_is_printed_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(options(tmp_path / "figures.json", limit=1), TINY) == 0
    printed = capsys.readouterr()
    head = printed.out.splitlines()
    assert "cores" in head[0] and "llama-cpp-python" in head[1]
    assert any(line.startswith("drafters:") for line in head)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"machine", "drafters"}
    report = figures["drafters"]
    serve = {row["drafter"] for row in report["rows"]}
    assert serve | report["unusable"].keys() == {*METHODS, AUTO}
    assert not serve & report["unusable"].keys() and {"none", "draft", "lookup"} <= serve
    assert {row["kind"] for row in report["rows"]} == {"chat", "story", "copy", ALL_KINDS}
    overall = {row["drafter"]: row["speedup"] for row in report["rows"] if row["kind"] == ALL_KINDS}
    assert overall[report["best"][-1]["drafter"]] == report["best"][-1]["speedup"] and overall[AUTO]
    assert report["texts"] == 3 * (len(serve) - 1)
    assert [row["kind"] for row in report["best"]] == ["chat", "story", "copy", ALL_KINDS]
    assert all(row["drafter"] in serve - {AUTO} and row["auto_over_best"]["value"] > 0 for row in report["best"])
    assert f"Texts equal: {report['equal_texts']}/{report['texts']}" in printed.out
    for name, reason in report["unusable"].items():
        assert f"- Left out: `{name}`, {reason}." in head


def test_what_cannot_be_measured_or_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for bad in (tmp_path, tmp_path / "missing" / "figures.json"):
        with pytest.raises(SlipstreamError, match="cannot write"):
            bench(options(bad), TINY)
    assert not capsys.readouterr().out
    with pytest.raises(UsageError, match="Parts: drafters, check"):
        bench(options(None, "speed"), TINY)
    with pytest.raises(UsageError, match="--svg draws part drafters"):
        bench(options(None, "check", svg=tmp_path / "bars.svg"), TINY)
    with pytest.raises(SlipstreamError, match=r"cannot write .* Give --svg another"):
        bench(options(svg=tmp_path / "missing" / "bars.svg"), TINY)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_progress_is_told_as_json_up_to_the_printed_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(tmp_path / "f.json", drafters="lookup,draft", prompts=["chat", "copy"], limit=1, progress=True)
    assert bench(chosen, TINY) == 0
    lines = capsys.readouterr().out.splitlines()
    measuring = RunningBench()
    shares = []
    for line in lines:
        if line.startswith("{"):
            measuring.take(decoded(json.loads(line)))
            assert measuring.update
            shares.append(measuring.update.share)
    report = json.loads((tmp_path / "f.json").read_text())["drafters"]
    drafted = {(row["kind"], row["drafter"]): row["speedup"] for row in report["rows"] if row["drafter"] != "none"}
    rows = [row for row in measuring.rows if row.drafter != "none"]
    told = {(row.kind, row.drafter): asdict(row)["speedup"] for row in rows}
    assert told == drafted and len(told) == 6
    assert measuring.update and measuring.update.drafters == ("lookup", "draft") and not measuring.left
    assert shares[-1] > 0.9 and shares[0] < 0.5


def write_prompts(path: Path, *prompts: str) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


@pytest.mark.slow
def test_drafters_on_files_of_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        write_prompts(
            tmp_path / "sea.jsonl", "Tell me about the sea.", "not this one", "Why is the sea blue?", "nor this"
        ),
        write_prompts(tmp_path / "long.jsonl", "word " * 3000, "Tell me a story about the moon."),
    ]
    chosen = options(tmp_path / "figures.json", drafters="lookup, none", prompts=files, limit=2)
    assert bench(chosen, TINY) == 0
    printed = capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"machine", "drafters"}
    report = figures["drafters"]
    sea, long = (f"{tmp_path.name}/{name}" for name in ("sea", "long"))
    rows = [row for row in report["rows"] if row["kind"] != ALL_KINDS]
    assert [(row["drafter"], row["kind"], row["texts"]) for row in rows] == [
        ("none", sea, 4),  # before and after each
        ("lookup", sea, 2),
        ("none", long, 2),
        ("lookup", long, 1),
    ]
    assert report["prompts"] == {sea: 2, long: 1} and report["too_long"] == {sea: 0, long: 1}
    assert f"- Prompts of {long} too long for the context: 1." in printed
    for row in rows:
        assert row["phases"].keys() == {"draft", "evaluate", "accept", "commit", "rest"}
        assert row["phases"]["evaluate"] > 0 and row["tokens_per_step"] >= 1 and row["tok_per_s"] > 0
    plain, lookup, _, alone = rows
    assert plain["speedup"] == {"value": 1.0, "low": None, "high": None}
    assert lookup["speedup"]["value"] > 0 and len(lookup["by_prompt"]) == 2
    assert lookup["speedup"]["low"] is alone["speedup"]["low"] is None  # fewer than five prompts have no range


@pytest.mark.slow
def test_the_second_turn_is_asked_after_the_models_own_reply(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(json.dumps({"turns": ["Tell me about the sea.", "Say it again."]}))
    asked = options(tmp_path / "f.json", drafters="lookup", prompts=file, temp="0,0.5", seeds=2, tokens=9)
    assert bench(asked, TINY) == 0
    report = json.loads((tmp_path / "f.json").read_text())["drafters"]
    lookup = [row for row in report["rows"] if row["drafter"] == "lookup"]
    assert [row["temperature"] for row in lookup] == [0.0, 0.5]
    assert [row["texts"] for row in lookup] == [2, 2 * 2]  # seeds change nothing at temperature 0
    for row in lookup:
        assert len(row["by_prompt"]) == 1  # turns and seeds belong to their prompt
        assert row["tokens"] <= 9 * row["texts"]
    assert report["seeds"] == [1, 2] and report["reply"] == 9


@pytest.mark.slow
def test_typical_acceptance_is_measured_where_it_does_something_and_marked(tmp_path: Path) -> None:
    warm_and_cold = replace(TINY, temperatures=(0.0, 0.8))
    chosen = options(tmp_path / "f.json", drafters="recycle,draft", typical=0.05, limit=1)
    assert bench(chosen, warm_and_cold) == 0
    report = json.loads((tmp_path / "f.json").read_text())["drafters"]
    assert report["typical"] == 0.05
    assert {row["temperature"] for row in report["rows"]} == {0.8}


@pytest.mark.slow
def test_each_drafters_memory_is_measured_in_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(tmp_path / "f.json", drafters="draft", prompts="chat", limit=1)
    assert bench(chosen, replace(TINY, drafter_steps=3)) == 0
    memory = json.loads((tmp_path / "f.json").read_text())["drafters"]["memory_mb"]
    assert memory.keys() == {"none", "draft"}
    assert 20 < memory["none"] < memory["draft"]  # the draft model is loaded for it alone
    assert "peak MB" in capsys.readouterr().out


def test_without_a_file_the_figures_are_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = make_parser().parse_args(["bench", "--drafters", "lookup", "--prompts", "copy", "--limit", "1", "--json"])
    assert bench(chosen, TINY) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"machine", "drafters"}


@pytest.mark.slow
def test_prompts_that_are_all_too_long_are_an_error(tmp_path: Path) -> None:
    file = write_prompts(tmp_path / "long.jsonl", "word " * 3000)
    with pytest.raises(SlipstreamError, match="none of the prompts fits the context of"):
        bench(options(drafters="lookup", prompts=file), TINY)


@pytest.mark.slow
def test_a_drafter_that_cannot_serve_is_listed_with_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = Path(choose(Paths.default()).model)  # by its path: a model without a draft model
    assert bench(options(tmp_path / "f.json", drafters="draft,lookup", prompts="chat", limit=1, model=alone), TINY) == 0
    report = json.loads((tmp_path / "f.json").read_text())["drafters"]
    assert set(report["unusable"]) == {"draft"} and "draft model" in report["unusable"]["draft"]
    assert {row["drafter"] for row in report["rows"]} == {"none", "lookup"}
    assert "- Left out: `draft`, " in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"no drafter .* works with this model: draft: .*draft model"):
        bench(options(drafters="draft", model=alone), TINY)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"drafters": "lookup,magic"}, "no drafter 'magic'"), ({"drafters": "lookup,"}, "a drafter without a name"),
        ({"limit": -1}, "limit is -1"), ({"typical": 2.0}, "typical acceptance"),
        ({"typical": 0.1, "temp": "0"}, "does nothing at temperature 0"),
        ({"typical": 0.1, "check": True}, "changes the text"), ({"temp": "warm"}, "temp is 'warm'"),
        ({"temp": "0,-1"}, "temperature is -1"), ({"temp": "0,99"}, "temperature is 99.* from 0 to 10"),
        ({"seeds": 0}, "seeds is 0"), ({"tokens": 0}, "tokens is 0"),
        ({"prompts": "missing.csv"}, "no file of prompts"), ({"model": "gpt-9"}, "no model named 'gpt-9'"),
    ],
)  # fmt: skip
def test_a_wrong_use_is_refused_at_first(wrong: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=words):
        bench(options(**wrong), TINY)
    assert not capsys.readouterr().out


@pytest.mark.slow
def test_bars_are_drawn_and_written_as_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(drafters="lookup", prompts="chat", limit=2, svg=tmp_path / "bars.svg")
    assert bench(chosen, TINY) == 0
    picture = (tmp_path / "bars.svg").read_text()
    assert picture.startswith("<svg ") and "lookup" in picture and BenchMachine.here().processor[:10] in picture
    assert "speed-up over plain decoding, with 95 % intervals" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_of_llama_cpp_is_printed() -> None:
    arguments = ["--drafters", "auto", "--prompts", "story", "--limit", "1", "--temp", "0.8", "--tokens", "48"]
    command = [sys.executable, "-m", "slipstream.app.cli.main", "bench", *arguments, "--no-memory"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert all(line.startswith("bench: ") for line in done.stderr.splitlines()), done.stderr


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, module: str, after: int) -> None:
    replies = 0

    def write(
        session: Session,
        drafter: str,
        turn: BenchTurn,
        stop: Callable[[], bool] = never,
        on_step: Callable[[], None] = lambda: None,
    ) -> WrittenReply:
        nonlocal replies
        replies += 1
        if replies == after:
            signal.raise_signal(signal.SIGINT)
        return turns.write(session, drafter, turn, stop, on_step)

    monkeypatch.setattr(f"{module}.write", write)


@pytest.mark.slow
def test_ctrl_c_keeps_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    press_ctrl_c(monkeypatch, "slipstream.app.bench.drafters", after=3 + 3 + 2)  # in the third prompt
    chosen = options(tmp_path / "f.json", "drafters", "check", drafters="lookup", prompts="chat", limit=4)
    assert bench(chosen, TINY) == 130
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures.keys() == {"machine", "drafters"} and figures["drafters"]["stopped"]
    assert figures["drafters"]["texts"] == 2
    printed = capsys.readouterr()
    assert "STOPPED before its end" in printed.out and "Ctrl-C once more" in printed.err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_ctrl_c_before_any_measurement_leaves_old_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f.json").write_text("{}")
    press_ctrl_c(monkeypatch, "slipstream.app.bench.drafters", after=1)
    assert bench(options(tmp_path / "f.json", drafters="lookup", prompts="chat"), TINY) == 130
    assert (tmp_path / "f.json").read_text() == "{}"


def test_ctrl_c_twice_drops_everything() -> None:
    with pytest.raises(KeyboardInterrupt), CtrlC() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_a_stopped_audit_tells_what_it_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_ctrl_c(monkeypatch, "slipstream.app.bench.check", after=4)
    chosen = options(tmp_path / "f.json", check=True, drafters="lookup", prompts="chat", limit=3)
    assert bench(chosen, TINY) == 130
    found = json.loads((tmp_path / "f.json").read_text())["check"]
    assert found["stopped"] and found["compared"] == {"lookup": 1}
