"""The settings file: whatever it says the program starts, and it says what is wrong, where."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.commands import commands

from slipstream.app.protocol.requests import Load, Lora, Sampling
from slipstream.app.settings.file import OPTIONS, SettingsFile, given, lines_of, load, template
from slipstream.app.settings.toml_file import MOST_BYTES
from slipstream.app.settings.values import Settings, all_settings, titles
from slipstream.models.errors import SlipstreamError, UsageError

MINE = """\
# mine
[model]   # as I like it
context = 4096  # enough

[somewhere]
else = [1, 2]

[sampling]
tempature = 0.3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "settings.toml"


def test_no_file_and_the_one_that_is_begun_are_the_defaults(file: Path) -> None:
    assert load(file).settings == Settings() and not load(file).problems
    file.write_text("\n", "utf-8")
    assert load(file).settings == Settings() and not load(file).problems
    assert Settings().sampling.sampling(seed=3) == Sampling(seed=3)
    usual = Load("x.gguf")
    assert Settings().loading(usual) == usual
    file.write_text(template(), "utf-8")
    assert load(file).settings == Settings() and not load(file).problems and not load(file).values
    whole = template().replace("\n# ", "\n").splitlines()
    for each in all_settings().values():
        assert [line for line in whole if line.startswith(f"{each.key} = ")], each.name


def test_every_setting_is_explained_and_its_default_is_one_it_may_have() -> None:
    for name, each in all_settings().items():
        assert each.checked(each.default) == each.default, name
        assert each.about.text and not each.about.text.endswith(".") and each.wanted and each.group in titles()
        for wrong in (None, [], {}, object()):
            with pytest.raises(UsageError, match=each.name):
                each.checked(wrong)
    assert set(OPTIONS.values()) <= set(all_settings())


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"[model]\ncontext = = 4\n", "line 2, column 11"),
        (b"[model]\ncontext = 4\ncontext = 5\n", "line 3"),
        (b"[model\n", "line 1, column 7"),
        (b'[reply]\nsystem = "\xff"\n', "line 2, column 11: it is not UTF-8"),
        (b"[reply]\nsystem = 'a\n", "line 2"),
        (b"\x00", "line 1, column 1"),
        (b"[model]\ncontext = " + b"9" * 5000, "broken"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (MOST_BYTES + 1), "more than settings ever need"),
    ],
)
def test_a_broken_file_is_named_by_line_and_column_and_left_as_it_is(file: Path, text: bytes, where: str) -> None:
    file.write_bytes(text)
    read = load(file)
    assert read.settings == Settings() and read.broken
    assert len(read.problems) == 1 and where in read.problems[0] and "Until then the defaults hold" in read.problems[0]
    kept = SettingsFile(file)
    with pytest.raises(SlipstreamError, match="is broken") as caught:
        kept.change("ahead.read", False)
    assert "left as it is" in caught.value.hint and "Until slipstream ends the change holds" in caught.value.hint
    assert kept.settings.ahead.read is False and kept.where("ahead.read") == "until slipstream ends"
    assert file.read_bytes() == text
    assert {path.name for path in file.parent.iterdir()} <= {file.name, f"{file.name}.lock"}


def test_what_is_no_file_is_said(file: Path) -> None:
    file.mkdir()
    assert "it is no file" in load(file).problems[0]
    file.rmdir()
    os.mkfifo(file)  # reading it would wait for ever
    assert "it is no file" in load(file).problems[0]


def test_wrong_values_and_unknown_names_are_told_with_their_lines(file: Path) -> None:
    text = (
        'model = 3\nhub.offline = "yes"\n[sampling]\ntop_p = 0\ntop-k = 3\nthreads = 1\n[screan]\nx = 1\n'
        '[screen]\nsidebar = "left"\nmouse = 1\n[ahead]\nread = false\n[keeping]\ndays = 1.0\nstates_gb = nan\n'
    )
    file.write_text(text, "utf-8")
    read = load(file)
    said = [problem.split("settings.toml, ")[1] for problem in read.problems]
    assert said == [
        "line 1: model is no table; write [model] above its keys.",
        "line 2: hub.offline is 'yes'; it must be true or false; false is taken.",
        "line 4: sampling.top_p is 0; it must be a number above 0 and at most 1; 0.95 is taken.",
        "line 5: there is no setting sampling.top-k; it was left there. Did you mean sampling.top_k?",
        "line 6: there is no setting sampling.threads; it was left there. Did you mean model.threads?",
        "line 7: there are no settings named screan; they were left there. Did you mean screen?",
        "line 10: screen.sidebar is 'left'; it must be one of fit, open, closed; fit is taken.",
        "line 11: screen.mouse is 1; it must be true or false; true is taken.",
        "line 15: keeping.days is 1.0; it must be a whole number from 0 to 36,500; 0 is taken.",
        "line 16: keeping.states_gb is nan; it must be a number from 0 to 1,000; 4.0 is taken.",
    ]
    assert not read.broken and dict(read.values) == {"ahead.read": False}
    assert read.settings == Settings().having({"ahead.read": False})


