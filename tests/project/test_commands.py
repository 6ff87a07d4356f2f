"""Every command that a page names exists and takes the options it is shown with; every measured table names one."""

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.bench.__main__ import options as bench_options
from tests.soak.__main__ import RUNS

from slipstream.app.cli.options import make_parser
from slipstream.models.errors import UsageError

ROOT = Path(__file__).parents[2]
_CODE = re.compile(r"^```\w*\n(.*?)^```|`([^`]+)`", re.MULTILINE | re.DOTALL)
_PREFIX = re.compile(r"^(?:[A-Z_]+=\S+ |nice |\.venv/bin/)*")


def pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def commands(text: str) -> list[list[str]]:
    """The words of every command of ours in code spans and blocks, without what is piped in or said behind it."""
    found = []
    for block, span in _CODE.findall(text):
        for line in block.splitlines() if block else [" ".join(span.split())]:
            for part in re.split(r"\s\|\s|&&", line.split("  #")[0]):
                part = _PREFIX.sub("", part.strip())
                if re.match(r"slipstream(?= |$)|python -m (tests|slipstream)\b", part):
                    found.append(shlex.split(part.replace("…", "")))
    return found


def check(words: list[str]) -> str:
    """What is wrong with a command; empty if it would be taken."""
    if words[0] == "slipstream":
        return parsed(lambda given: make_parser().parse_args(given), words[1:])
    module, given = words[2], words[3:]
    if module == "tests.bench":
        return parsed(bench_options, ["startup" if word == "NAME" else word for word in given])
    if module == "tests.soak":
        names = {run.name for run in RUNS}
        bare = [word for word in given if word.islower() and not word.startswith("-")]
        return "" if not bare or given[0].startswith("-") or set(bare) <= names else f"no {bare}"
    name = module if module != "tests.soak.NAME" else "tests.soak"
    return "" if importlib.util.find_spec(name) else f"no module {name}"


def parsed(parse: object, given: list[str]) -> str:
    """Reads the words; where they only name a command, without what it must be given, its help must be there."""
    assert callable(parse)
    try:
        parse(given)
    except SystemExit as stop:  # it asks for help or the version
        return f"exit code {stop.code}" if stop.code else ""
    except UsageError as error:
        if "required" not in error.title:
            return error.title
        try:
            parse([*given, "--help"])
        except SystemExit as stop:
            return f"exit code {stop.code}" if stop.code else ""
        except UsageError as wrong:
            return wrong.title
    return ""


@pytest.mark.parametrize("page", pages())
def test_every_command_on_a_page_exists(page: str) -> None:
    found = commands((ROOT / page).read_text(encoding="utf-8"))
    wrong = {" ".join(words): problem for words in found if (problem := check(words))}
    assert not wrong
    if page in ("README.md", "SECURITY.md", "tests/bench/README.md", "tests/soak/README.md"):
        assert found


@pytest.mark.parametrize("wrong", ["slipstream fly", "slipstream run --fast"])
@pytest.mark.parametrize("module", ["tests.bench plain --fast", "tests.bench.nothing", "tests.soak flood"])
def test_what_does_not_exist_is_noticed(wrong: str, module: str) -> None:
    assert check(wrong.split()) and check(["python", "-m", *module.split()])


def test_commands_are_found_in_spans_and_blocks() -> None:
    text = "Say `slipstream run\n-p x`:\n```sh\ngit diff | slipstream bench --check  # slow\nls\n```\nor `slipstreams`."
    assert commands(text) == [["slipstream", "run", "-p", "x"], ["slipstream", "bench", "--check"]]


@pytest.mark.parametrize("page", ["tests/bench/README.md", "tests/soak/README.md"])
def test_every_table_of_figures_stands_below_the_command_that_prints_it(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        if re.search(r"^\|.*\d.*\|$", section, re.MULTILINE):
            assert commands(section), section.splitlines()[0]
