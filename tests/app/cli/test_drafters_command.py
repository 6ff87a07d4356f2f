"""``slipstream drafters``: what it hands to training, what it writes and lists, and its errors; without torch."""

import errno
import json
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.app.commands import Command, Said, commands
from tests.models.conftest import small_model

from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import Paths
from slipstream.drafters.registry import METHODS
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.check import METHODS as TRAINED_METHODS
from slipstream.models.heads.file import HeadsInfo, identity, mark_stale, read_info, stale, write_heads
from slipstream.models.heads.matching_heads import TARGET_KEY

WIDTH = 32
MODULE = "slipstream.drafters.training.heads"


class HeadsJob(NamedTuple):
    """The fields of the real one, in its order."""

    model: Path
    outs: dict[Any, Path]
    work: Path
    text: Any
    tokens: int
    folder: Path | None
    chats: Any
    prompts: Path | None
    begin: Path | None
    adapter: Path | None
    seed: int


Train = Callable[[HeadsJob, Callable[[str], None]], str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    for module in ("drafters", "drafters_train"):  # a header alone is no model
        monkeypatch.setattr(f"slipstream.app.cli.{module}.try_first", lambda path, paths: None)
    return tmp_path / "home"


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys, "drafters")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "tern.gguf"
    path.write_bytes(small_model().number("llama.embedding_length", WIDTH).bytes())
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "tern.gguf"
    path.write_bytes(small_model().number("llama.embedding_length", WIDTH).text("general.name", "Other\x1b[1m").bytes())
    return path


def write(path: Path, model: Path, method: Any = "space", **facts: Any) -> HeadsInfo:
    header = read_header(model)
    settings = {"acceptance": [0.6125, 0.4]}
    info = replace(HeadsInfo(method, identity(header), header.name, "answers", (), 1, settings), **facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_heads(path, info, {"masks": np.ones((2, WIDTH), np.float32)})
    return info


def good(job: HeadsJob, say: Callable[[str], None]) -> str:
    say("step 1\nof 2")
    write(job.outs["space"], job.model, made=2, text=job.text, chats=tuple(job.chats))
    return "0.612 0.400"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Callable[[Train], list[HeadsJob]]:
    """Puts a stand-in where torch would train; its jobs are noted."""

    def install(train: Train) -> list[HeadsJob]:
        jobs: list[HeadsJob] = []

        def train_heads(job: HeadsJob, say: Callable[[str], None]) -> dict[str, str]:
            assert job.work.is_dir()
            jobs.append(job)
            return dict.fromkeys(job.outs, train(job, say))

        module = ModuleType(MODULE)
        module.__dict__.update(ANSWERS="answers.jsonl", HeadsJob=HeadsJob, train_heads=train_heads)
        monkeypatch.setitem(sys.modules, MODULE, module)
        return jobs

    return install


def refused(said: Said, code: int) -> str:
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1), said
    return said.err.removeprefix("slipstream: ")


@pytest.mark.slow
def test_training_ends_with_a_file_that_list_shows(command: Command, training: Any, home: Path, target: Path) -> None:
    jobs = training(good)
    said = command("train", "space", "-m", str(target))
    out = home / "heads" / "tern-space.gguf"
    assert said == (0, f"{out}: 1 kB, acceptance by depth 0.612 0.400\n", "step 1 of 2\n")
    (job,) = jobs
    assert (job.model, job.outs, job.text) == (target, {"space": out}, "answers")
    assert (job.tokens, job.seed, job.folder, job.chats) == (500_000, 7, None, {})
    assert job.work.parent == home / "training" and not job.work.exists()
    assert job.work.name.startswith(f"{identity(read_header(target))[:16]}-")
    row = next(line for line in command("list", "-m", str(target)).out.splitlines() if line.endswith(str(out)))
    assert row.split() == ["space", "tern", "answers", "0.61", "1", "kB", "yes", str(out)]


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_another_job_does_not_mix_with_it(
    command: Command, training: Any, home: Path, target: Path, tmp_path: Path
) -> None:
    out = home / "heads" / "tern-space.gguf"
    write(out, target)
    old = out.read_bytes()

    def stopped(job: HeadsJob, say: Callable[[str], None]) -> str:
        (job.work / "kept").touch()
        raise KeyboardInterrupt

    jobs = training(stopped)
    train = ("train", "space", "-m", str(target))
    assert command(*train) == (130, "", "slipstream: stopped; the same command goes on.\n")
    assert out.read_bytes() == old
    for more in (["--tokens", "9"], ["--seed", "8"], ["--on", str(tmp_path)]):
        command(*train, *more)
    assert len({job.work for job in jobs}) == 4
    assert all((job.work / "kept").exists() for job in jobs)
    jobs = training(good)
    assert command(*train, "--seed", "7", "--tokens", "500000").code == 0
    assert not jobs[0].work.exists() and len(list((home / "training").iterdir())) == 3
    assert read_info(out).made == 2


