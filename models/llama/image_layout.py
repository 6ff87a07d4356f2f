"""Maps the tokens of a text with images to positions in a context's memory.

In a text, an image is a run of negative numbers, one for each of its rows. A row takes one cell, as a token does. In
most models it also takes one position; with M-RoPE, an image takes fewer positions than rows.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Token

_SIGN: Final = np.int32(-(1 << 31))


def image_tokens(key: str, rows: int) -> list[Token]:
    """One negative number for each row of an image; the key identifies the image and its encoder."""
    drawn = np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * rows), "<i4")
    numbers: list[Token] = (drawn | _SIGN).tolist()
    return numbers


def first_image(tokens: Sequence[Token], start: int, end: int) -> int:
    """Index of the first image token in ``tokens[start:end]``; ``end`` if there is none."""
    return next((at for at in range(start, end) if tokens[at] < 0), end)


class ImageChunk(Protocol):
    """An image, or one tile of an image, that is decoded in one pass."""

    @property
    def tokens(self) -> list[Token]:
        """The negative numbers for its rows."""

    @property
    def positions(self) -> int:
        """Number of positions that it takes."""

    def decode(self, context: Any, position: int) -> int:
        """Encodes the image, unless its rows are cached, and reads them into sequence 0 of a context.

        Returns:
            0, or the code of ``llama_decode``: 2 if it was aborted.

        Raises:
            UsageError: If the image is damaged, or its file has changed.
            EvaluationError: If it cannot be encoded.
        """


class Images(Protocol):
    """The images that prompts may contain; see ``slipstream.models.vision.projector``."""

    def chunk_at(self, tokens: Sequence[Token], start: int) -> ImageChunk:
        """Returns the image whose tokens start at ``tokens[start]``."""


class NoImages:
    """The ``Images`` of a model without an encoder."""

    def chunk_at(self, tokens: Sequence[Token], start: int) -> ImageChunk:
        raise SlipstreamError("this model is loaded without its mmproj file.", "Load it again with --mmproj FILE.")


@dataclass(frozen=True, slots=True)
class _Span:
    start: int  # index of its first token
    end: int  # index after its last token
    saved: int  # rows minus positions


class Layout:
    """The images of a text, in order; converts indices of tokens to positions and back."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []

    def add(self, start: int, rows: int, positions: int) -> None:
        self._spans.append(_Span(start, start + rows, rows - positions))

    @property
    def rows(self) -> int:
        return sum(span.end - span.start for span in self._spans)

    def whole(self, length: int) -> int:
        """The greatest length, at most ``length``, that splits no image."""
        return next((span.start for span in self._spans if span.start < length < span.end), length)

    def cut(self, length: int) -> None:
        self._spans = [span for span in self._spans if span.end <= length]

    def position(self, index: int) -> int:
        """Position of the token at an index; the index must not be inside an image, except at its start."""
        return index - sum(span.saved for span in self._spans if span.end <= index)

    def index(self, position: int) -> int:
        """Index of the token at a position; the position must not be inside an image, except at its start."""
        for span in self._spans:
            if position <= span.start:
                break
            position += span.saved
        return position
