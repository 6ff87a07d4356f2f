"""``slipstream drafters train`` as a person runs it, on a random model: killed, out of room, for another model."""

import json
import os
import random
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tests.training.gguf_file import WORDS, random_decoder, write_model

from slipstream.app.library.heads_files import heads_file
from slipstream.drafters.training.decoder import DecoderShape
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.heads.file import check_target, identity, read_heads
from slipstream.models.heads.matching_heads import matching_heads

TINY = DecoderShape(
    width=64, layers=6, heads=2, kv_heads=1, head_size=32, ffn=64, vocabulary=WORDS, context=1024, tied=False
)
QWEN3 = replace(TINY, rope="halves", qk_norm=True)
DEPTHS = {"medusa": 4, "kangaroo": 6, "space": 4}
RUN_BY_LLAMA = {"dflash": 7, "eagle3": 6}
PROGRAM = (sys.executable, "-m", "slipstream.app.cli.main")
Start = Callable[..., subprocess.Popen[str]]


def random_model(path: Path, shape: DecoderShape, seed: int) -> Path:
    model = random_decoder(shape, seed)
    model.token_embd.weight.data[:, 0] = 1  # in every state, so that a few tokens are always likely
    model.output.weight.data *= 3
    model.output.weight.data[300:304, 0] += 3
    write_model(path, model, GGMLQuantizationType.Q8_0, words=True)
    return path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("target") / "tern.gguf", TINY, 1)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("other") / "tern.gguf", TINY, 2)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("qwen3") / "tern.gguf", QWEN3, 3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(5)
    words = [f"{thing} {does}" for thing in ("boat", "bird", "river") for does in ("finds", "sees", "paints", "hears")]
    for number in range(6):
        (folder / f"{number}.txt").write_text(" ".join(rng.choices(words, k=1200)), encoding="utf-8")
    return folder


@pytest.fixture
def start(target: Path, tmp_path: Path) -> Start:
    def popen(
        method: str, *words: str, room: int = resource.RLIM_INFINITY, model: Path = target
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, "drafters", "train", method, "-m", str(model), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SLIPSTREAM_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: confine(room),
        )

    return popen


