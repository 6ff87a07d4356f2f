"""Types of option values; the parser reads every value with one of these functions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, TypeVar

from slipstream.models.outside import decimal_number, whole_number

N = TypeVar("N", int, float)
_LARGEST_SEED: Final = (1 << 64) - 1


def text(value: str) -> str:
    """Reads a text that is not empty; this is the default type."""
    return possibly_empty(_filled(value))


def possibly_empty(value: str) -> str:
    """Reads any text that is valid UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("the value is not UTF-8") from error
    return value


def path(value: str) -> str:
    """Reads the name of a file, a folder or a model, in the file system's encoding."""
    return _filled(value)


def whole(value: str) -> int:
    """Reads a whole number, for options of type ``int``."""
    return _number(whole_number, value)


def decimal(value: str) -> float:
    """Reads a decimal number, for options of type ``float``."""
    return _number(decimal_number, value)


def seed(value: str) -> int:
    """Reads a whole number of up to 64 bits."""
    return _number(lambda text: whole_number(text, -_LARGEST_SEED, _LARGEST_SEED), value)


def _number(read: Callable[[str], N], value: str) -> N:
    try:
        return read(_filled(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _filled(value: str) -> str:
    if not value:
        raise argparse.ArgumentTypeError("the value is empty")
    return value
