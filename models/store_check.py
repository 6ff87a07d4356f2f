"""Reads every byte of a model and compares it with what it should be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slipstream.models.errors import reason_of
from slipstream.models.quoting import shown_path
from slipstream.models.store_facts import read_facts
from slipstream.models.store_types import Checked, Installed

_CHUNK: Final = 4 << 20


def check(
    model: Installed,
    expected: Sequence[str | None],
    on_progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> Checked:
    """Hashes all files of a model, its header read anew first.

    Args:
        model: The model.
        expected: SHA-256 of each file as it should be; None where nobody knows.
        on_progress: Hears bytes read and bytes in all.
        cancelled: Asked often; True ends it with ``KeyboardInterrupt``.

    Returns:
        What was found; a wrong file is no error here.
    """
    facts = read_facts(model.path)
    hashes: list[str] = []
    done, size = 0, sum(_size(file) for file in model.files)
    for file in model.files:
        digest = hashlib.sha256()
        try:
            with file.open("rb") as opened:
                while chunk := opened.read(_CHUNK):
                    if cancelled():
                        raise KeyboardInterrupt
                    digest.update(chunk)
                    done += len(chunk)
                    on_progress(done, size)
        except OSError as error:
            reason = reason_of(error)
            return Checked(model, tuple(hashes), tuple(expected), f"{shown_path(file)} cannot be read: {reason}.")
        hashes.append(digest.hexdigest())
    problem, hint = facts.problem, facts.hint
    wrong = [f for f, was, is_ in zip(model.files, expected, hashes, strict=True) if was and was != is_]
    if wrong and not problem:
        problem = f"{shown_path(wrong[0])} is not what was published: its bytes have changed."
        hint = _again(model)
    return Checked(model, tuple(hashes), tuple(expected), problem, hint)


def _again(model: Installed) -> str:
    """How to get a whole copy."""
    if model.foreign:
        return f"It is {model.origin}'s: fetch it again there."
    if model.repo:
        label = f":{model.quant}" if model.quant else ""
        return f"Remove it and fetch it again: slipstream models pull {model.repo}{label}."
    return "Remove it and import a good copy."


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
