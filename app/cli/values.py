"""What the value of an option may be; the parser reads every value by one of these."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, TypeVar

from slipstream.models.outside import decimal_number, whole_number

N = TypeVar("N", int, float)
_LARGEST_SEED: Final = (1 << 64) - 1


def text(value: str) -> str:
    """Takes a text that is not empty; options without a type are read by this."""
    return possibly_empty(_filled(value))


def possibly_empty(value: str) -> str:
    """Takes any text that is UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("the value is not UTF-8") from error
    return value


def path(value: str) -> str:
    """Takes the name of a file, a folder or a model, in whatever encoding the file system has."""
    return _filled(value)


def whole(value: str) -> int:
    """Takes a whole number; options of type ``int`` are read by this."""
    return _number(whole_number, value)


def decimal(value: str) -> float:
    """Takes a decimal number; options of type ``float`` are read by this."""
    return _number(decimal_number, value)


def seed(value: str) -> int:
    """Takes a whole number of up to 64 bits."""
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
