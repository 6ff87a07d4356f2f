"""The wheel holds every file of the three packages, whatever .gitignore says, but for the recipe of what ships."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.program

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_in(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=installed)


@pytest.mark.slow
def test_every_tracked_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "app", "models", "drafters"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {f"slipstream/{name}" for name in listed}
    assert len(wanted) > 50
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wanted <= names, f"missing: {sorted(wanted - names)}"
    assert not [name for name in names if not name.startswith(("slipstream/", "slipstream-"))]
    assert "slipstream/models/bundled/slipstream-mini-q8_0.gguf" in names


def test_the_wheel_has_every_module_that_it_imports(installed: Path) -> None:
    asked: set[tuple[str, str]] = set()
    for path in installed.rglob("slipstream/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slipstream."):
                asked.add((path.relative_to(installed).as_posix(), node.module or ""))
            elif isinstance(node, ast.Import):
                asked |= {(path.name, each.name) for each in node.names if each.name.startswith("slipstream.")}
    assert ("slipstream/app/cli/drafters_train.py", "slipstream.drafters.training.heads") in asked
    missing = {
        (file, module)
        for file, module in asked
        if not any((installed / f"{module.replace('.', '/')}{end}").exists() for end in (".py", "/__init__.py"))
    }
    assert not missing


def test_heads_are_trained_from_the_wheel(installed: Path) -> None:
    pytest.importorskip("torch")
    code = "from slipstream.drafters.training import heads, pickles; print(heads.__file__)"
    done = run_in(installed, "-c", code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)


def test_the_links_of_the_editable_install_are_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", ".dev/slipstream"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["120000"] * 3


def test_the_command_that_ci_runs_is_the_one_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    block = readme.split("<!-- test -->")[1].split("```")[1]
    commands = [line for line in block.splitlines()[1:] if line]
    assert len(commands) == 1 and commands[0].endswith(".dev/check.py")
    assert "<!-- test -->" in (ROOT / ".ci" / "run").read_text()
