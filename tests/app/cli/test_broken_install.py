"""A llama.cpp that is missing, damaged, of another machine or without what it needs: one line with the cure.

Each environment is a real one: that of the tests, with another llama-cpp-python in it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.program

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = Path(sysconfig.get_path("purelib"))
CRASH: Final = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"


def library(folder: Path) -> Path:
    """A copy of llama.cpp's library in place of the link to it."""
    path = folder / "llama_cpp" / "lib" / "libllama.so"
    original = path.resolve()
    path.unlink()
    shutil.copyfile(original, path)
    return path


def missing(folder: Path) -> None:
    shutil.rmtree(folder / "llama_cpp")


def no_library(folder: Path) -> None:
    library(folder).unlink()


def truncated(folder: Path) -> None:
    os.truncate(library(folder), 40)


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
        (missing, "llama-cpp-python is not installed for this Python", "--only-binary"),
        (no_library, "llama.cpp's library is missing", "--only-binary"),
        (truncated, "file too short", "--only-binary"),
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