def test_escape_sequences_in_names_are_not_shown(file: Path) -> None:
    file.write_text('["\\u001b[2J"]\nx = 1\n[model]\n"\\u202e" = 1\ndrafter = 5\n', "utf-8")
    said = " ".join(load(file).problems)
    assert "\x1b" not in said and "\u202e" not in said and len(load(file).problems) == 3


def test_a_change_keeps_comments_and_what_it_does_not_know(file: Path) -> None:
    file.write_text(MINE, "utf-8")
    kept = SettingsFile(file)
    assert len(kept.problems) == 2
    kept.change("model.context", 2048)
    kept.change("model.threads", 2)
    kept.change("reply.system", 'Say "arr".\nmöre 海')
    now = file.read_text("utf-8")
    assert "# mine" in now and "context = 2048  # enough" in now and "else = [1, 2]" in now and "tempature = 0.3" in now
    again = SettingsFile(file)
    assert again.settings.model.context == 2048 and again.settings.model.threads == 2
    assert again.settings.reply.system == 'Say "arr".\nmöre 海' and again.problems == kept.problems
    assert again.where("model.context") == "settled" and again.where("model.name") == ""
    kept.reset("model.context", "model.threads", "reply.system")
    assert load(file).settings == Settings() and "else = [1, 2]" in file.read_text("utf-8")


def test_a_setting_is_written_where_it_is_explained_and_reset_to_what_was_there(file: Path) -> None:
    kept = SettingsFile(file)
    kept.change("sampling.top_k", 7)
    lines = file.read_text("utf-8").splitlines()
    at = lines.index("top_k = 7")
    assert "Keep so many of the best tokens" in lines[at - 1]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept.restore({"keys.go-on": "f7", "sampling.top_k": None})
    assert dict(load(file).settings.keys) == {"go-on": "f7"}
    kept.restore({"keys.go-on": None})
    assert file.read_text("utf-8") == template()


def test_wrong_values_and_names_change_nothing(file: Path) -> None:
    kept = SettingsFile(file)
    for name, value, why in (("sampling.top_k", -1, "whole number"), ("hub.offline", "no", "true or false")):
        with pytest.raises(UsageError, match=why):
            kept.change(name, value)
    with pytest.raises(UsageError, match=r"no setting top_k\. Did you mean sampling\.top_k\?"):
        kept.reset("top_k")
    with pytest.raises(UsageError, match=r"Did you mean sampling\.temperature\?"):
        kept.change("sampling.temprature", 1.0)
    assert not file.exists() and kept.settings == Settings()


def test_typed_words_become_values_and_lines_are_found() -> None:
    known = all_settings()
    assert known["ahead.read"].read(" Off ") is False and known["ahead.read"].read("yes") is True
    assert known["sampling.temperature"].read("0,5") == 0.5 and known["model.context"].read("2048") == 2048
    assert isinstance(known["sampling.temperature"].read("1"), float) and known["reply.system"].read(" 5 ") == "5"
    for name, text in (("model.context", "2.5"), ("model.context", ""), ("sampling.top_p", "much"), ("hub.offer", "x")):
        with pytest.raises(UsageError, match="must be"):
            known[name].read(text)
    text = 'model.context = 1\n"hub" . "offline" = true\n[sampling]\n\n"top_k" = 4\n'
    assert lines_of(text) == {"model.context": 1, "hub.offline": 2, "sampling": 3, "sampling.top_k": 5}


def test_the_command_line_wins_until_the_screen_changes_it(file: Path) -> None:
    options = {"temp": 0.0, "model": None, "read_ahead": False, "context": 0, "seed": 5}
    assert given(options) == {"sampling.temperature": 0.0, "ahead.read": False, "model.context": 0}
    file.write_text("[sampling]\ntemperature = 1.5\n[model]\ncontext = 512\n", "utf-8")
    kept = SettingsFile(file, given(options))
    assert kept.settings.sampling.temperature == 0.0 and kept.settings.model.context == 0
    assert kept.kept.sampling.temperature == 1.5 and kept.where("sampling.temperature") == "given at the start"
    kept.change("sampling.temperature", 0.7)
    assert kept.settings.sampling.temperature == 0.7 and kept.where("sampling.temperature") == "settled"
    assert load(file).settings.model.context == 512  # what was given is not written


def test_another_slipstreams_changes_are_kept_and_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    one, other = SettingsFile(file), SettingsFile(file)
    one.change("model.context", 512)
    other.change("model.threads", 3)
    assert (load(file).settings.model.context, load(file).settings.model.threads) == (512, 3)
    real = tmp_path / "dots" / "slipstream.toml"
    real.parent.mkdir()
    file.unlink()
    file.symlink_to(real)
    SettingsFile(file).change("ahead.read", False)
    assert file.is_symlink() and load(real).settings.ahead.read is False


