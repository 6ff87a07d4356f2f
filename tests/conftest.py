"""What holds for all tests."""

import os
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

for _name in ("COLUMNS", "LINES"):
    # pytest-xdist sets these to the size of its own terminal; a program on the terminal of a test would believe them
    os.environ.pop(_name, None)
# what tests remove does not go to a person's trash; the folder is made when it is needed
os.environ["XDG_DATA_HOME"] = str(Path(tempfile.gettempdir(), f"slipstream-tests-{os.getpid()}"))

LONG: Final = MappingProxyType(
    {
        "app/bench": "command",
        "app/chats": "migrations model",
        "app/cli": "last_catch read_only",
        "app/engine": "every_kind exact first_use images kept_chats prefill same_text_bundled",
        "app/library": "models_command",
        "app/tui/bench": "bench_screen",
        "app/tui/chat": "attach branch chats_screen context draft_panel hostile presets prompt reasoning sidebar slash",
        "app/tui/drafters": "drafters_screen",
        "app/tui/models": "models_screen models_use",
        "app/tui/settings": "settings_screen",
        "app/tui": "snapshots",
        "bench": "interface peers_compare topics typing",
        "bench/inflate": "family heads model",
        "drafters": "head_files space vocabulary_mapping",
        "models/chat_template": "template",
        "models/hub": "download_processes download_faults",
        "models/library": "interference",
        "models/llama": "ggml kinds llama",
    }
)
"""Files of tests that take longest together, by folder; ``pytest --durations=250`` shows them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of these files, so that ``.dev/check.py --quick`` leaves them out."""
    root = Path(__file__).parent
    long = {root / folder / f"test_{name}.py" for folder, names in LONG.items() for name in names.split()}
    assert all(path.is_file() for path in long), "a file in LONG has gone"
    for item in items:
        if item.path in long:
            item.add_marker("long")