@pytest.mark.slow
def test_chats_are_trained_on_only_when_asked_for(command: Command, training: Any, home: Path, target: Path) -> None:
    with closing(ChatStore(home / "chats.db")) as store:
        full, unanswered = store.create().id, store.create().id
        store.set_system(full, "Be brief.")
        asked = store.add_user(full, "Hi")
        first = store.begin_reply(full, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(first.id, text="first")
        second = store.begin_reply(full, model="m", fingerprint="f", drafter="none", seed=1, parent=asked.id)
        store.finish_reply(second.id, text="second")
        store.add_user(unanswered, "Anyone?")
        jobs = training(good)
        command("train", "space", "-m", str(target))
        command("train", "space", "-m", str(target), "--on", "chats")
        store.add_user(full, "More")
        command("train", "space", "-m", str(target), "--on", "chats")
    assert jobs[0].chats == {} and jobs[0].text == "answers"
    roles = ["system", "user", "assistant"]
    said = [{"role": role, "content": text} for role, text in zip(roles, ["Be brief.", "Hi", "second"], strict=True)]
    assert jobs[1].text == "chats" and jobs[1].chats == {full: said}
    assert jobs[2].chats == {full: [*said, {"role": "user", "content": "More"}]}
    assert jobs[1].work != jobs[2].work and read_info(jobs[1].outs["space"]).chats == (full,)


def test_a_folder_is_named_by_its_path(
    command: Command, training: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers").mkdir()
    monkeypatch.chdir(tmp_path)
    jobs = training(good)
    command("train", "space", "-m", str(target), "--on", "./answers", "--out", "mine.gguf")
    assert (jobs[0].text, jobs[0].folder) == ("folder", tmp_path / "answers")
    assert jobs[0].outs == {"space": tmp_path / "mine.gguf"} and (tmp_path / "mine.gguf").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["eagle"], ["'eagle'", "medusa, kangaroo, space, eagle3, dflash"]),
        (["space", "--on", "nowhere"], ["'nowhere'", "answers", "chats", "folder"]),
        (["space", "--on", "chats"], ["no chat with a reply"]),
        (["space", "--tokens", "0"], ["--tokens is 0"]),
        (["space", "--seed", "-1"], ["--seed is -1"]),
        (["space", "--out", "nowhere/h.gguf"], ["nowhere", "--out"]),
        (["space", "--out", "text.txt"], ["text.txt is there already", "--out"]),
        (["space", "-m", "gpt-9"], ["'gpt-9'"]),
        ([], ["METHOD"]),
    ],
)
def test_wrong_uses(
    command: Command, training: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], why: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("dear diary")
    jobs = training(good)
    line = refused(command("train", *(["-m", str(target)] if "-m" not in words else []), *words), 2)
    assert all(part in line for part in why), line
    assert jobs == [] and (tmp_path / "text.txt").read_text() == "dear diary"


@pytest.mark.slow
def test_heads_for_others_are_not_lost(command: Command, training: Any, home: Path, target: Path, other: Path) -> None:
    training(good)
    out = home / "heads" / "tern-space.gguf"
    write(out, other)
    old = out.read_bytes()
    assert "no space heads for 'tern'" in refused(command("train", "space", "-m", str(target), "--out", str(out)), 2)
    assert out.read_bytes() == old
    done = command("train", "space", "-m", str(target))
    assert done.code == 0 and "held heads for another model or version, 'Other\\x1b[1m'" in done.err
    [aside] = set(out.parent.glob("*.gguf")) - {out}
    assert aside.read_bytes() == old and aside.name in done.err and out.read_bytes() != old
    aside.unlink()
    out.write_bytes(old[:100])  # damaged ones are no loss
    assert command("train", "space", "-m", str(target)).code == 0
    assert list(out.parent.glob("*.gguf")) == [out]


def test_torch_is_missing(command: Command, home: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("slipstream.drafters.training.")]:
        monkeypatch.delitem(sys.modules, name)
    line = refused(command("train", "medusa", "-m", str(target)), 1)
    assert line == "training needs torch, which is not installed. Install it: pip install 'slipstream[train]'.\n"
    assert list((home / "training").iterdir()) == []


@pytest.mark.slow
def test_failures_are_one_line_and_keep_what_is_done(command: Command, training: Any, home: Path, target: Path) -> None:
    def full(job: HeadsJob, say: Callable[[str], None]) -> str:
        (job.work / "kept").touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(job.work / "features.npy"))

    def cannot(job: HeadsJob, say: Callable[[str], None]) -> str:
        raise SlipstreamError("space cannot serve it.", "Train medusa.")

    train = ("train", "space", "-m", str(target))
    jobs = training(full)
    line = refused(command(*train), 1)
    assert "features.npy: no space left on device. Make room" in line
    assert (jobs[0].work / "kept").exists() and list((home / "heads").iterdir()) == []
    (jobs[0].work / "kept").unlink()
    training(cannot)
    assert refused(command(*train), 1) == "space cannot serve it. Train medusa.\n"
    assert not jobs[0].work.exists()


@pytest.mark.slow
def test_the_same_training_does_not_run_twice(command: Command, training: Any, target: Path) -> None:
    train = ("train", "space", "-m", str(target))

    def again(job: HeadsJob, say: Callable[[str], None]) -> str:
        with redirect_stderr(StringIO()) as second:
            assert command(*train).code == 2
        assert "this training is running already" in second.getvalue()
        return good(job, say)

    training(again)
    assert command(*train).code == 0


def safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    packed = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data)


@pytest.mark.slow
def test_import_goes_beside_trained_heads(command: Command, home: Path, target: Path, tmp_path: Path) -> None:
    heads = {"0.0.linear.weight": np.eye(WIDTH), "0.0.linear.bias": np.zeros(WIDTH), "0.1.weight": np.ones((10, WIDTH))}
    safetensors(tmp_path / "published" / "medusa_lm_head.safetensors", heads)
    said = command("import", str(tmp_path / "published"), "-m", str(target), "--licence", "mit")
    out = home / "heads" / "tern-medusa-imported.gguf"
    assert said == (0, f"{out}: 2 kB, medusa heads for {target}\n", "")
    info = read_info(out)
    assert (info.text, info.licence, info.target) == ("published", "mit", identity(read_header(target)))
    assert [path.name for path in (home / "heads").iterdir()] == [out.name]
    assert command("import", str(tmp_path / "published"), "-m", str(target)).code == 0  # a newer one replaces it


@pytest.mark.slow
def test_an_import_that_fails_leaves_nothing(
    command: Command, home: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"\x80\x02}q\x00.")
    line = refused(command("import", str(tmp_path / "medusa_lm_head.pt"), "-m", str(target)), 1)
    assert "pickle" in line and "slipstream[train]" in line
    safetensors(tmp_path / "x.safetensors", {"other": np.zeros(3)})
    assert "neither Medusa heads nor" in refused(
        command("import", str(tmp_path / "x.safetensors"), "-m", str(target)), 1
    )
    assert list((home / "heads").iterdir()) == []


def rows(said: Said) -> dict[str, str]:
    return {line.rsplit("/", 1)[-1]: line for line in said.out.splitlines()}


def test_list_tells_what_serves(command: Command, home: Path, target: Path, other: Path) -> None:
    heads = home / "heads"
    write(heads / "mine.gguf", target, text="chats", chats=("a", "b"))
    write(heads / "stale.gguf", target, text="chats", chats=("a", "b"))
    write(heads / "theirs.gguf", other, settings={})
    mark_stale(heads / "stale.gguf", "a")
    (heads / "cut.gguf").write_bytes((heads / "mine.gguf").read_bytes()[:80])
    for name, model in (("eagle.gguf", target), ("eagle-theirs.gguf", other)):
        head = small_model().text("general.architecture", "eagle3")
        (heads / name).write_bytes(head.text(TARGET_KEY, identity(read_header(model))).bytes())
    shutil.copy(target, heads / "model.gguf")
    said = command("list", "-m", str(target))
    assert said.code == 0 and said.err == "" and "\x1b" not in said.out
    found = rows(said)
    assert " tern 2 chats 0.61 1 kB yes " in " ".join(found["mine.gguf"].split())
    assert "yes; stale: trained on 1 deleted chat; train again" in found["stale.gguf"]
    assert "no: trained for another model" in found["theirs.gguf"] and "␛[1m" in found["theirs.gguf"]
    assert "no: damaged, or not readable" in found["cut.gguf"] and "model.gguf" not in found
    assert " ".join(found["eagle.gguf"].split()).startswith("eagle3 tern - - 2 kB yes ")
    assert " ".join(found["eagle-theirs.gguf"].split()).startswith("eagle3 - - - 2 kB no: trained for another model ")
    for name in METHODS.keys() - {*TRAINED_METHODS, "eagle3", "dflash"}:
        assert any(line.startswith(f"{name} ") and "any model" in line for line in said.out.splitlines())
    assert "no: it needs a draft model" in said.out and "no: it needs MTP layers" in said.out


@pytest.mark.slow
def test_list_is_about_the_bundled_model_unless_told(
    command: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = tmp_path / "bundled"
    shutil.copytree(Paths.default().bundled, bundled)
    model = bundled / "slipstream-mini-q8_0.gguf"
    write(bundled / "family.gguf", model, text="corpus")
    paths = replace(Paths.default(), bundled=bundled)
    monkeypatch.setattr(Paths, "default", lambda: paths)
    found = rows(command("list"))
    assert command() == command("list") == command("-m", "bundled")
    as_json = [json.loads(line) for line in command("--json").out.splitlines()]
    assert [row["method"] for row in as_json] == [line.split()[0] for line in found.values()][1:]
    assert {row["works"] for row in as_json} == {True, False} and all(
        row["works"] != bool(row["why_not"]) for row in as_json
    )
    assert " corpus " in found["family.gguf"] and " yes " in found["family.gguf"]
    assert "slipstream-mini-q8_0.gguf" not in found
    assert any(line.startswith("draft ") and line.endswith("yes") for line in found.values())


def test_marks_of_heads_trained_again_are_gone(command: Command, training: Any, home: Path, target: Path) -> None:
    out = home / "heads" / "tern-space.gguf"
    write(out, target, text="chats", chats=("a",))
    mark_stale(out, "a")
    training(good)
    command("train", "space", "-m", str(target))
    assert stale(out) == ()
