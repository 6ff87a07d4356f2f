"""What may be imported by what, seen from outside."""

import subprocess
import sys

import pytest

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
