"""Keeps a failing drafter from failing the reply.

A drafter must affect neither the text of a reply nor its completion. The guard wraps each drafter: an exception
disables the drafter until the model is loaded again, and the target goes on without it, with the same text.
"""

import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Plain, ShouldExtend, Step
from slipstream.drafters.crash_note import add_drafter, unmapped_note
from slipstream.models.errors import NotANumberError, SlipstreamError, reason_of
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Abilities, Floats, History, Token, TokenTree

_LATEST: Final = 8  # drafts; their widest pass is cheaper than a change of width there and back
_Result = TypeVar("_Result")
_Other = TypeVar("_Other")


class Guard:
    """Runs the calls of a target's drafters, and records the drafters that failed."""

    def __init__(self, failed: Mapping[str, str] | None = None, note: memoryview | None = None) -> None:
        """Starts with the drafters that failed before; without a note (``crash_note``), only this process reads it."""
        self.failed = dict(failed or {})  # name of each failed drafter to the reason, as the end of a sentence
        self._note = unmapped_note() if note is None else note
        self._numbers: dict[str, int] = {}

    def made(self, name: str, make: Callable[[], Drafter], abilities: Abilities) -> Drafter:
        """Makes a drafter whose methods never raise; if making it raises, it counts as failed."""
        inner = self.run(name, make, None)
        return inner if isinstance(inner, Guarded) else Guarded(self, name, inner or Plain(), abilities)

    def run(self, name: str, call: Callable[..., _Result], otherwise: _Other, *arguments: object) -> _Result | _Other:
        """Calls, with the drafter's number in the note; returns ``otherwise`` if the drafter fails or has failed."""
        if name in self.failed:
            return otherwise
        note, outer = self._note, self._note[0]
        note[0] = self._numbers.get(name) or self._number(name)
        try:
            return call(*arguments)
        except Exception as error:
            self.fail(name, error)
            return otherwise
        finally:
            note[0] = outer

    def _number(self, name: str) -> int:
        """Writes a drafter's name into the note; 0 if there is no room for it."""
        number = len(self._numbers) + 1
        return self._numbers.setdefault(name, number) if add_drafter(self._note, number, name) else 0

    def fail(self, name: str, error: BaseException) -> None:
        """Disables a drafter; the log gets the traceback without values."""
        if name in self.failed:
            return
        self.failed[name] = _reason(error)
        for frame in traceback.extract_tb(error.__traceback__):
            print(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}', file=sys.stderr)
        print(f"drafter {name} failed: {type(error).__name__}", file=sys.stderr, flush=True)


class Guarded(Drafter):
    """A drafter whose methods never raise; after its first failure it drafts nothing and needs nothing."""

    needs: Needs = Needs()

    def __init__(self, guard: Guard, name: str, inner: Drafter, abilities: Abilities) -> None:
        self.name, self.needs = name, inner.needs
        self._guard, self._inner, self._abilities = guard, inner, abilities
        self._rows = deque([1], _LATEST)  # that the passes of its latest drafts need

    @property
    def failed(self) -> str:
        return self._guard.failed.get(self.name, "")

    def begin(self, history: History) -> None:
        self._run(self._inner.begin, None, history)

    def known(self, history: History) -> int:
        return self._run(self._inner.known, len(history.tokens), history)

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        self._run(self._inner.on_prefill, None, tokens, hidden)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        def fitted() -> Draft:
            return self._fitted(self._inner.draft(history, should_extend, sampler), len(history.tokens))

        draft = self._run(fitted, NO_DRAFT)
        self._rows.append(1 + len(draft.tree))
        if not self.needs.rows and self._abilities.widths:
            self.needs = replace(self.needs, rows=max(self._rows))
        return draft

    def continued(self, history: History, draft: Draft, should_extend: ShouldExtend) -> Draft:
        def fitted() -> Draft:
            return self._fitted(self._inner.continued(history, draft, should_extend), len(history.tokens))

        return self._run(fitted, draft)

    def observe(self, history: History, step: Step) -> None:
        self._run(self._inner.observe, None, history, step)

    def reading_ms(self, history: History) -> float:
        return self._run(self._inner.reading_ms, 0.0, history)

    def rewind(self, length: int) -> None:
        self._run(self._inner.rewind, None, length)

    def reject(self, draft: Draft, why: Exception) -> None:
        """Disables the drafters of a draft that the target could not evaluate."""
        for name in {*draft.sources}:
            self._guard.fail(name, why)

    def close(self) -> None:
        with suppress(Exception):  # a failed drafter may be half made
            self._inner.close()

    def _run(self, call: Callable[..., _Result], otherwise: _Result, *arguments: object) -> _Result:
        result = self._guard.run(self.name, call, otherwise, *arguments)
        self.needs = Needs() if self.name in self._guard.failed else self._inner.needs
        return result

    def _fitted(self, draft: Draft, size: int) -> Draft:
        """Checks a draft after a text of ``size`` tokens, and cuts it to the target's rows and context."""
        tree, most = draft.tree, self._abilities
        count = len(tree.tokens)
        if not count:
            return draft
        if not len(draft.probs) == len(draft.sources) == count or not 0 <= sum(draft.probs) <= 1.001 * count:
            raise SlipstreamError("its probabilities are not numbers from 0 to 1")
        beyond = (node for node, token in enumerate(tree.tokens) if token >= most.n_vocab)  # masks, which probes carry
        if min(tree.tokens) < 0 or not all(most.masks and node in tree.probes for node in beyond):
            raise SlipstreamError("it drafted a token that this model does not have")
        room = max(0, min(most.max_rows - 1, most.n_ctx - size)) if most.max_leaves else 0
        if count > room:  # nodes are in depth-first order, so the first ones form a tree
            probes = frozenset(node for node in tree.probes if node < room)
            tree = TokenTree(tree.tokens[:room], tree.parents[:room], probes)
            draft = Draft(tree, draft.probs[:room], draft.sources[:room])
        if tree.leaves > max(1, most.max_leaves):
            raise SlipstreamError(f"its draft has {tree.leaves} leaves, and this target takes {most.max_leaves}")
        return draft


def _reason(error: BaseException) -> str:
    if isinstance(error, NotANumberError):
        return "what it computes is not a number"
    if isinstance(error, SlipstreamError):
        return error.title.rstrip(".")
    if isinstance(error, MemoryError):
        return "memory ran out"
    if isinstance(error, OSError):
        return reason_of(error)
    return f"an error in its code ({type(error).__name__})"
