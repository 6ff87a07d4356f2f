"""What can be told here of systems that are not POSIX: nothing loads a module that they lack until it is needed."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
POSIX_ONLY: Final = ("slipstream.app.tui.terminal",)
"""Modules for POSIX alone, which others load in functions that run there alone."""
CHILD: Final = """
import builtins, pkgutil, sys
import importlib
import slipstream.app, slipstream.drafters, slipstream.models

lacking = {"fcntl", "termios", "tty", "pty", "resource", "pwd", "grp", "posix", "syslog", "readline", "curses"}
real = builtins.__import__

def without(name, globals=None, *rest, **more):
    if name.partition(".")[0] in lacking and (globals or {}).get("__name__", "").startswith("slipstream"):
        raise ModuleNotFoundError(f"{globals['__name__']} loads {name}")
    return real(name, globals, *rest, **more)

builtins.__import__ = without
names = [
    module.name
    for package in (slipstream.app, slipstream.drafters, slipstream.models)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
]
loaded = 0
for name in names:
    if name in sys.argv[1:] or name.startswith("slipstream.drafters.training"):  # that needs torch
        continue
    importlib.import_module(name)
    loaded += 1
print(loaded, *[name for name in sys.argv[1:] if name in sys.modules])
"""


@pytest.mark.slow
@pytest.mark.program
def test_no_module_of_posix_is_loaded_with_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, *POSIX_ONLY], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-1000:]
    loaded, *posix = done.stdout.split()
    assert int(loaded) > 200 and not posix, done.stdout


@pytest.mark.program
def test_one_that_is_loaded_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode and "slipstream.app.tui.terminal loads termios" in done.stderr


HEAVY = {"gguf", "huggingface_hub", "jinja2", "llama_cpp", "numpy", "torch"}  # what a start must not wait for
WRITES_CHATS = {"slipstream.app.chats.store", "slipstream.app.chats.backups"}  # the engine reads chats only


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("slipstream.app.cli.main", HEAVY | {"textual"}),
        ("slipstream.app.cli.launcher", HEAVY | {"textual"}),
        ("slipstream.app.engine.process.client", {"textual", "torch", "llama_cpp"}),
        ("slipstream.app.engine.session", {"textual", "torch"}),
        ("slipstream.app.engine.load", {"textual", "torch", *WRITES_CHATS}),
        ("slipstream.drafters.registry", {"textual", "torch"}),
        ("slipstream.app.cli.chat", HEAVY | {"textual"}),
        ("slipstream.app.tui.app", HEAVY),
    ],
)
def test_a_module_does_not_load_what_it_must_not(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; bad = {banned!r} & set(sys.modules); sys.exit(f'loads {{bad}}' if bad else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
