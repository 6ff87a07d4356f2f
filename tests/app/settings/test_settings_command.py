"""``slipstream settings``: the settings without a screen, and what other commands say of a broken file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.app.commands import commands

from slipstream.app.protocol.requests import Load
from slipstream.app.settings.file import SettingsFile, load
from slipstream.app.settings.values import all_settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "settings.toml"


def test_settings_are_listed_set_and_reset(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = commands(capsys)("settings", "list")
    assert (code, err) == (0, "") and len(out.splitlines()) == len(all_settings()) + 1 and not file.exists()
    assert commands(capsys)("settings") == (code, out, err)
    code, out, _ = commands(capsys)("settings", "set", "sampling.temperature", "0.5")
    assert (code, out) == (0, "sampling.temperature = 0.5 (takes effect at once)\n")
    assert load(file).settings.sampling.temperature == 0.5
    commands(capsys)("settings", "set", "hub.offline", "on")
    code, out, _ = commands(capsys)("settings", "list")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("* ")] == [
        "sampling.temperature",
        "hub.offline",
        "changed",
    ]
    code, out, _ = commands(capsys)("settings", "list", "--json")
    rows = {row["name"]: row for row in map(json.loads, out.splitlines())}
    assert set(rows) == set(all_settings()) and rows["hub.offline"]["value"] is True and rows["hub.offline"]["settled"]
    code, out, _ = commands(capsys)("settings", "reset", "hub.offline", "sampling.temperature")
    assert code == 0 and not load(file).values


@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "9" * 5000, "²", "١", "1_0", "", " ", "-1e308", str(1 << 64)])
@pytest.mark.parametrize("name", ["sampling.temperature", "sampling.top_k", "model.context", "keeping.states_gb"])
def test_what_is_no_number_is_refused(name: str, value: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = commands(capsys)("settings", "set", name, value)
    assert (code, out, err.count("\n")) == (2, "", 1) and "it must be a" in err and not file.exists()


@pytest.mark.parametrize("name", ["model.name", "model.drafter", "screen.theme", "screen.sidebar"])
def test_an_empty_text_is_refused_but_as_default(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("", " "):
        assert commands(capsys)("settings", "set", name, value)[0] == 2 and not file.exists()
    assert commands(capsys)("settings", "set", "reply.system", "")[0] == 0


def test_wrong_names_and_values_are_refused_in_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = commands(capsys)("settings", "set", "sampling.top_k", "many")
    assert (code, out) == (2, "") and "sampling.top_k is 'many'; it must be a whole number" in err
    code, _, err = commands(capsys)("settings", "reset", "top_k")
    assert code == 2 and "Did you mean sampling.top_k?" in err
    file.write_text("[model]\ncontext = = 1\n", "utf-8")
    code, _, err = commands(capsys)("settings", "set", "sampling.top_k", "3")
    assert code != 0 and "line 2, column 11" in err
    code, out, err = commands(capsys)("settings", "list")
    assert code == 0 and "line 2, column 11" in err and "sampling.top_k" in out
    assert file.read_text("utf-8") == "[model]\ncontext = = 1\n"


def test_a_model_has_a_context_of_its_own(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands(capsys)("settings", "set", "contexts.Qwen3-8B.Q4.gguf", "131072")
    assert (code, out) == (0, "contexts.Qwen3-8B.Q4.gguf = 131072 (takes effect when a model is loaded next)\n")
    commands(capsys)("settings", "set", "model.context", "4096")
    assert load(file).settings.contexts == {"Qwen3-8B.Q4.gguf": 131_072} and not load(file).problems
    assert "* contexts.Qwen3-8B.Q4.gguf = 131072\n" in commands(capsys)("settings")[1]
    for model, given, n_ctx in (
        ("/x/Qwen3-8B.Q4.gguf", {}, 131_072),
        ("/x/other.gguf", {}, 4096),
        ("/x/Qwen3-8B.Q4.gguf", {"model.context": 512}, 512),
    ):
        assert SettingsFile(file, given).settings.loading(Load(model)).n_ctx == n_ctx
    code, _, err = commands(capsys)("settings", "set", "contexts.m.gguf", "many")
    assert code == 2 and "it must be a whole number" in err
    commands(capsys)("settings", "reset", "contexts.Qwen3-8B.Q4.gguf", "model.context")
    assert not load(file).settings.contexts and not load(file).values
    file.write_text('[contexts]\n"m.gguf" = "all"\n"n.gguf" = 512\n')
    assert load(file).settings.contexts == {"n.gguf": 512}
    assert "line 2: contexts.m.gguf is" in load(file).problems[0]


@pytest.mark.slow
def test_run_takes_the_settings_says_what_is_wrong_and_options_win(file: Path) -> None:
    file.write_text(
        "[model]\ndrafter = 'nobody'\nthreads = 1\n[reply]\nmax_tokens = 3\n[sampling]\ntemperature = 0\nx = 1\n"
    )

    def reply(*more: str) -> tuple[dict[str, object], str]:
        command = [sys.executable, "-m", "slipstream.app.cli.main", "run", "-p", "hi", "--json", "--seed", "1", *more]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return summary, done.stderr.decode()

    summary, said = reply()
    assert summary["tokens"] == 3
    assert "line 8: there is no setting sampling.x" in said
    assert "the drafter of the settings cannot be used" in said and "Using auto instead" in said
    summary, said = reply("--max-tokens", "5", "--drafter", "none", "--temp", "0.9")
    assert summary["tokens"] == 5 and summary["drafted"] == 0 and "drafter of the settings" not in said
