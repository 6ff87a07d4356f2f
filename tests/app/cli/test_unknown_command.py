"""A command that does not exist: the error names it, suggests a similar one, and has exit code 2."""

from pathlib import Path

import pytest

from slipstream.app.cli.main import main
from slipstream.app.cli.options import make_parser
from slipstream.models.errors import UsageError


@pytest.mark.parametrize(
    ("words", "title", "hint"),
    [
        (["runn"], "there is no command runn.", "Did you mean run? slipstream --help lists all."),
        (["models", "serch"], "there is no command models serch.", "Did you mean search? slipstream models --help"),
        (["rnu"], "there is no command rnu.", "Did you mean run? slipstream --help lists all."),
        (["banana"], "there is no command banana.", "slipstream --help lists all."),
        (["run", "--drafer", "x"], "unrecognized arguments: --drafer x.", "Did you mean --drafter? Try slipstream run"),
        (["chats", "list", "--x"], "unrecognized arguments: --x.", "Try slipstream chats list --help."),
    ],
)
def test_an_unknown_command(words: list[str], title: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_parser().parse_args(words)
    assert refused.value.title == title and refused.value.hint.startswith(hint)


def test_it_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["runn"])
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        "slipstream: there is no command runn. Did you mean run? slipstream --help lists all.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["race"], ["race", "{}"], ["--supervised"], ["--supervised", "x"], ["--supervised", "-1", "paths"],
        ["paths", "x"], ["completion", "tcsh"], ["bench", "--prompts", "/"], ["bench", "--temp", ","],
        ["settings", "set", "contexts.", "5"], ["settings", "set", ".", "5"], ["settings", "set", "keys.x", "f7"],
        ["models", "pull", "http://[::1"], ["models", "rm"], ["models", "rm", "--now"], ["models", "pull", ""],
        ["drafters", "index"], ["drafters", "index", "--list", "--on"], ["chats", "search", ""],
        ["lend", "--cache-gb", "nan"],
    ],
)  # fmt: skip
def test_an_odd_command_line_is_refused_in_one_line(
    words: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capfd.readouterr()
    assert ended.value.code in (1, 2) and not said.out
    assert said.err.count("\n") == 1 and "unexpected error" not in said.err