def confine(room: int) -> None:
    """Files of at most ``room`` bytes, and one core: threads that wait for each other crawl on a busy machine."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def check_heads_of(out: Path, method: str, text: str, target: Path, other: Path) -> None:
    heads = read_heads(out, read_header(target))
    assert (heads.info.method, heads.info.text) == (method, text)
    assert heads.info.target == identity(read_header(target)) and heads.info.target_name == "tern"
    shares = heads.info.settings["acceptance"]
    assert isinstance(shares, list) and len(shares) == DEPTHS[method]
    assert all(isinstance(share, float) and 0 <= share <= 1 for share in shares)
    assert all(np.abs(values).max() > 0 for name, values in heads.tensors.items() if name != "output.ids")
    with pytest.raises(SlipstreamError, match="another version of 'tern'"):
        check_target(heads.info, read_header(other))


def drafted_as_plain(model: Path, method: str, home: Path, *more: str) -> int:
    """Checks that a drafter does not change a reply; returns how many tokens it drafted."""
    command = [*PROGRAM, "run", "-m", str(model), "-p", "Hello", "--json", "--temp", "0", "--max-tokens", "24", *more]
    env = {**os.environ, "SLIPSTREAM_HOME": str(home)}
    runs = [
        subprocess.run([*command, "--drafter", name], capture_output=True, text=True, env=env)
        for name in ("none", method)
    ]
    assert [each.returncode for each in runs] == [0, 0], runs
    plain, drafted = ([json.loads(line) for line in each.stdout.splitlines()][:-1] for each in runs)
    assert [token for step in drafted for token in step["tokens"]] == [token for s in plain for token in s["tokens"]]
    return sum(step["drafted"] for step in drafted)


@pytest.mark.parametrize("method", DEPTHS)
def test_heads_from_a_folder(method: str, start: Start, target: Path, other: Path, texts: Path, tmp_path: Path) -> None:
    stdout, stderr = (run := start(method, "--on", str(texts), "--tokens", "3000")).communicate()
    assert run.returncode == 0, stderr
    out = tmp_path / "heads" / f"tern-{method}.gguf"
    check_heads_of(out, method, "folder", target, other)
    assert stdout.startswith(f"{out}: ") and "acceptance by depth" in stdout and stdout.count("\n") == 1
    first, *lines = stderr.splitlines()
    assert first == "checking the file before its first use"
    assert lines[0].startswith(f"memory to train, in GB: {method} ") and lines[1].startswith("this will take about ")
    assert not any("llama" in line or "Warning" in line for line in lines), stderr
    assert list((tmp_path / "training").iterdir()) == []
    assert [path.name for path in (tmp_path / "heads").iterdir()] == [out.name]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("method", RUN_BY_LLAMA)
def test_a_head_that_llama_cpp_runs_drafts_for_its_model(
    method: str, architecture: str, start: Start, texts: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: Path = request.getfixturevalue("target" if architecture == "llama" else "qwen3")
    run = start(method, "--on", str(texts), "--tokens", "3000", model=model)
    stdout, stderr = run.communicate()
    assert run.returncode == 0, stderr
    assert "held-out acceptance" in stderr
    out = tmp_path / "heads" / f"tern-{method}.gguf"
    assert stdout.startswith(f"{out}: ") and "acceptance by depth" in stdout and stdout.count("\n") == 1
    header = read_header(model)
    assert matching_heads(header, [out]) == {method: out}
    assert matching_heads(read_header(request.getfixturevalue("other")), [out]) == {}
    found = heads_file(out, identity(header), header)
    assert found and (found.method, found.trained_on, found.why_not) == (method, "folder", "")
    assert found.first_depth is not None and 0 <= found.first_depth <= 1
    assert drafted_as_plain(model, method, tmp_path) > 0


@pytest.mark.parametrize("method", RUN_BY_LLAMA)
def test_a_head_that_llama_cpp_runs_learns_from_no_chats(method: str, start: Start) -> None:
    _, stderr = (run := start(method, "--on", "chats")).communicate()
    assert run.returncode == 2, stderr
    assert "which chats they learned from" in stderr and "medusa" in stderr


def test_a_run_on_own_answers_survives_kills(start: Start, target: Path, other: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    rng, words, kills, kept = random.Random(seed), ("medusa", "--tokens", "2000"), 0, 0
    while True:
        run = start(*words)
        assert run.stderr
        lines = [run.stderr.readline() for _ in range(rng.randint(1, 8) if kills < 3 else 0)]
        if lines:
            run.kill()
        stdout, rest = run.communicate()
        made = [line for line in [*lines, *rest.splitlines()] if line.startswith("own answers: ")]
        assert all(int(line.split()[2].replace(",", "")) > kept for line in made), (seed, made)  # it goes on
        if run.returncode == 0:  # the last one, or one with fewer lines left than were waited for
            break
        assert run.returncode == -9, (seed, rest)
        kills += 1
        (work,) = (tmp_path / "training").iterdir()
        kept = answered(work)
        for out in (tmp_path / "heads").iterdir():  # written just before the kill: whole
            check_heads_of(out, "medusa", "answers", target, other)
    assert kills and [path.name for path in work.iterdir()] == ["answers.jsonl"]  # for other methods
    out = tmp_path / "heads" / "tern-medusa.gguf"
    check_heads_of(out, "medusa", "answers", target, other)
    assert str(out) in stdout


def answered(work: Path) -> int:
    """Tokens of the replies that are whole on disk."""
    path = work / "answers.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return sum(len(json.loads(line)[1]) for line in lines)


@pytest.mark.parametrize("room", [2_000, 110_000])  # of a file: hidden states do not fit, or the checkpoint
def test_a_full_disk_is_one_line(room: int, start: Start, texts: Path, tmp_path: Path) -> None:
    stdout, stderr = (run := start("medusa", "--on", str(texts), "--tokens", "1000", room=room)).communicate()
    assert (run.returncode, stdout) == (1, ""), stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("slipstream: ")]
    assert line == stderr.splitlines()[-1] and "cannot " in line and "room" in line
    assert ("hidden states: " in stderr) == (room > 2_000)
    assert list((tmp_path / "heads").iterdir()) == []


def test_all_methods_share_one_run(start: Start, target: Path, texts: Path, tmp_path: Path) -> None:
    stdout, stderr = (run := start("all", "--on", str(texts), "--tokens", "2000", "--out", str(tmp_path))).communicate()
    assert run.returncode == 0, stderr
    methods = [*DEPTHS, *sorted(RUN_BY_LLAMA, reverse=True)]
    assert [line.split(": ")[0] for line in stdout.splitlines()] == [str(tmp_path / f"{name}.gguf") for name in methods]
    assert matching_heads(read_header(target), tmp_path.glob("*.gguf")).keys() == set(methods)
    assert "for 1B and" in stderr.splitlines()[3]
    made = [line for line in stderr.splitlines() if line.startswith("hidden states: ")]
    assert len(made) == len(set(made)) == 2  # of the text and of the held-out text, for all methods


def test_an_adapter_is_tuned_with_masks_of_its_own(start: Start, target: Path, texts: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "tuned.gguf"
    words = ("--on", str(texts), "--tokens", "2000", "--adapter", str(adapter))
    _, stderr = (run := start("space", *words)).communicate()
    assert run.returncode == 0, stderr
    assert "space with the adapter: acceptance by depth on held-out text: " in stderr
    header = read_header(adapter)
    assert header.metadata["adapter.type"] == "lora" and len(header.tensors) == 2 * 7 * TINY.layers
    assert any(np.abs(read_tensor(header, info)).max() for info in header.tensors if info.name.endswith("lora_b"))
    masks = read_heads(tmp_path / "tuned-masks.gguf", read_header(target)).tensors["masks"]
    frozen = read_heads(tmp_path / "heads" / "tern-space.gguf", read_header(target)).tensors["masks"]
    assert masks.shape == frozen.shape and not np.array_equal(masks, frozen)
    drafted_as_plain(target, "space", tmp_path, "--lora", str(adapter))


@pytest.mark.parametrize("method", ["medusa", "kangaroo", "eagle3"])
def test_training_goes_on_from_a_file(method: str, start: Start, texts: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first.gguf", tmp_path / "again.gguf"
    words = (method, "--on", str(texts), "--tokens", "2000")
    figures = r"held-out (?:text: ([\d. ]+)|acceptance ([\d. ]+) to begin with)$"
    found = list[float]()  # at depth 1: at the end, at the second beginning, at the second end
    for more in (("--out", str(first)), ("--from", str(first), "--out", str(again))):
        _, stderr = (run := start(*words, *more)).communicate()
        assert run.returncode == 0, stderr
        found += [float((a or b).split()[0]) for a, b in re.findall(figures, stderr, re.MULTILINE)]
    assert found[1] == pytest.approx(found[0], abs=0.02) and found[2] > found[1] - 0.02  # stored in 8 bits
    assert "trying an exit" not in stderr
    _, stderr = (run := start("space", "--on", str(texts), "--from", str(first))).communicate()
    assert run.returncode == 2 and "holds no space heads" in stderr
