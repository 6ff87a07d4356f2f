"""Traces drafts for a panel: the trees of the last steps, and the figures of each drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Final, Protocol

from slipstream.app.engine.stats import ReplyStats, origins
from slipstream.app.protocol.events import TREE_ROOT, DraftTree, Piece, Watched
from slipstream.drafters.base import Step
from slipstream.models.types import ROOT, Token

LOOK_EVERY: Final = 0.03  # minimum seconds between two trees: more cannot be seen, and would slow down a small model
PLAIN_EVERY: Final = 0.1
"""Minimum seconds between the last trace and that of a step without a draft, which shows little."""


class Pieces(Protocol):
    """The part of a vocabulary that a trace uses."""

    def piece(self, token: Token) -> bytes:
        """The bytes of a token."""


class DraftTrace:
    """Traces the steps of one reply while the panel is open; otherwise it only costs one call per step."""

    def __init__(
        self,
        watched: Callable[[], bool],
        vocabulary: Pieces,
        stats: ReplyStats,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Starts a trace; ``watched`` says whether the panel is open, which may change at any step."""
        self._watched, self._vocabulary, self._stats, self._clock = watched, vocabulary, stats, clock
        self._traced_at = self._plain_at = float("-inf")

    def of(self, step: Step, milliseconds: float) -> Watched | None:
        """Traces a step that ``stats`` already counts; None if the panel is closed or the last trace is too recent."""
        if not self._watched():
            return None
        now = self._clock()
        if step.draft.tree.drafted:
            if now - self._traced_at < LOOK_EVERY:
                return None
            self._traced_at = now
        else:
            if now - max(self._traced_at, self._plain_at) < PLAIN_EVERY:
                return None
            self._plain_at = now
        stats = self._stats
        return Watched(
            [self._tree(step, milliseconds)],
            {name: asdict(count) for name, count in stats.by_drafter.items()},
            {name: [list(counts) for counts in depths] for name, depths in stats.drafter_depths.items()},
        )

    def _tree(self, step: Step, milliseconds: float) -> DraftTree:
        draft = step.draft
        tree = draft.tree
        shown = [node for node in range(len(tree)) if node not in tree.probes]
        place = {node: index for index, node in enumerate(shown)} | {ROOT: TREE_ROOT}
        origin, source = origins(step)[-1]
        return DraftTree(
            step=self._stats.whole.steps,
            texts=[self._text(tree.tokens[node]) for node in shown],
            parents=[place[tree.parents[node]] for node in shown],
            probs=[round(float(draft.probs[node]), 4) for node in shown],
            sources=[draft.sources[node] for node in shown],
            path=[place[node] for node in step.path],
            last=Piece(self._text(step.tokens[-1]), origin, source),
            probes=len(tree.probes),
            ms=milliseconds,
        )

    def _text(self, token: Token) -> str:
        return self._vocabulary.piece(token).decode("utf-8", "backslashreplace")


def joined_traces(first: Watched | None, second: Watched | None) -> Watched | None:
    """Joins the traces of two steps: all trees, and the later figures."""
    if first is None or second is None:
        return second or first
    return Watched(first.trees + second.trees, second.by_drafter, second.drafter_depths)
