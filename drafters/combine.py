"""Drafters around others: several as one, in order or merged into a tree; copies behind drafts; text without images."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.tree import TOP, TreeBuilder
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Abilities, Floats, History, Token

_CONFIDENT: Final = 0.5  # least probability of a draft's best first token: more likely right than wrong


class _Alike(NamedTuple):
    prob: float  # the largest of their probabilities
    source: str  # the drafter that gave it
    nodes: list[tuple[int, int]]  # (index of the draft, node)


class Combined(Drafter):
    """Several drafters as one; each of them observes every step."""

    def __init__(
        self, name: str, drafters: Sequence[Drafter], combine: Callable[[Iterable[Draft], int], Draft]
    ) -> None:
        """Combines drafters, the preferred one first; ``combine`` takes their drafts and the length of the text."""
        self.name, self.drafters, self._combine = name, tuple(drafters), combine

    @property
    def needs(self) -> Needs:
        """The needs of all drafters together, computed on each access because a drafter may fail."""
        needs = [drafter.needs for drafter in self.drafters]
        hidden = frozenset[int]().union(*(each.hidden for each in needs))
        return Needs(hidden, max(each.leaves for each in needs))

    def begin(self, history: History) -> None:
        for drafter in self.drafters:
            drafter.begin(history)

    def known(self, history: History) -> int:
        return min(drafter.known(history) for drafter in self.drafters)

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        for drafter in self.drafters:
            drafter.on_prefill(tokens, hidden)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        drafts = (drafter.draft(history, should_extend, sampler) for drafter in self.drafters)
        return self._combine(drafts, len(history.tokens))

    def observe(self, history: History, step: Step) -> None:
        for drafter in self.drafters:
            drafter.observe(history, step)

    def rewind(self, length: int) -> None:
        for drafter in self.drafters:
            drafter.rewind(length)

    def close(self) -> None:
        for drafter in self.drafters:
            drafter.close()


class Continued(Drafter):
    """A drafter, and behind its drafts the copies of another one, where their ends continue a repeated text.

    Any drafter ends a chain where its next token is unsure or costs too much; a copied token costs only its row.
    """

    def __init__(self, inner: Drafter, copies: Drafter, alone: bool) -> None:
        """Joins two drafters.

        Args:
            copies: Lengthens drafts (``Drafter.continued``); others may share it, since it only follows the text.
            alone: Whether it drafts where the first one drafts nothing.
        """
        self.name, self._inner, self._copies, self._alone = inner.name, inner, copies, alone

    @property
    def needs(self) -> Needs:
        return self._inner.needs

    @property
    def failed(self) -> str:
        return self._inner.failed

    def begin(self, history: History) -> None:
        self._inner.begin(history)
        self._copies.begin(history)

    def known(self, history: History) -> int:
        return self._inner.known(history)

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        self._inner.on_prefill(tokens, hidden)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        draft = self._inner.draft(history, should_extend, sampler)
        if draft.tree.tokens:
            return self._copies.continued(history, draft, should_extend)
        return self._copies.draft(history, should_extend, sampler) if self._alone else draft

    def observe(self, history: History, step: Step) -> None:
        self._inner.observe(history, step)
        self._copies.observe(history, step)

    def reading_ms(self, history: History) -> float:
        return self._inner.reading_ms(history)

    def rewind(self, length: int) -> None:
        self._inner.rewind(length)
        self._copies.rewind(length)

    def close(self) -> None:
        self._inner.close()
        self._copies.close()


class TextOnly(Drafter):
    """Hides the images of a history from a drafter, which has no tokens for them.

    Heads do not get the hidden states of an image's rows either, so they guess worse than after text. The reply stays
    the same, since the target reads the image. Positions still count the image, because they are keys of the noise.
    """

    def __init__(self, inner: Drafter, n_ctx: int) -> None:
        """Wraps a drafter for one prompt; the context holds ``n_ctx`` tokens, images included."""
        self.name, self._inner, self._n_ctx = inner.name, inner, n_ctx
        self._text, self._seen = History([]), 0

    @property
    def needs(self) -> Needs:
        return self._inner.needs

    @property
    def failed(self) -> str:
        return self._inner.failed

    def begin(self, history: History) -> None:
        self._text, self._seen = History([], history.trimmed), 0
        self._inner.begin(self._following(history))

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        if tokens and tokens[0] >= 0:  # an image is read in a separate pass
            self._inner.on_prefill(tokens, hidden)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Drafts after the text; nothing if the draft and the images exceed the context."""
        draft = self._inner.draft(self._following(history), should_extend, sampler)
        return draft if len(draft.tree) <= self._n_ctx - len(history.tokens) else NO_DRAFT

    def observe(self, history: History, step: Step) -> None:
        self._inner.observe(self._following(history), step)

    def reading_ms(self, history: History) -> float:
        return self._inner.reading_ms(self._following(history))

    def reject(self, draft: Draft, why: Exception) -> None:
        self._inner.reject(draft, why)

    def _following(self, history: History) -> History:
        """The text of a history; since ``begin``, the history may only have grown."""
        new = history.tokens[self._seen :]
        text = [token for token in new if token >= 0]
        self._text.tokens += text
        self._text.trimmed += len(new) - len(text)
        self._seen = len(history.tokens)
        return self._text


