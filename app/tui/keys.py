"""A key that Textual does not know."""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


class ExtraKeys(Enum):
    """Keys beside ``textual.keys.Keys``."""

    AltEnter = "alt+enter"


def teach_alt_enter() -> None:
    """Lets Alt-Enter be told from Enter where a terminal sends it as escape and return, as most do.

    Textual 8.2.8 keeps the Alt of letters but not that of Enter.
    """
    sequences = cast(dict[str, Any], ANSI_SEQUENCES_KEYS)
    sequences.setdefault("\x1b\r", (ExtraKeys.AltEnter,))
