"""Texts that were really written, forced through a target: what is read, what is counted, what is printed."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.real_texts import RealText, read_texts
from tests.bench.test_command import TINY, options

from slipstream.app.platform.paths import HOME_VARIABLE
from slipstream.app.protocol.requests import Message
from slipstream.models.errors import SlipstreamError, UsageError

POEM = "The wind is in the trees tonight, the wind is in the trees. "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    texts = tmp_path / "texts"
    (texts / "sums").mkdir(parents=True)
    sums = {"question": "How many eggs are 2 dozen?", "answer": "2 dozen are <<2*12=24>>24 eggs.\n#### 24"}
    (texts / "sums" / "test.jsonl.xz").write_bytes(lzma.compress(json.dumps(sums).encode()))
    (texts / "sums" / "SOURCE.txt").write_text("github.com/a/sums @ 123abc\nlicence: MIT\n")
    code = {"prompt": "def twice(x):\n", "canonical_solution": "    return twice_of(x) + twice_of(x)\n"}
    (texts / "code.jsonl.gz").write_bytes(gzip.compress(json.dumps(code).encode()))
    talk = {"category": "reasoning", "turns": ["Who?", "Why?"], "replies": ["I think it was Tom.", "He was late."]}
    (texts / "talk.jsonl").write_text(json.dumps(talk) + "\n" + json.dumps({"other": 1}) + "\n")
    (texts / "poem.txt").write_text(f"{POEM}\n\n{POEM * 4}")
    (texts / "notes.md").write_text("not read")
    return texts


def test_every_kind_of_text_is_read_with_what_it_answers(folder: Path) -> None:
    files = {file.name: file for file in read_texts(folder)}
    assert list(files) == ["code.jsonl.gz", "poem.txt", "sums/test.jsonl.xz", "talk.jsonl"]
    assert files["sums/test.jsonl.xz"].texts == (
        RealText("mathematics", (Message("user", "How many eggs are 2 dozen?"),), "2 dozen are 24 eggs.\n#### 24"),
    )
    assert files["sums/test.jsonl.xz"].source == "github.com/a/sums @ 123abc licence: MIT"
    assert (
        files["sums/test.jsonl.xz"].sha256 == hashlib.sha256((folder / "sums/test.jsonl.xz").read_bytes()).hexdigest()
    )
    assert files["code.jsonl.gz"].source == ""
    (code,) = files["code.jsonl.gz"].texts
    assert code.domain == "code" and code.messages[0].content.endswith("\n\ndef twice(x):\n")
    first, second = files["talk.jsonl"].texts
    assert (first.domain, second.reply) == ("prose", "He was late.")
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]
    (poem,) = files["poem.txt"].texts
    assert poem.reply == (POEM * 4).strip() and POEM.strip() in poem.messages[0].content


def test_a_folder_without_texts_and_lines_that_are_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no texts"):
        read_texts(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "reply": "y"}\n{"prompt"')
    with pytest.raises(UsageError, match="line 2: not JSON"):
        read_texts(tmp_path)


@pytest.mark.slow
def test_the_bundled_model_replays_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = options(tmp_path / "f.json", "replay", texts=folder, drafters="lookup,auto", tokens=40)
    assert bench(asked, TINY) == 0
    said = capsys.readouterr().out
    report = json.loads((tmp_path / "f.json").read_text())["replay"]
    rows = {(row["domain"], row["drafter"]): row for row in report["rows"]}
    assert list(rows) == [
        (domain, name) for domain in ("prose", "code", "mathematics", "all of these") for name in ("lookup", "auto")
    ]
    for row in rows.values():
        assert row["speedup"]["value"] > 0 and 1 <= row["tokens_per_step"] <= 40
        assert all(share is None or 0 <= share <= 1 for share in row["by_depth"])
    prose, every = rows["prose", "lookup"], rows["all of these", "lookup"]
    assert (prose["texts"], every["texts"]) == (3, 5)
    assert prose["tokens"] < every["tokens"] <= 5 * 40
    assert prose["tokens_per_step"] > 1.3 and prose["by_depth"][0] > 0.5  # the poem stands in its prompt
    assert prose["repeated"] > 0.3 > rows["mathematics", "lookup"]["repeated"]
    assert every["speedup"]["low"] is not None and prose["speedup"]["low"] is None
    assert "- sums/test.jsonl.xz, sha256 " in said and "github.com/a/sums @ 123abc" in said
    assert "- poem.txt, sha256 " in said and "source not named" in said


@pytest.mark.slow
def test_what_the_part_needs_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs texts to replay\. "):
        bench(options(None, "replay"), TINY)
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "a.jsonl").write_text(json.dumps({"prompt": POEM * 400, "reply": "yes"}))
    with pytest.raises(SlipstreamError, match="none of the texts fits"):
        bench(options(None, "replay", texts=tmp_path / "long", drafters="lookup"), TINY)
