"""What the command line refuses: unknown commands, empty values, texts that are not UTF-8, numbers that are none."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.app.cli.main import main
from slipstream.app.cli.options import make_parser
from slipstream.app.cli.parser import Parser, path
from slipstream.models.errors import UsageError

MAY_BE_EMPTY = {"--system", "value"}  # a chat without a system message; the settings decide about their own values
NO_NUMBERS = [
    "nan", "-nan", "inf", "-inf", "1e999", "9" * 5000, "-" + "9" * 5000, "²", "١", "５", "1_0", "0x10", "many",
]  # fmt: skip


def takers() -> Iterator[tuple[list[str], argparse.Action]]:
    """Every option and place of every command that takes a value, with the words before it."""
    waiting: list[tuple[Parser, list[str]]] = [(make_parser(), [])]
    while waiting:
        parser, words = waiting.pop()
        places: list[str] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(each, [*words, name]) for name, each in action.choices.items()]
            elif action.option_strings and action.nargs != 0:
                yield [*words, *required(parser), action.option_strings[-1]], action
            elif not action.option_strings:
                yield [*words, *places], action
                places.append("x")


def required(parser: Parser) -> list[str]:
    places = [each for each in parser._actions if not each.option_strings and not isinstance(each.choices, dict)]
    return [str(next(iter(each.choices), "x")) if each.choices else "x" for each in places if each.nargs in (None, "+")]


EVERY = [(before, action) for before, action in takers()]
NUMBERS = [
    (before, action) for before, action in EVERY if action.type is not None and action.metavar in ("N", "T", "P", "X")
]


def refusal(arguments: list[str]) -> str:
    with pytest.raises(UsageError) as caught:
        make_parser().parse_args(arguments)
    assert caught.value.code == 2 and "\n" not in str(caught.value) and len(str(caught.value)) < 400
    return str(caught.value)


def name_of(case: object) -> str:
    return " ".join(case) if isinstance(case, list) else ""


@pytest.mark.parametrize(("before", "action"), EVERY, ids=name_of)
def test_an_empty_value_is_refused_by_every_command(before: list[str], action: argparse.Action) -> None:
    if {*action.option_strings, action.dest} & MAY_BE_EMPTY:
        assert make_parser().parse_args([*before, ""])
    else:
        assert "is empty" in refusal([*before, ""])


@pytest.mark.parametrize(("before", "action"), EVERY, ids=name_of)
def test_no_value_that_is_not_utf8_goes_further_than_a_file_name(before: list[str], action: argparse.Action) -> None:
    try:
        make_parser().parse_args([*before, "a\udcff"])
    except UsageError as error:
        assert error.code == 2 and "\n" not in str(error)
    else:
        assert action.type is path, before


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: value[:8])
def test_what_is_no_number_is_refused_by_every_command(value: str) -> None:
    assert len(NUMBERS) >= 20
    for before, _ in NUMBERS:
        assert "it must be" in refusal([*before, value]), before


@pytest.mark.parametrize(
    ("words", "title", "hint"),
    [
        (["runn"], "there is no command runn.", "Did you mean run? slipstream --help lists all."),
        (["models", "serch"], "there is no command models serch.", "Did you mean search? slipstream models --help"),
        (["rnu"], "there is no command rnu.", "Did you mean run? slipstream --help lists all."),
        (["banana"], "there is no command banana.", "slipstream --help lists all."),
        (["--heads", "a.gguf", "run"], "--heads is no option here.", "Put it behind a command: slipstream run --heads"),
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
