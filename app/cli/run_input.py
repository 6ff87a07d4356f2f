"""Reads the input of ``slipstream run``: standard input, and the file of a grammar."""

from __future__ import annotations

import json
import os
import select
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from slipstream.app.cli.streams import notice
from slipstream.models.errors import UsageError, reason_of
from slipstream.models.grammar import GrammarKind
from slipstream.models.outside import quoted, read_limited, shown_path

_MOST_GRAMMAR: Final = 1 << 20  # maximum bytes of a schema or a grammar
_MOST_INPUT: Final = 8 << 20  # maximum bytes of standard input: eight for each token of the largest context
_PATIENCE: Final = 2.0  # seconds before the hint on a silent pipe


def read_grammar(schema: str | None, grammar: str | None) -> tuple[str, GrammarKind]:
    """Reads the file of a JSON schema or a grammar; raises ``UsageError`` if it cannot be read, or is not UTF-8."""
    name = schema or grammar
    if not name:
        return "", "json"
    file = Path(name).expanduser()
    try:
        text = read_limited(file, _MOST_GRAMMAR).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown_path(file)} is not UTF-8.", "Convert it first.") from error
    except (OSError, ValueError) as error:  # a zero byte in a name is a ValueError
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        hint = f"Name a file with a {'JSON schema' if schema else 'grammar'}."
        raise UsageError(f"cannot read {shown_path(file)}: {reason}.", hint) from error
    if not text.strip():
        raise UsageError(f"{shown_path(file)} is empty.", "Write a JSON schema or a grammar into it.")
    if schema:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = quoted(str(error), 100)
            raise UsageError(f"{shown_path(file)} is no JSON: {reason}.", "Mend it; nothing was written.") from error
    return text, "json" if schema else "gbnf" if "::=" in text else "lark"


def read_stdin(prompted: bool, stdin: BinaryIO) -> str:
    """Reads piped text; returns nothing for a terminal or /dev/null.

    Args:
        prompted: Whether there is a prompt already; a silent pipe then causes a hint on standard error.

    Raises:
        UsageError: If it is not UTF-8, or larger than any context.
    """
    try:
        descriptor = stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return ""  # closed
    if stat.S_ISCHR(mode):
        return ""
    if prompted:
        with suppress(OSError, ValueError):
            if not select.select([descriptor], [], [], _PATIENCE)[0]:
                notice("waiting for standard input to end; use </dev/null to go without it.")
    raw = stdin.read(_MOST_INPUT + 1)
    if len(raw) > _MOST_INPUT:
        raise UsageError(
            f"standard input has more than {_MOST_INPUT >> 20} MB, which no context holds.", "Pipe in a part of it."
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start:,}.",
            "Convert it first, for example with iconv -t UTF-8.",
        ) from error
