"""A command that does not exist: the error names it, suggests a similar one, and has exit code 2."""

from __future__ import annotations

import pytest

from slipstream.app.cli.main import main
from slipstream.app.cli.options import make_parser
from slipstream.models.errors import UsageError


@pytest.mark.parametrize(
    ("words", "title", "hint"),
    [
        (["runn"], "there is no command runn.", "Did you mean run? slipstream --help lists all."),
        (["models", "serch"], "there is no command models serch.", "Did you mean search? slipstream models --help"),
        (["banana"], "there is no command banana.", "slipstream --help lists all."),
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
