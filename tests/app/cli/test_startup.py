"""What each command loads, and what it says where llama.cpp is missing, damaged or of another machine."""

import json
import os
import pty
import shutil
import subprocess
import sys
import sysconfig
import termios
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

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
ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = Path(sysconfig.get_path("purelib"))
CRASH: Final = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"


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
        text=True, env={**os.environ, "SLIPSTREAM_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert not HEAVY & set(json.loads(loaded.read_text()))


def test_the_chats_parent_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = tmp_path / "modules.json"
    _, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = [sys.executable, "-c", MAIN, str(loaded)]
    home = {**os.environ, "SLIPSTREAM_HOME": str(tmp_path)}
    subprocess.run(command, stdin=terminal, stdout=terminal, env=home, check=True)
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
    on_disk = {"psutil"} if os.major(tmp_path.stat().st_dev) else set()  # else it tells network file systems
    loaded = {*SELDOM, *on_disk, *HEAVY - {"textual"}} & set(seen["modules"])
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


def library(folder: Path) -> Path:
    """A copy of llama.cpp's library in place of the link to it."""
    path = folder / "llama_cpp" / "lib" / "libllama.so"
    original = path.resolve()
    path.unlink()
    shutil.copyfile(original, path)
    return path


def of_another_machine(folder: Path) -> None:
    with library(folder).open("r+b") as file:
        file.seek(18)  # e_machine
        machine = file.read(1)
        file.seek(18)
        file.write(b"\xb7" if machine == b"\x3e" else b"\x3e")  # AArch64, x86-64


def without_runtime(folder: Path) -> None:
    path = library(folder)
    whole = path.read_bytes()
    assert b"libgcc_s.so.1\0" in whole
    path.write_bytes(whole.replace(b"libgcc_s.so.1\0", b"libcudart.so1\0"))


def of_another_processor(folder: Path) -> None:
    if not (compiler := shutil.which("cc") or shutil.which("c++")):
        pytest.skip("no C compiler")
    path = library(folder)
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=CRASH, text=True, check=True)


@pytest.fixture
def environment(tmp_path: Path) -> tuple[Path, Path]:
    """A Python of its own with links to all that is installed here; returns it and its packages."""
    venv.create(tmp_path / "venv", symlinks=True)
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    for path in PACKAGES.iterdir():
        if path.name not in ("llama_cpp", "pip"):
            (packages / path.name).symlink_to(path)
    for folder in (PACKAGES / "llama_cpp", PACKAGES / "llama_cpp" / "lib"):
        own = packages / folder.relative_to(PACKAGES)
        own.mkdir()
        for path in folder.iterdir():
            if path.name not in ("lib", "__pycache__"):
                (own / path.name).symlink_to(path)
    return tmp_path / "venv" / "bin" / "python", packages


def slipstream(python: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "SLIPSTREAM_HOME": str(home), "PYTHONPATH": str(ROOT / ".dev")}
    command = [str(python), "-m", "slipstream.app.cli.main", *arguments]
    return subprocess.run(command, env=variables, cwd=home.parent, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="changes an ELF library")
@pytest.mark.parametrize(
    ("change", "words", "cure"),
    [
        (lambda folder: shutil.rmtree(folder / "llama_cpp"), "llama-cpp-python is not installed", "--only-binary"),
        (lambda folder: library(folder).unlink(), "llama.cpp's library is missing", "--only-binary"),
        (lambda folder: os.truncate(library(folder), 40), "file too short", "--only-binary"),
        (of_another_machine, "built for another kind of machine than this Linux", "--only-binary"),
        (without_runtime, "llama.cpp needs libcudart.so1 (CUDA's runtime)", "a build that does without"),
        (of_another_processor, "another kind of processor (illegal instruction)", "-DGGML_NATIVE=on"),
    ],
)
def test_a_broken_llama_cpp_is_named_with_its_cure(
    environment: tuple[Path, Path], tmp_path: Path, change: Callable[[Path], None], words: str, cure: str
) -> None:
    python, packages = environment
    change(packages)
    commands = [["run", "-p", "hi"], ["lend"], ["doctor"]]
    if change is not of_another_processor:  # it ends the process that loads it for the name
        commands += [["run", "-p", "hi", "--drafter", "lookup"], ["models", "pairs", "bundled"]]
    for command in commands:
        done = slipstream(python, tmp_path / "home", *command)
        said = done.stdout if command == ["doctor"] else done.stderr
        assert done.returncode == 1, done
        assert cure in said and "Traceback" not in done.stderr, done
        assert words in said or (change is of_another_processor and "another processor (SIGILL)" in said), done
        if command != ["doctor"]:
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.slow
def test_the_environment_itself_works(environment: tuple[Path, Path], tmp_path: Path) -> None:
    done = slipstream(environment[0], tmp_path / "home", "run", "-p", "hi", "--max-tokens", "2")
    assert done.returncode == 0 and done.stdout.strip(), done
