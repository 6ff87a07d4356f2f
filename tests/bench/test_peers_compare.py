"""Part ``peers``: slipstream beside other engines, on the bundled model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.peers import engines
from tests.bench.peers.choice import PeerChoice
from tests.bench.peers.compare import compare_peers, our_build
from tests.bench.peers.engines import Engine
from tests.bench.peers.figures import (
    OUR_PLAIN,
    OURS,
    BestPair,
    PeerFigures,
    PeerReport,
    Replies,
    best_pairs,
    peer_figures,
)
from tests.bench.peers.sweep import Timing, Variant
from tests.bench.peers.tables import level, peers_text
from tests.bench.test_command import options

from slipstream.app.bench.intervals import Interval
from slipstream.app.bench.prompts import PromptSet, asked
from slipstream.app.bench.turns import ReplyPlan
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import UsageError

ENGINE = """
import json, os, sys
class Fake:
    version, build = "1.0", "test"
    def open(self, **arguments):
        if arguments["drafter"] == "unknown":
            raise ValueError("no such drafter")
        self.drafter, self.settings = arguments["drafter"], arguments["settings"]
        with open(os.environ["FAKE_LOG"], "a") as log:
            log.write(json.dumps(arguments) + "\\n")
        return {}
    def generate(self, prompt, tokens):
        with open(os.environ["FAKE_LOG"], "a") as log:
            log.write(json.dumps({"prompt": prompt, "tokens": tokens}) + "\\n")
        if self.drafter == "fragile" and len(prompt) > 40:
            print("out of memory", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 9)
        seconds = tokens / self.settings.get("speed", 100.0)
        return {"tokens": tokens, "seconds": seconds, "wall": 2 * seconds, "text": "", "drafted": 8, "accepted": 6}
