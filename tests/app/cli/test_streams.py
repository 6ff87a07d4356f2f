"""Standard streams that are full, closed or that no reader reads: at most one line, and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal

pytestmark = pytest.mark.program

FULL = "cannot write to standard output: no space left on device. Make room, or write to another place.\n"
RUN = "run -p Hi --seed 1 --max-tokens 2"
COMMANDS = [
    "--help", "run --help", "--version", "paths", "completion bash", "models list", "models list --json",
    "models pairs", "settings list", "settings list --json", "drafters list", "drafters index --list", "doctor",
    "doctor --json", RUN, f"{RUN} --json", f"{RUN} --chat one",
    "bench --drafters none --prompts chat --limit 1 --tokens 2 --temp 0 --no-memory",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where the model was measured, with a chat."""
    home = tmp_path_factory.mktemp("home")
    assert shell(f"slipstream {RUN} --chat one >/dev/null </dev/null", home) == (0, 'slipstream: a new chat, "one".\n')
    return home


def shell(line: str, home: Path) -> tuple[int, str]:
    line = line.replace("slipstream", f"{sys.executable} -m slipstream.app.cli.main", 1)
    environment = {**os.environ, "SLIPSTREAM_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, env=environment)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [*COMMANDS, "chats list", "chats show one", "chats export", "chats search Hi"])
def test_a_full_disk_behind_standard_output_is_one_line(command: str, home: Path) -> None:
    code, errors = shell(f"slipstream {command} >/dev/full </dev/null", home)
    progress = ("bench: ", "slipstream: measuring this machine")
    assert (code, [line for line in errors.splitlines(True) if not line.startswith(progress)]) == (
        1,
        [f"slipstream: {FULL}"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["paths", "chats list", "settings list", RUN])
def test_a_closed_standard_output_is_quiet(command: str, home: Path) -> None:
    assert shell(f"slipstream {command} >&- </dev/null", home) == (0, "")
    assert shell(f"slipstream {command} <&- >&- 2>&-", home) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["2>&-", "2>/dev/full", "2> >(exec <&-; sleep 0.3)"])
def test_notices_that_cannot_be_written_change_nothing(place: str, home: Path, tmp_path: Path) -> None:
    assert shell(f"slipstream run -p Hi -m nosuch </dev/null {place}", home)[0] == 2
    assert shell(f"slipstream chats list </dev/null {place}", tmp_path)[0] == 0
    assert shell(f"slipstream {COMMANDS[-1]} >/dev/null </dev/null {place}", home)[0] == 0


@pytest.mark.parametrize("command", ["--help", "models list --json", RUN])
def test_a_reader_that_left_is_quiet(command: str, home: Path) -> None:
    line = f"slipstream {command} </dev/null | (exec <&-; sleep 0.1); exit ${{PIPESTATUS[0]}}"
    code, errors = shell(line, home)
    assert code in (0, 141) and errors == ""


def test_a_limit_of_the_size_of_files_and_an_output_for_reading_are_one_line(home: Path, tmp_path: Path) -> None:
    code, errors = shell(f"ulimit -f 0; trap '' XFSZ; slipstream models list --json > {tmp_path / 'out'}", home)
    assert code == 1 and errors == f"slipstream: {FULL.replace('no space left on device', 'file too large')}"
    code, errors = shell("slipstream paths 1</dev/null", home)
    assert code == 1 and errors.startswith("slipstream: cannot write to standard output: bad file descriptor.")


@pytest.mark.parametrize("source", ["yes", "cat /dev/zero"])
def test_an_input_without_end_is_refused_by_its_size(source: str, home: Path) -> None:
    code, errors = shell(f"ulimit -v 3000000; {source} | slipstream run; exit ${{PIPESTATUS[1]}}", home)
    assert code == 2 and errors.startswith("slipstream: standard input has more than 8 MB, which no context holds.")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_notice_is_printed_at_once_into_a_pipe(unbuffered: str) -> None:
    code = (
        "import sys; from slipstream.app.cli.streams import Streams, notice; "
        "streams = Streams(); notice('wait'); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin and process.stderr
        timer = Timer(30, process.kill)  # a notice that is not printed would wait for ever
        timer.start()
        assert process.stderr.readline() == "slipstream: wait\n"
        timer.cancel()
        process.stdin.close()


@pytest.mark.parametrize(
    ("limit", "command", "cure"),
    [("-n 5", "paths", "ulimit -n 1024"), ("-n 24", RUN, "ulimit -n 1024"), ("-v 300000", RUN, "ulimit -v unlimited")],
)
def test_a_limit_of_the_shell_is_one_line_with_its_cure(limit: str, command: str, cure: str, tmp_path: Path) -> None:
    code, errors = shell(f"ulimit {limit}; slipstream {command} </dev/null", tmp_path)
    assert code == 1 and errors.count("\n") == 1
    assert errors.startswith("slipstream: this shell limits ") and errors.endswith(f"Start it again after: {cure}\n")


def test_arguments_are_utf_8_in_an_ascii_locale_and_a_limit_is_raised_where_it_may_be(tmp_path: Path) -> None:
    assert shell("ulimit -S -n 5; slipstream paths </dev/null", tmp_path) == (0, "")
    ascii_only = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"
    code, errors = shell(f"{ascii_only} slipstream chats search 'é…' </dev/null", tmp_path)
    assert (code, errors) == (0, 'slipstream: no matches for "\\xe9\\u2026".\n')


@pytest.mark.parametrize("encoding", ["idna", "ascii:strict", "utf-7"])
def test_an_odd_encoding_of_the_streams_is_no_error(encoding: str, tmp_path: Path) -> None:
    code, errors = shell(f"PYTHONIOENCODING={encoding} slipstream chats list </dev/null", tmp_path)
    assert (code, errors) == (0, "slipstream: no chats are kept yet.\n")


@pytest.mark.parametrize(
    ("name", "value"), [("PYTHONIOENCODING", "ascii"), ("PYTHONIOENCODING", "utf-16"), ("COLUMNS", "3")]
)
def test_the_screen_is_drawn_whatever_the_environment_says(name: str, value: str, tmp_path: Path) -> None:
    with Terminal(*PROGRAM, home=tmp_path, size=(100, 30), more=[(name, value)]) as terminal:
        terminal.shows("╭", "╰")
        terminal.type("\x11")
        assert terminal.ended() == 0


def test_progress_has_no_carriage_returns_in_a_pipe(home: Path) -> None:
    code = (
        "from slipstream.app.cli.models_tables import Bar\n"
        "with Bar('copying') as bar:\n"
        "    bar.bytes(5, 10)\n    bar.note('waiting for the network')\n    bar.bytes(10, 10)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines(keepends=True) == [
        "slipstream: copying: 5 B of 10 B, 50 %\n",
        "slipstream: waiting for the network\n",
        "slipstream: copying: 10 B of 10 B, 100 %\n",
    ]
