"""What may be imported by what, seen from outside."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("slipstream.app.cli", {"textual", "torch", "llama_cpp", "numpy"}),
        ("slipstream.app.engine.host", {"textual", "torch", "llama_cpp"}),
        ("slipstream.app.engine.session", {"textual", "torch"}),
        ("slipstream.app.engine.loading", {"textual", "torch"}),
        ("slipstream.drafters.registry", {"textual", "torch"}),
        ("slipstream.app.tui.app", {"torch", "llama_cpp"}),
    ],
)
def test_a_module_does_not_load_what_it_must_not(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; bad = {banned!r} & set(sys.modules); sys.exit(f'loads {{bad}}' if bad else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