def in_order(drafters: Sequence[Drafter]) -> Combined:
    """Drafts with the first confident drafter; those after it do not draft in that step.

    If none is confident, the draft with the most probable first token is used. A draft of probes only is the last
    choice; it is better than no draft, since its drafter learns from it. Drafts keep their probes.
    """
    return Combined("chain", drafters, _first_confident)


def together(drafters: Sequence[Drafter], abilities: Abilities) -> Combined:
    """Lets every drafter draft, and merges their trees, the most probable path first.

    Equal guesses of several drafters are evaluated once. Probes are never merged: their drafter can use them only in
    its own tree, so they are evaluated only if no other drafter has drafted.
    """

    def merge(drafts: Iterable[Draft], size: int) -> Draft:
        drafts = list(drafts)
        guesses = [draft for draft in drafts if draft.tree.drafted]
        if len(guesses) > 1:
            return merged(guesses, abilities, size)
        return max(guesses or drafts, key=lambda draft: len(draft.tree))

    return Combined("merged", drafters, merge)


def _first_confident(drafts: Iterable[Draft], _size: int) -> Draft:
    best, most = NO_DRAFT, -1.0
    for draft in drafts:
        first = draft.probs[0] if draft.tree.drafted else 0.0
        if first >= _CONFIDENT:
            return draft
        if len(draft.tree) and first > most:
            best, most = draft, first
    return best


def merged(drafts: Sequence[Draft], abilities: Abilities, size: int) -> Draft:
    """Makes one tree of several drafts, the most probable path first, parents before their children.

    Probes are left out, and equal nodes take the larger probability.
    """
    room = min(abilities.max_rows - 1, abilities.n_ctx - size)
    children: list[dict[int, list[int]]] = []  # per draft
    for draft in drafts:
        below = dict[int, list[int]]()
        for child, parent in enumerate(draft.tree.parents):
            if child not in draft.tree.probes:
                below.setdefault(parent, []).append(child)
        children.append(below)

    def alike(nodes: Iterable[tuple[int, int]]) -> dict[Token, _Alike]:
        """The children of some nodes, merged by token, the most probable first."""
        found: dict[Token, _Alike] = {}
        for which, node in nodes:
            draft = drafts[which]
            for child in children[which].get(node, ()):
                token, prob = draft.tree.tokens[child], draft.probs[child]
                same = found.get(token)
                if same is None or prob > same.prob:
                    others = same.nodes if same else []
                    found[token] = _Alike(prob, draft.sources[child], [*others, (which, child)])
                else:
                    same.nodes.append((which, child))
        return dict(sorted(found.items(), key=lambda each: -each[1].prob)) if len(found) > 1 else found

    tree, sources = TreeBuilder(), list[str]()  # sources by handle
    top = alike((which, ROOT) for which in range(len(drafts)))
    levels: dict[tuple[Token, ...], dict[Token, _Alike]] = {(): top}
    tree.offer(TOP, ((token, each.prob) for token, each in top.items()))
    for node in tree.grow(lambda _path, _depth: True, "", room, abilities.max_leaves):
        grown = levels[node.tokens[:-1]][node.tokens[-1]]
        sources.append(grown.source)
        below_it = levels[node.tokens] = alike(grown.nodes)
        tree.offer(node, ((token, each.prob) for token, each in below_it.items()))
    return replace(tree.build(), sources=tuple([sources[handle] for handle in tree.layout()]))
