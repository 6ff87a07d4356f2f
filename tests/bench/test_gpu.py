"""``tests/bench/gpu.sh``, which is made for a GPU, runs on a processor too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bench.passes import ROWS

BUNDLED = Path("models/bundled").absolute()


@pytest.mark.program
@pytest.mark.slow
def test_the_script_prints_every_part_and_leaves_no_model_behind(tmp_path: Path) -> None:
    packs, folder, out = (tmp_path / name for name in ("packs", "folder", "out"))
    for each in (packs, folder, out):
        each.mkdir()
    model = BUNDLED / "slipstream-mini-q8_0.gguf"
    command = ["bash", "tests/bench/gpu.sh", str(packs), str(model), "--heads", str(BUNDLED), "--race", "135m:Q4_0"]
    command += ["--sizes", "135m", "--types", "Q4_0,Q8_0", "--drafters", "medusa,lookup", "--prompts", "story"]
    command += ["--limit", "1", "--tokens", "32", "--seconds", "300", "--folder", str(folder), "--out", str(out)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=400)
    assert done.returncode == 0, done.stderr
    for title in ("passes, ms: 135m:Q4_0", "drafters, T 0.8", "a step's milliseconds", "passes, ms: 135m:Q8_0"):
        assert title in done.stdout
    assert not list(folder.iterdir())
    raced = json.loads((out / "race-135m-q4_0.json").read_text())
    passes = raced["passes 135m:Q4_0"]
    assert [each["rows"] for each in passes] == list(ROWS)
    assert all(each["same_top_k"] for each in passes)  # llama.cpp's samplers on the device choose exactly
    rows = {row["drafter"]: row for row in raced["drafters"]}
    assert rows.keys() == {"none", "medusa", "lookup"}
    assert all(row["equal_texts"] == row["texts"] == 1 for row in rows.values())
    assert list(json.loads((out / "passes.json").read_text())) == ["passes 135m:Q8_0"]
