"""The context lengths that a model supports: its training length, and longer ones with RoPE scaling.

llama.cpp itself applies a scaling that a model was trained with, also LongRoPE's two sets of factors. This module
handles a scaling that was added after training: it costs a little quality in short texts, so it is used only for
contexts longer than the trained one.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from slipstream.models.gguf.reader import Header

RopeKind = Literal["none", "linear", "yarn"]
_NAMES: Final[dict[RopeKind, str]] = {"none": "no scaling", "linear": "linear scaling", "yarn": "YaRN"}
_MOST: Final = 1 << 24  # tokens; a file may claim any factor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A RoPE scaling that a context uses instead of the file's."""

    kind: RopeKind
    factor: float = 1.0  # positions are divided by it
    trained: int = 0  # context before the scaling, in tokens

    @property
    def longest(self) -> int:
        return min(round(self.factor * self.trained), _MOST)

    @property
    def words(self) -> str:
        return f"{_NAMES[self.kind]} x{self.factor:g}"


@dataclass(frozen=True, slots=True)
class ContextRange:
    """The contexts that a model supports, in tokens; 0 if the file does not give them."""

    trained: int  # the longest context without ``beyond``
    longest: int
    beyond: RopeScaling | None = None  # the scaling for a longer context
    within: RopeScaling | None = None  # the scaling for the trained context; None to keep the file's

    def scaling(self, n_ctx: int) -> RopeScaling | None:
        """The scaling of a context; None to keep the file's."""
        return self.beyond if n_ctx > self.trained else self.within

    def shortened(self, n_ctx: int) -> int:
        return min(n_ctx, self.longest or n_ctx)


def context_range(header: Header, published: RopeScaling | None = None) -> ContextRange:
    trained = header.n_ctx_train or 0
    if published and trained and _value(header, "type") in (None, "none"):
        return ContextRange(trained, max(trained, published.longest), published)
    if own := _added(header, trained, published):
        return ContextRange(min(trained, own.trained), max(trained, own.longest), own, RopeScaling("none"))
    return ContextRange(trained, trained)


def _added(header: Header, trained: int, published: RopeScaling | None) -> RopeScaling | None:
    """The scaling in the file, unless the model may have been trained with it.

    The scaling was added after training if the file's context is still the original one, or if the makers publish the
    same scaling as an option for long texts.
    """
    kind, factor = _value(header, "type"), _value(header, "factor")
    if not isinstance(factor, float) or not math.isfinite(factor) or factor <= 1:
        return None
    if _value(header, "finetuned") or _value(header, "attn_factor") is not None:
        return None
    original = header.number("rope.scaling.original_context_length") or 0
    own = None
    if kind == "yarn":
        own = RopeScaling("yarn", factor, original or trained)
    elif kind == "linear" and original:
        own = RopeScaling("linear", factor, original)
    same = own and published and (own.kind, own.trained) == (published.kind, published.trained)
    return own if own and (same or own.trained >= trained) else None


def _value(header: Header, key: str) -> object:
    return header.metadata.get(f"{header.architecture}.rope.scaling.{key}")
