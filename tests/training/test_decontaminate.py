"""Text that overlaps a benchmark is found, counted and left out."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from slipstream.drafters.training.family.command import main
from slipstream.drafters.training.family.decontaminate import Benchmarks, Overlaps
from slipstream.drafters.training.family.sources import Message, Row
from slipstream.models.errors import UsageError

LONG = "Tom walks from his house to the old mill and back again every day before breakfast. How far does he walk?"
CODE = "def near(numbers, threshold):\n    return any(abs(a - b) < threshold for a in numbers for b in numbers)"
SHORT = "Name the largest planet."


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    folder = tmp_path / "benchmarks"
    (folder / "sums").mkdir(parents=True)
    (folder / "sums" / "test.jsonl.xz").write_bytes(lzma.compress(json.dumps({"question": LONG, "n": 3}).encode()))
    (folder / "code.jsonl.gz").write_bytes(gzip.compress(json.dumps({"tests": {"solution": CODE}}).encode()))
    (folder / "chat.jsonl").write_text(json.dumps({"turns": [SHORT, "Ok?"]}) + "\n")
    (folder / "SOURCE.txt").write_text("not a benchmark")
    return folder


def row(text: str, source: str = "a") -> Row:
    return Row(source, "", (Message(role="user", content="Well?"), Message(role="assistant", content=text)))


OVERLAPPING = {
    "sums/test.jsonl.xz": "As they say, tom walks -- from HIS house to the old mill and back again; so.",
    "code.jsonl.gz": "Try `return any(abs(a - b) < threshold for a in numbers for b in more)`.",
    "chat.jsonl": "name the largest planet",
}
CLEAN = [
    "Tom walks from his house to the new mill and back again every day.",
    "Please name the largest planet of all.",
    "Ok?",
    "",
]


def test_what_shares_ten_words_or_is_a_whole_short_prompt_overlaps(benchmarks: Path) -> None:
    found = Benchmarks(benchmarks)
    assert found.texts == {"sums/test.jsonl.xz": 1, "code.jsonl.gz": 1, "chat.jsonl": 1}
    for name, text in OVERLAPPING.items():
        overlap = found.find(row(text))
        assert overlap and overlap[0] == name, text
    assert found.find(Row("a", OVERLAPPING["chat.jsonl"], ()))
    assert [text for text in CLEAN if found.find(row(text))] == []


def test_the_report_counts_by_source_and_the_rest_is_kept(benchmarks: Path) -> None:
    found = Overlaps()
    rows = [*(row(text) for text in OVERLAPPING.values()), *(row(text, "b") for text in CLEAN)]
    kept = list(Benchmarks(benchmarks).clean(rows, found))
    assert kept == rows[3:]
    assert (found.rows, found.shared.total()) == ({"a": 3, "b": 4}, 3)
    assert "sums/test.jsonl.xz: 1, such as: tom walks from his house to the old mill and" in str(found)


def test_a_folder_without_benchmarks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no benchmark"):
        Benchmarks(tmp_path)


def test_the_command_prints_the_report_on_the_familys_text_too(
    benchmarks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"source": "a", "messages": list(row(text).messages)} for text in OVERLAPPING.values()]
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    main(["decontaminate", "--data", str(tmp_path), "--against", str(benchmarks)])
    said = capsys.readouterr().out
    assert "chat.jsonl: 1 texts" in said
    assert "a                              3 rows, overlapping: 3" in said
    assert "plain_words" in said


@pytest.mark.parametrize("arguments", [["decontaminate", "--data", "x"], ["filter"], ["target"]])
def test_what_a_command_needs_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert " needs --" in capsys.readouterr().err


def test_the_test_set_is_checked_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["test-set"])
    assert capsys.readouterr().out == "40 prompts chosen by hash; as fixed in test_set.sha256\n"
