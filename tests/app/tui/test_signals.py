"""The chat in a real terminal: whatever ends it, the terminal is as it was, and the text is kept.

All endings in all states: ``python -m tests.soak.signals``.
"""

from pathlib import Path

import pytest
from tests.app.tui.endings import ENDINGS, STATES, Ending, faults

pytestmark = pytest.mark.program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "state"),
    [pytest.param(ending, STATES[at % 3], id=f"{ending.name}-{STATES[at % 3]}") for at, ending in enumerate(ENDINGS)],
)
def test_the_terminal_is_as_it_was_and_the_text_is_kept(ending: Ending, state: str, tmp_path: Path) -> None:
    assert faults(ending, state, tmp_path) == []
