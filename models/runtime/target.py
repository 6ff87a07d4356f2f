"""What every runtime offers: a model with a KV cache that evaluates token trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.models.types import Abilities, Evaluation, Floats, Token, TokenTree


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One chunk of a prompt that has just been read.

    Attributes:
        tokens: The chunk's tokens.
        done: Prompt tokens in the KV cache now.
        total: Prompt tokens there will be.
        hidden: Point to [len(tokens), n_embd], for the points that were asked for.
    """

    tokens: Sequence[Token]
    done: int
    total: int
    hidden: Mapping[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prefill:
    """How a prefill went.

    Attributes:
        reused: Tokens that were in the KV cache already.
        decoded: Tokens that had to be read.
        complete: False if it was cancelled; what was read so far stays in the cache.
    """

    reused: int
    decoded: int
    complete: bool


class Target(Protocol):
    """A model with a KV cache that evaluates trees.

    The cache holds committed tokens only, between calls. A generation step is ``evaluate`` then ``keep``.
    """

    @property
    def abilities(self) -> Abilities:
        """What it can do."""

    @property
    def tokens(self) -> Sequence[Token]:
        """The committed tokens, in the cache or queued by ``feed``."""

    def request(self, points: frozenset[int]) -> None:
        """Chooses the hidden points that evaluations and prefill chunks carry from now on."""

    def use_masks(self, masks: Floats) -> None:
        """Gives the vectors [k, n_embd] that the ids n_vocab to n_vocab + k - 1 stand for, in probes of a tree."""

    def prefill(
        self,
        tokens: Sequence[Token],
        on_chunk: Callable[[PrefillChunk], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prefill:
        """Makes the cache hold exactly ``tokens``, reusing the prefix that it has already."""

    def feed(self, tokens: Sequence[Token]) -> None:
        """Commits a few tokens that enter the cache as the first rows of the next evaluation."""

    def evaluate(self, last: Token, tree: TokenTree) -> Evaluation:
        """Evaluates ``last`` and the tree below it in one pass."""

    def keep(self, path: Sequence[int]) -> None:
        """Commits ``last`` and the nodes of ``path`` (a path from the root), and drops the other rows."""

    def rewind(self, length: int) -> None:
        """Drops every token from index ``length`` on."""

    def save(self) -> bytearray:
        """Packs the cache's state, to be restored by the same build on the same model."""

    def restore(self, state: bytearray, tokens: Sequence[Token]) -> None:
        """Replaces the cache by a saved state of ``tokens``."""

    def close(self) -> None:
        """Frees the memory; the target must not be used after."""
