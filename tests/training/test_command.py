import lzma
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.llama_file import LlamaFile
from tests.training.synthetic import rows

from slipstream.drafters.training.__main__ import main

SIZES = "--vocabulary=600 --width=64 --layers=1 --heads=2 --kv-heads=1 --head-size=32 --ffn=96"


def test_from_text_to_a_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for source, lines in rows(random.Random(4)).items():
        (data / f"{source}.jsonl.xz").write_bytes(lzma.compress("".join(lines).encode()))

    def stage(*words: str) -> str:
        main([*words, "--out", str(out), "--threads", "1"])
        return capsys.readouterr().out

    assert "gpteacher" in stage("tokenizer", "--data", str(data), "--vocabulary", "600")
    training = [*SIZES.split(), "--tokens", "20000", "--batch-tokens", "2048", "--check-every", "5"]
    first = stage("target", *training)
    assert "held-out" in first
    assert "held-out" in stage("draft", *training)
    assert "step" not in stage("target", *training)  # the budget is used up: nothing is trained again
    command = [sys.executable, "-m", "slipstream.drafters.training", "export", "--out", str(out)]
    command += ["--models", str(tmp_path / "models"), "--threads", "1"]
    report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert '"same_best"' in report
    for name in ("slipstream-mini-q8_0.gguf", "slipstream-mini-draft-q8_0.gguf"):
        with LlamaFile(tmp_path / "models" / name) as file:
            prompt = file.ids("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n", special=True)
            assert len(file.reply(prompt, most=5)) <= 5
    assert not list((tmp_path / "models").glob("*.part"))


def test_a_run_without_a_budget_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["target", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "--minutes or --tokens" in capsys.readouterr().err