def test_settings_become_a_load_and_a_sampling() -> None:
    settings = Settings().having(
        {
            "model.context": 512, "model.gpu_layers": 0, "model.threads": 2, "keeping.states_gb": 0.5,
            "sampling.typical": 0.1,
        }
    )  # fmt: skip
    assert settings.loading(Load("x.gguf")) == replace(
        Load("x.gguf"), n_ctx=512, gpu_layers=0, threads=2, states_limit=1 << 29
    )
    assert settings.sampling.sampling(seed=1) == Sampling(seed=1, typical=0.1)


def test_adapters_of_the_settings_go_to_the_models_that_they_name() -> None:
    settings = Settings().having({"model.lora": "Small=a.gguf:0.5, other=b.gguf,small-q8=/x/c.gguf"})
    own = [Lora("a.gguf", 0.5, settled=True), Lora("/x/c.gguf", settled=True)]
    first = settings.loading(Load("/models/small-q8_0.gguf"))
    assert first.lora == own and not settings.loading(Load("/models/third.gguf")).lora
    given = Load("/models/small-q8_0.gguf", lora=[Lora("d.gguf")])
    assert settings.loading(given).lora == given.lora  # the command line's come first
    assert not Settings().loading(first).lora  # those that the settings no longer name leave


@pytest.mark.parametrize("text", ["a.gguf", "=a.gguf", "small=a.gguf:much", "small=a.gguf:1e9", "small=:2", "small="])
def test_adapters_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lora"):
        all_settings()["model.lora"].checked(text)


@pytest.mark.parametrize(
    ("text", "path", "scale", "words"),
    [
        ("a.gguf", "a.gguf", 1.0, "a"), ("/x/a.gguf:0.5", "/x/a.gguf", 0.5, "a ×0.5"), ("a:b/c", "a:b/c", 1.0, "c"),
        ("C:\\x\\a.gguf", "C:\\x\\a.gguf", 1.0, None), ("a.gguf:-1", "a.gguf", -1.0, "a ×-1"),
    ],
)  # fmt: skip
def test_an_adapter_is_a_file_with_a_scale(text: str, path: str, scale: float, words: str | None) -> None:
    lora = Lora.read(text)
    assert (lora.path, lora.scale) == (path, scale) and words in (None, lora.words)


def test_settings_are_listed_set_and_reset(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = commands(capsys)("settings", "list")
    assert (code, err) == (0, "") and len(out.splitlines()) == len(all_settings()) + 1 and not file.exists()
    assert commands(capsys)("settings") == (code, out, err)
    code, out, _ = commands(capsys)("settings", "set", "sampling.temperature", "0.5")
    assert (code, out) == (0, "sampling.temperature = 0.5 (takes effect at once)\n")
    assert load(file).settings.sampling.temperature == 0.5
    commands(capsys)("settings", "set", "hub.offline", "on")
    code, out, _ = commands(capsys)("settings", "list")
    changed = [line.split()[1] for line in out.splitlines() if line.startswith("* ")]
    assert changed == ["sampling.temperature", "hub.offline", "changed"]
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


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("devices.draft", "abc", "devices.draft is 'abc'; there are CPU"),
        ("devices.rpc", "no host", "'no host' is no HOST:PORT"),
        ("devices.tensor_split", "3,x", "tensor-split is '3,x'"),
        ("model.name", "no-such-model", "no-such-model"),
        ("model.drafter", "eagel3", "Did you mean eagle3?"),
        ("model.folders", "models", "no full path"),
        ("screen.theme", "slipstream-drak", "Did you mean slipstream-dark?"),
    ],
)
def test_what_is_not_here_is_refused(
    name: str, value: str, words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = commands(capsys)("settings", "set", name, value)
    assert (code, out) == (2, "") and words in err and not file.exists()


def test_a_model_has_a_context_of_its_own(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands(capsys)("settings", "set", "contexts.Qwen3-8B.Q4.gguf", "131072")
    assert (code, out) == (0, "contexts.Qwen3-8B.Q4.gguf = 131072 (takes effect when a model is loaded next)\n")
    commands(capsys)("settings", "set", "model.context", "4096")
    assert load(file).settings.contexts == {"Qwen3-8B.Q4.gguf": 131_072} and not load(file).problems
    assert "* contexts.Qwen3-8B.Q4.gguf = 131072\n" in commands(capsys)("settings")[1]
    for model, chosen, n_ctx in (
        ("/x/Qwen3-8B.Q4.gguf", {}, 131_072),
        ("/x/other.gguf", {}, 4096),
        ("/x/Qwen3-8B.Q4.gguf", {"model.context": 512}, 512),
    ):
        assert SettingsFile(file, chosen).settings.loading(Load(model)).n_ctx == n_ctx
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
