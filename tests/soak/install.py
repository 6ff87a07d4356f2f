"""Installs slipstream as a user does, on a clean environment, and waits for a first reply.

A command: ``python -m tests.soak.install``. It builds the wheel, installs it into a new environment and asks for one
reply; then it runs the README's run command in a clone and talks to the chat on a real terminal. pip takes
llama-cpp-python from its own cache where it was compiled before. Prints one line: what, how many, how many failed.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

from tests.app.terminal import Terminal

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 1800.0  # seconds for the README's command: it may compile llama.cpp


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "SLIPSTREAM_HOME": str(home)}


def from_wheel(folder: Path) -> None:
    """Builds the wheel, installs it into an environment without anything else, and asks for one reply."""
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    [wheel] = folder.glob("slipstream-*.whl")
    venv.create(folder / "clean", with_pip=True)
    programs = folder / "clean" / "bin"
    variables = environment(folder / "home")
    subprocess.run([programs / "pip", "install", "--quiet", str(wheel)], check=True, env=variables)
    said = subprocess.run(
        [programs / "slipstream", "run", "-p", "Say hello.", "--max-tokens", "8"],
        check=True, env=variables, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    if not said.stdout.strip():
        raise AssertionError(f"no reply: {said.stderr}")


def from_readme(folder: Path) -> None:
    """Runs the README's run command in a clone, and gets a reply on the terminal that it opens."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    command = (clone / "README.md").read_text().split("<!-- run -->")[1].split("```")[1].split("\n")[1]
    with Terminal("sh", "-c", f"cd {clone} && {command}", home=folder / "own", more=[("PYTHONPATH", "")]) as chat:
        chat.until(lambda: "Message, / for commands" in chat.shown, PATIENCE)
        chat.type("Say hello.\r")
        chat.until(lambda: b"tokens in" in chat.sent or b"tok/s" in chat.sent, PATIENCE)
        chat.type("\x11")
        if (code := chat.ended()) != 0:
            raise AssertionError(f"the chat ended with {code}")


def main() -> int:
    failed = 0
    for way in (from_wheel, from_readme):
        with tempfile.TemporaryDirectory() as folder:
            try:
                way(Path(folder))
            except (subprocess.CalledProcessError, AssertionError) as error:
                print(f"{way.__name__}: {error}", flush=True)
                failed += 1
    print(f"install: 2 ways, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
