"""Slipstream's commands, run in the process of the tests."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from slipstream.app.cli.main import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Said]


def commands(capsys: pytest.CaptureFixture[str], *first: str) -> Command:
    def run(*words: object) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([*first, *map(str, words)])
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return run
