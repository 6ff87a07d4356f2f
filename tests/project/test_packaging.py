"""The wheel holds every file of the three packages, whatever .gitignore says."""

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