engine = Fake
"""
SHORT, LONG = asked("Hello!"), asked("Tell me a story about a little girl and a small boat on the great blue sea. " * 3)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path_factory.mktemp("home")))


def plan() -> ReplyPlan:
    return ReplyPlan(["lookup"], [PromptSet("chat", (SHORT, LONG))], temperatures=(0.0,), tokens=6)


@pytest.mark.slow
def test_an_engine_gets_the_same_tokens_and_settings_and_what_fails_of_it_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log = tmp_path / "fake.py", tmp_path / "log.jsonl"
    file.write_text(ENGINE)
    monkeypatch.setenv("FAKE_LOG", str(log))
    groups = {
        "plain": [Variant("fake", "none")],
        "draft": [Variant("fake", "draft", (("speed", speed),)) for speed in (50.0, 200.0, 150.0)],
        "n-gram": [Variant("fake", "unknown")],
        "other": [Variant("fake", "fragile")],
    }
    monkeypatch.setattr(engines, "ENGINES", {"fake": Engine("fake", file, groups)})
    request, told = choose(Paths.default()), list[str]()
    report = compare_peers(request, plan(), PeerChoice(("fake",)), told.append)

    rows = {(row.engine, row.drafter): row for row in report.rows}
    assert list(rows) == [(OURS, "none"), (OURS, "lookup"), ("fake", "none"), ("fake", "draft")]
    assert rows["fake", "draft"].settings == {"speed": 200.0} and rows["fake", "draft"].version == "1.0"
    assert rows["fake", "draft"].tok_per_s == pytest.approx(200.0)
    assert rows["fake", "draft"].acceptance == pytest.approx(0.75)
    over_own = rows["fake", "draft"].against_own_plain
    assert over_own is not None and over_own.value == pytest.approx(2.0)
    plain = rows[OURS, "none"]
    for row in (rows["fake", "none"], rows["fake", "draft"]):
        assert row.against_our_plain.value == pytest.approx(row.tok_per_s / plain.tok_per_s)
    assert rows["fake", "draft"].ours == "" and rows["fake", "draft"].ours_against_it is None  # ours was not asked for
    over = rows["fake", "none"].ours_against_it
    assert over is not None and over.value == pytest.approx(plain.tok_per_s / 100.0)
    assert plain.equal_texts == plain.texts == 2 and rows["fake", "none"].equal_texts == 0
    assert {tried.settings["speed"]: tried.replies for tried in report.tried if tried.drafter == "draft"} == {
        50.0: 2,
        200.0: 4,
        150.0: 4,
    }

    refused, died = report.left_out
    assert refused == "fake unknown: fake refuses: ValueError: no such drafter."
    assert died == "fake fragile: fake died: out of memory (exit code -9)."

    noted = [json.loads(line) for line in log.read_text().splitlines()]
    openings = [line for line in noted if "model" in line]
    assert {(line["model"], line["draft_model"]) for line in openings} == {(request.model, request.draft_model)}
    assert {(line["kv"], line["flash"], line["threads"]) for line in openings} == {("q8_0", True, report.threads)}
    asked_for = [line for line in noted if "prompt" in line and line["tokens"] == 6]
    ids = {len(line["prompt"]): line["prompt"] for line in asked_for}
    assert len(ids) == 2 and max(ids) > 40, "the tokens of both prompts, as slipstream reads them"
    assert any("trying fake draft (speed 200), prompt 1" in line for line in told)


@pytest.mark.slow
def test_the_engines_that_come_along_run_the_bundled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {"peer": ["llama.cpp", "llama-cpp-python"], "drafters": "lookup", "limit": 1, "tokens": 8}
    assert bench(options(tmp_path / "f.json", "peers", prompts="story", temp=0, **chosen)) == 0
    report = json.loads((tmp_path / "f.json").read_text())["peers"]
    assert report["builds"][OURS] == report["builds"]["llama.cpp"] and len(report["best"]) == 2
    rows = {(row["engine"], row["drafter"]): row for row in report["rows"]}
    assert list(rows) == [
        (OURS, "none"),
        (OURS, "lookup"),
        ("llama.cpp", "none"),
        ("llama-cpp-python", "none"),
        ("llama-cpp-python", "prompt-lookup"),
    ]
    assert report["left_out"] == []
    for row in rows.values():
        assert row["tok_per_s"] > 0 and row["wall_tok_per_s"] > 0 and row["texts"] == 1
        assert row["against_our_plain"]["value"] > 0
    assert rows["llama.cpp", "none"]["equal_texts"] == 1, "the same library, the same tokens, the same text"
    assert rows["llama-cpp-python", "none"]["equal_texts"] == 1
    assert rows["llama-cpp-python", "prompt-lookup"]["settings"]["num_pred_tokens"] in (2, 5, 10)
    printed = capsys.readouterr().out
    assert "\npeers: other engines on Slipstream mini" in printed and "| llama.cpp 0.3" in printed
    assert not any(f"\n{part}:" in printed for part in ("plain", "overhead", "drafters", "memory"))


def test_an_engine_that_there_is_not_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no engine 'vllm' to measure"):
        bench(options(None, "peers", peer="vllm"))
    assert not capsys.readouterr().out


def replies(*timings: tuple[int, float]) -> Replies:
    """Replies of so many tokens in so many seconds, each to a prompt of its own, beside plain ones of 100 a second."""
    made = Replies()
    for at, (tokens, seconds) in enumerate(timings):
        made.add(("chat", at), Timing(tokens, seconds, 2 * seconds, "same", None, None), PLAIN)
    return made


PLAIN = Timing(100, 1.0, 2.0, "same", None, None)


def figures(written: Mapping[Variant, Replies]) -> dict[str, PeerFigures]:
    rows = peer_figures(written, {"fake": "1.0"})
    return {f"{row.engine} {row.drafter}": row for row in rows}


def test_ours_is_compared_like_with_like() -> None:
    rows = figures(
        {
            OUR_PLAIN: replies((100, 1.0), (100, 1.0)),
            Variant(OURS, "recycle"): replies((100, 2.0), (100, 2.0)),
            Variant(OURS, "lookup"): replies((100, 0.5), (100, 0.5)),
            Variant(OURS, "draft"): replies((100, 0.25), (100, 0.25)),
            Variant("fake", "none"): replies((100, 0.8), (100, 0.8)),
            Variant("fake", "draft"): replies((100, 0.4), (100, 0.4)),
            Variant("fake", "ngram-mod", (("n_max", 8.0),)): replies((100, 1.0), (100, 1.0)),
            Variant("fake", "medusa"): replies((100, 1.0), (100, 1.0)),
        }
    )
    values = {
        name: [None if ratio is None else round(ratio.value, 6) for ratio in ratios]
        for name, row in rows.items()
        for ratios in [(row.against_our_plain, row.against_own_plain, row.ours_against_it)]
    }
    assert values == {
        "slipstream none": [1.0, None, None],
        "slipstream recycle": [0.5, 0.5, None],
        "slipstream lookup": [2.0, 2.0, None],
        "slipstream draft": [4.0, 4.0, None],
        "fake none": [1.25, None, 0.8],
        "fake draft": [2.5, 2.0, 1.6],
        "fake ngram-mod": [1.0, 0.8, 2.0],
        "fake medusa": [1.0, 0.8, None],
    }
    assert {name: row.ours for name, row in rows.items() if row.ours} == {
        "fake none": "none",
        "fake draft": "draft",
        "fake ngram-mod": "lookup",
    }
    assert rows["fake draft"].tok_per_s == pytest.approx(250) and rows["fake draft"].wall_tok_per_s == 125
    assert (rows["fake draft"].equal_texts, rows["fake draft"].texts) == (2, 2)


def test_the_best_of_each_engine_meets_our_best() -> None:
    (pair,) = best_pairs(
        {
            OUR_PLAIN: replies((100, 1.0)),
            Variant(OURS, "lookup"): replies((100, 0.5)),
            Variant("fake", "none"): replies((100, 0.8)),
            Variant("fake", "ngram-mod"): replies((100, 0.4)),
        }
    )
    assert (pair.engine, pair.drafter, pair.ours) == ("fake", "ngram-mod", "lookup")
    assert pair.ratio.value == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("drafter", "kind"),
    [
        *(("none", "plain"), ("draft", "draft"), ("lookup", "text"), ("lookup|recycle", "text")),
        *(("prompt-lookup", "text"), ("ngram-map-k4v", "text"), ("lookup+draft", "other"), ("auto", "other")),
    ],
)
def test_drafters_of_all_engines_have_a_kind(drafter: str, kind: str) -> None:
    assert Variant("any", drafter).kind == kind


def test_every_drafter_of_the_other_engines_meets_one_of_ours() -> None:
    kinds = {v.kind for engine in engines.ENGINES.values() for group in engine.groups.values() for v in group}
    assert kinds == {"plain", "draft", "text"}


def test_a_builds_level_is_its_widest_features() -> None:
    assert level("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 0 | OPENMP = 1 | ") == "AVX512"
    assert level("CPU : AVX = 1 | AVX2 = 1 | AVX512 = 0 |") == "AVX2"
    assert level("Metal : EMBED_LIBRARY = 1") == "no known features"
    assert level(our_build()) != "no known features"


def test_a_reply_that_ended_with_its_first_token_has_no_speed() -> None:
    rows = figures({OUR_PLAIN: replies((100, 1.0)), Variant("fake", "none"): replies((100, 0.5), (0, 0.0))})
    assert rows["fake none"].against_our_plain == Interval(2.0) and rows["fake none"].texts == 2
    none = figures({OUR_PLAIN: replies((100, 1.0)), Variant("fake", "none"): replies((0, 0.0))})
    assert list(none) == ["slipstream none"]


def test_the_table_says_what_is_compared_and_who_is_missing() -> None:
    rows = peer_figures({OUR_PLAIN: replies((100, 1.0)), Variant("fake", "none"): replies((100, 0.5))}, {"fake": "1.0"})
    report = PeerReport(
        model="mini",
        threads=2,
        kv="f16",
        flash=None,
        reply=160,
        temperature=0.8,
        prompts={"chat": 1},
        too_long={"chat": 3},
        builds={"fake": "CPU : AVX2 = 1", "other": "CPU : AVX2 = 1 | AVX512 = 1"},
        rows=rows,
        best=[BestPair("fake", "none", "lookup", Interval(1.5))],
        tried=[],
        left_out=["llama-server is not installed: no module. Install it."],
    )
    lines = peers_text(report).splitlines()
    assert lines[1] == "peers: other engines on mini, each turn in turn with slipstream"
    row = next(line for line in lines if line.startswith("| fake 1.0"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "fake 1.0",
        "none",
        "200.0",
        "100.0",
        "2.00x",
        "-",
        "0.50x (none)",
        "-",
        "1/1",
    ]
    notes = "\n".join(lines)
    assert "at most 160 tokens out; threads 2, KV cache f16, flash attention as llama.cpp chooses" in notes
    assert "- fake was built for AVX2: CPU : AVX2 = 1" in notes and "- other was built for AVX512: " in notes
    assert "temperature 0.8, at most" in notes and "each engine draws with its own noise" in notes.lower()
    assert "| fake   |     none |   lookup |        1.50x |" in lines
    assert "- Prompts of chat too long for the context: 3." in notes
    assert "- Left out: llama-server is not installed: no module. Install it." in notes
