"""``slipstream run --image``, as a shell sees it."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.app.cli import test_run
from tests.app.cli.test_run import slipstream
from tests.models.kinds import WIDTH, write_kind
from tests.models.tiny_mmproj import write_mmproj, write_picture

pytestmark = [pytest.mark.program, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("seeing", "blind"):
        (tmp_path / name).mkdir()
        write_kind(tmp_path / name / "tiny-f32.gguf", "llama")
    write_mmproj(tmp_path / "seeing" / "mmproj-tiny-f16.gguf", "mlp", WIDTH)
    write_picture(tmp_path / "cat.png")
    return tmp_path


def refused(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """The one line of a refusal, below the one that these models have no chat template."""
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = b"".join(line for line in lines if b"has no chat template" not in line)
    return test_run.refused(done, code)


def run(folder: Path, model: str, *more: str) -> tuple[str, ...]:
    place = str(folder / model / "tiny-f32.gguf")
    return ("run", "-m", place, "-p", "the a of", "--seed", "3", "--max-tokens", "8", "--json", *more)


def test_an_image_is_seen_and_makes_the_text(folder: Path) -> None:
    texts = set[str]()
    write_picture(folder / "dog.png", seed=7)
    for more in ((), ("--image", str(folder / "cat.png")), ("--image", str(folder / "dog.png"))):
        for drafter in ("none", "auto"):
            done = slipstream(*run(folder, "seeing", "--drafter", drafter, *more), home=folder / "home")
            assert done.returncode == 0, done.stderr
            summary = json.loads(done.stdout.splitlines()[-1])
            assert summary["prompt_tokens"] > (16 if more else 0)
            texts.add(summary["text"])
    assert len(texts) == 3


def test_a_model_without_an_mmproj_file_says_what_to_do(folder: Path) -> None:
    arguments = run(folder, "blind", "--image", str(folder / "cat.png"))
    line = refused(slipstream(*arguments, home=folder / "home"), 2)
    assert "cannot see images: no mmproj file" in line and "--mmproj FILE" in line
    given = slipstream(*arguments, "--mmproj", str(folder / "seeing" / "mmproj-tiny-f16.gguf"), home=folder / "home")
    assert given.returncode == 0, given.stderr
    model = str(folder / "blind" / "tiny-f32.gguf")
    line = refused(slipstream(*arguments, "--mmproj", model, home=folder / "home"), 1)
    assert "is no mmproj file: it is a llama model" in line
    line = refused(slipstream(*run(folder, "blind"), "--mmproj", "nowhere.gguf", home=folder / "home"), 1)
    assert "nowhere.gguf: no such file" in line, "it is named, so it is refused, also without an image"


def test_one_that_another_program_keeps_is_found_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder / "user"))
    other = folder / "user" / ".lmstudio" / "models" / "acme" / "Tiny"
    other.mkdir(parents=True)
    mmproj = write_mmproj(other / "mmproj-tiny-f16.gguf", "mlp", WIDTH)
    arguments = run(folder, "blind", "--image", str(folder / "cat.png"))
    line = refused(slipstream(*arguments, home=folder / "home"), 2)
    assert "do not say whether they belong to it" in line and f"start with --mmproj {mmproj}." in line
    write_mmproj(mmproj, "mlp", WIDTH, title="Tiny llama")
    done = slipstream(*arguments, home=folder / "home")
    assert done.returncode == 0, done.stderr


def test_what_is_no_image_is_refused_before_the_model_is_loaded(folder: Path) -> None:
    (folder / "cat.gif").write_bytes(b"GIF89a")
    for name, words in (("cat.gif", "is damaged"), ("none.png", "no such file"), ("seeing/tiny-f32.gguf", "is no PNG")):
        line = refused(slipstream(*run(folder, "seeing", "--image", str(folder / name)), home=folder / "home"), 2)
        assert words in line


def test_a_kept_chat_keeps_its_images_until_it_is_deleted(folder: Path) -> None:
    home = folder / "home"
    long = ("-p", "the a of " * 20)  # a kept state of fewer tokens is not worth reading
    first = slipstream(*run(folder, "seeing", *long, "--chat", "pets", "--image", str(folder / "cat.png")), home=home)
    assert first.returncode == 0, first.stderr
    (kept,) = (home / "images").iterdir()
    assert kept.read_bytes() == (folder / "cat.png").read_bytes() and kept.stat().st_mode & 0o077 == 0
    (folder / "cat.png").unlink()
    following = slipstream(*run(folder, "seeing", "--chat", "pets"), home=home)
    summary = json.loads(following.stdout.splitlines()[-1])
    assert summary["prompt_tokens"] > 2 * 16 and summary["prefilled_tokens"] < summary["prompt_tokens"]
    shown = slipstream("chats", "show", "pets", home=home).stdout.decode()
    assert "[cat.png, 48 × 32 pixels, 1 kB]" in shown and "image:" not in shown
    assert slipstream("chats", "delete", "pets", home=home).returncode == 0
    assert not list((home / "images").iterdir())
