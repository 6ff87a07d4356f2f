"""What each command loads: what it does not need would only keep its user waiting."""

import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tests.app.terminal import Terminal

pytestmark = pytest.mark.program

HEAVY = {"gguf", "huggingface_hub", "jinja2", "llama_cpp", "numpy", "textual", "torch"}
MAIN = """
import json, sys
from pathlib import Path
from slipstream.app.cli import main as cli, launcher
launcher.run = lambda argv: 0  # the chat's process is another test's
try:
    cli.main(sys.argv[2:])
finally:
    Path(sys.argv[1]).write_text(json.dumps([name for name in sys.modules if "." not in name]))
"""

SELDOM = {
    "ctypes", "importlib.resources", "secrets", "tomlkit", "tomllib", "slipstream.app.bench.results",
    "slipstream.app.library.manager", "slipstream.models.library.catalog", "slipstream.models.gguf.reader",
    *(f"slipstream.app.tui.{name}" for name in (
        "bench.screen", "bench.form", "bench.result", "parts.browser", "drafters.screen",
        "models.screen", "models.pairs", "settings.screen",
    )),
}  # fmt: skip
FIRST_SCREEN = """
import gc, json, sys
from pathlib import Path
from slipstream.app.cli import chat, main as cli
collect = chat.turn_collection_on

def shown():
    collects = [gc.isenabled(), collect(), gc.isenabled()]
    seen = {"modules": list(sys.modules), "collects": collects, "frozen": gc.get_freeze_count()}
    Path(sys.argv[1]).write_text(json.dumps(seen))

chat.turn_collection_on = shown
cli.main(["--as-child"])
"""


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "SLIPSTREAM_HOME": str(home)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0), ("--version", 0), ("paths", 0), ("bench --help", 0), ("drafters --help", 0), ("nonsense", 2),
        ("run -p hi --max-tokens 1", 0),
    ],
)  # fmt: skip
def test_a_command_loads_nothing_heavy(arguments: str, code: int, tmp_path: Path) -> None:
    loaded = tmp_path / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", MAIN, str(loaded), *arguments.split()], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert not HEAVY & set(json.loads(loaded.read_text()))


def test_the_chats_parent_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = tmp_path / "modules.json"
    _, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    subprocess.run(
        [sys.executable, "-c", MAIN, str(loaded)], stdin=terminal, stdout=terminal, env=environment(tmp_path),
        check=True,
    )  # fmt: skip
    assert not HEAVY & set(json.loads(loaded.read_text()))


@pytest.mark.slow
def test_the_first_screen_loads_only_what_is_on_it(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    with Terminal(sys.executable, "-c", FIRST_SCREEN, str(told), home=tmp_path, size=(100, 30)) as terminal:
        terminal.shows("Message, / for commands")
        terminal.until(told.exists)
        terminal.type("\x11")
        assert terminal.ended() == 0
    seen = json.loads(told.read_text())
    loaded = {*SELDOM, *HEAVY - {"textual"}} & set(seen["modules"])
    assert not loaded
    assert seen["collects"] == [False, None, True] and seen["frozen"] > 10_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("arguments", [[], ["--drafter", "lookup", "--temp", "0.5"]])
def test_the_chats_own_process_loads_no_engine(arguments: list[str], tmp_path: Path) -> None:
    program = (sys.executable, "-m", "slipstream.app.cli.main", "--as-child", *arguments)
    with Terminal(*program, home=tmp_path, size=(100, 30)) as terminal:
        terminal.shows("Message, / for commands")
        [interface] = children(terminal.process)
        [engine] = children(interface)
        mapped = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (interface, engine)}
        terminal.type("\x11")
        assert terminal.ended() == 0
    assert "libllama" in mapped[engine] and "/numpy/" in mapped[engine]
    assert "libllama" not in mapped[interface] and "/numpy/" not in mapped[interface]


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text().split()]
