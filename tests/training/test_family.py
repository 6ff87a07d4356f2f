"""The whole recipe on a very small scale: every stage learns, and writes what llama.cpp or slipstream reads."""

import json
import lzma
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.llama_file import LlamaFile
from tests.training.synthetic import rows

from slipstream.drafters.training import texts
from slipstream.drafters.training.family import heads, mix, stages, tokenizer
from slipstream.drafters.training.family.command import main
from slipstream.drafters.training.family.sizes import TINY
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.check import Method
from slipstream.models.heads.file import check_target, read_heads

HEADS: dict[str, tuple[Method, str]] = {
    "medusa": ("medusa", stages.TARGET_NAME),
    "kangaroo": ("kangaroo", stages.TARGET_NAME),
    "space": ("space", stages.TARGET_NAME),
    "space-tuned": ("space", heads.TUNED_NAME),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one command has built the whole family."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("family")
    for source, lines in rows(random.Random(3)).items():
        (data / f"{source}.jsonl.xz").write_bytes(lzma.compress("".join(lines).encode()))
    main(["family", "--tiny", "--data", str(data), "--out", str(out), "--threads", "1"])
    return out


def _acceptance(out: Path) -> dict[str, list[float]]:
    report = json.loads((out / heads.REPORT_FILE).read_text())
    return {name: found["shares"] for name, found in report["acceptance"].items()}


def _unigram(out: Path) -> float:
    """How often the most frequent token of the target's replies is the next one."""
    held = stages.answers(out, 0, held_out=True)
    counts = np.bincount(held.ids[held.weights >= 1])
    return float(counts.max() / counts.sum())


def test_the_target_learns_and_its_loss_is_on_record(out: Path) -> None:
    history = torch.load(out / "target.pt", weights_only=True)["progress"]["history"]
    assert history[0]["held_out"] > 5
    assert history[-1]["held_out"] < 3.8
    assert history[-1]["tokens"] >= TINY.target_plan.tokens - TINY.target_plan.check_every * 4096


@pytest.mark.parametrize("name", ["draft", "medusa", "kangaroo", "eagle3", "dflash", "space", "space-tuned"])
def test_every_drafter_beats_the_unigram_guess(name: str, out: Path) -> None:
    found = _acceptance(out)[name]
    assert found[0] > _unigram(out) + 0.03
    assert all(0 <= share <= 1 for share in found)


def test_a_draft_that_sees_more_guesses_better(out: Path) -> None:
    found = _acceptance(out)
    assert found["kangaroo"][0] > found["medusa"][0]
    assert found["draft"][0] > found["space"][0]


@pytest.mark.parametrize("name", HEADS)
def test_heads_name_their_target_and_fit_it(name: str, out: Path) -> None:
    method, target_name = HEADS[name]
    target = read_header(out / f"{target_name}-q8_0.gguf")
    found = read_heads(heads.heads_file(out, method, target_name), target)
    assert found.info.method == method
    check_target(found.info, target)
    if name == "space-tuned":
        with pytest.raises(SlipstreamError, match="trained for"):
            check_target(found.info, read_header(out / f"{stages.TARGET_NAME}-q8_0.gguf"))
    assert found.info.settings["acceptance"] == pytest.approx(_acceptance(out)[name], abs=1e-3)


def test_masks_are_few_and_lie_apart(out: Path) -> None:
    masks = read_heads(heads.heads_file(out, "space")).tensors["masks"]
    assert masks.shape == (TINY.masks, TINY.target.width)
    assert float(np.abs(masks[0] - masks[1]).max()) > 0.01


@pytest.mark.parametrize("name", [stages.TARGET_NAME, stages.DRAFT_NAME, heads.TUNED_NAME])
def test_models_load_in_llama_cpp_and_reply(name: str, out: Path) -> None:
    with LlamaFile(out / f"{name}-q8_0.gguf") as file:
        prompt = file.ids("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n", special=True)
        assert 0 < len(file.reply(prompt, most=5)) <= 5


def test_what_is_done_is_not_done_again(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.pt")}
    for stage in ("answers", "medusa"):
        main([stage, "--tiny", "--out", str(out), "--threads", "1"])
    said = capsys.readouterr().out
    assert "step" not in said
    assert "own answers" not in said
    assert set(before) == {path.name for path in out.glob("*.pt")}


def test_the_stage_that_needs_data_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tokenizer", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "--data" in capsys.readouterr().err


def test_a_lost_folder_is_taken_up_from_the_files_that_shipped(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped, made = tmp_path / "shipped", tmp_path / "made"
    shipped.mkdir()
    made.mkdir()
    for path in out.glob("*.gguf"):
        shutil.copy(path, shipped)
    tokenizer.from_gguf(shipped / f"{stages.TARGET_NAME}-q8_0.gguf").save(str(made / stages.TOKENIZER_FILE))
    shutil.copy(out / stages.CORPUS_FILE, made)
    for stage in ("loops", "target", "answers", "draft", "medusa", "kangaroo", "eagle3", "dflash", "space"):
        tokens = ["--tokens", "41000"] if stage == "target" else []
        main([stage, "--tiny", "--out", str(made), "--start", str(shipped), "--threads", "1", *tokens])
    repeated = mix.against_repetition(texts.read_answers(made / stages.LOOPS_FILE))
    assert repeated.weights.min() == -1
    drawn = torch.load(made / "target.pt", weights_only=True)["draws"]["drawn"]
    assert drawn["loops"] > 0
    anew = tmp_path / "anew"  # SPACE's loss depends on the target that the masks imitate: both begin on the same one
    shutil.copytree(made, anew, ignore=shutil.ignore_patterns("*space*"))
    main(["space", "--tiny", "--out", str(anew), "--threads", "1"])
    for name in ("target", "draft", "medusa", "kangaroo", "eagle", "dflash", "space"):
        fresh, taken_up = (
            torch.load(folder / f"{name}.pt", weights_only=True)["progress"]["history"][0]["held_out"]
            for folder in (anew if name == "space" else out, made)
        )
        assert taken_up < fresh - 0.02, name
    assert "trying an exit" not in capsys.readouterr().out


def test_an_average_lies_between_two_legs(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        for name in (stages.TARGET_FILE, stages.CORPUS_FILE, stages.TOKENIZER_FILE):
            shutil.copy(out / name, folder)
    state = torch.load(theirs / stages.TARGET_FILE, weights_only=True)
    before = state["model"]["blk.0.attn_q.weight"].clone()
    state["model"]["blk.0.attn_q.weight"] = before + 0.4
    torch.save(state, theirs / stages.TARGET_FILE)
    asked = ["average", "--tiny", "--out", str(ours), "--share", "0.25", "--other"]
    main([*asked, str(theirs)])
    after = torch.load(ours / stages.TARGET_FILE, weights_only=True)["model"]["blk.0.attn_q.weight"]
    assert torch.allclose(after, before + 0.1, atol=1e-6)
    assert "held-out" in capsys.readouterr().out
    assert read_header(ours / f"{stages.TARGET_NAME}-q8_0.gguf").n_layer == TINY.target.layers
    with pytest.raises(SlipstreamError, match=r"no target\.pt in"):
        main([*asked, str(tmp_path)])
    with pytest.raises(SystemExit):
        main(["average", "--out", str(ours)])


def test_the_tokenizer_of_a_shipped_file_is_the_one_it_was_made_with(out: Path) -> None:
    stored = tokenizer.load(out / stages.TOKENIZER_FILE)
    read = tokenizer.from_gguf(out / f"{stages.TARGET_NAME}-q8_0.gguf")
    for text in ("Hello there, how are you?\n\n  Fine: 12,345 <|im_end|>", "caf\u00e9 \U0001f600\tx", ""):
        ids = [tokenizer.ChatEncoder(each).ids(text) for each in (stored, read)]
        assert ids[0] == ids[1]
    assert read.id_to_token(2) == "<|im_end|>"
