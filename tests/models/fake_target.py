"""A target without weights that checks its own bookkeeping: for tests and screenshots."""

import struct
from collections.abc import Callable, Sequence

import numpy as np

from slipstream.models import types
from slipstream.models.errors import ContextFullError
from slipstream.models.llama.target import Prefill, PrefillChunk


class FakeTarget:
    """Logits are a hash of the last ``order`` tokens, so that text repeats itself and drafts can be accepted.

    ``blur`` mixes in a second hash: two fakes with the same seed and different blur often agree, like a target and its
    draft model. Every call checks that calls come in the order that ``Target`` describes.
    """

    def __init__(
        self,
        n_vocab: int = 64,
        n_ctx: int = 4096,
        seed: int = 1,
        order: int = 2,
        blur: float = 0.0,
        max_leaves: int = 16,
    ) -> None:
        self.abilities = types.Abilities(
            n_vocab=n_vocab, n_ctx=n_ctx, n_embd=8, n_layer=2, max_rows=64, max_leaves=max_leaves,
            hidden=frozenset({types.LAST_HIDDEN, 0, 1}), same_text=True, masks=True,
        )  # fmt: skip
        self._seed, self._order, self._blur = seed, order, blur
        self._tokens: list[types.Token] = []
        self._open: tuple[types.Token, types.TokenTree] | None = None
        self._points: frozenset[int] = frozenset()
        self._masks = 0
        self.decodes = 0
        """Number of passes."""

    @property
    def tokens(self) -> Sequence[types.Token]:
        return self._tokens

    def request(self, points: frozenset[int], rows: int = 1) -> None:
        if not points <= self.abilities.hidden:
            raise ValueError(f"hidden points {sorted(points - self.abilities.hidden)} are not offered")
        self._points = points

    def prepare_drafts(self) -> None:
        pass

    def use_masks(self, masks: types.Floats) -> None:
        """Counts the masks; probes may then use one more token id for each."""
        if masks.ndim != 2 or masks.shape[1] != self.abilities.n_embd:
            raise ValueError(f"masks of shape {masks.shape} for a model of width {self.abilities.n_embd}")
        self._masks = len(masks)

    def prefill(
        self,
        tokens: Sequence[types.Token],
        on_chunk: Callable[[PrefillChunk], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prefill:
        if len(tokens) > self.abilities.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(tokens):,} tokens, but the context holds {self.abilities.n_ctx:,}."
            )
        shared = types.shared_prefix(self._tokens, tokens)
        self.rewind(shared)
        for start in range(shared, len(tokens), 32):
            if cancelled and cancelled():
                break
            chunk = list(tokens[start : start + 32])
            self._tokens.extend(chunk)
            self.decodes += 1
            if on_chunk:
                on_chunk(PrefillChunk(chunk, len(self._tokens), len(tokens), self._hidden(len(chunk))))
        return Prefill(shared, len(self._tokens) - shared, len(self._tokens) == len(tokens))

    def feed(self, tokens: Sequence[types.Token]) -> None:
        self._check_closed("feed")
        self._tokens.extend(tokens)

    def evaluate(self, last: types.Token, tree: types.TokenTree = types.EMPTY_TREE) -> types.Evaluation:
        self._check_closed("evaluate")
        if 1 + len(tree) > self.abilities.max_rows or tree.leaves > self.abilities.max_leaves:
            raise ValueError("the tree is too large")
        if len(self._tokens) + 1 + len(tree) > self.abilities.n_ctx:
            raise ContextFullError(f"the context of {self.abilities.n_ctx:,} tokens is full.")
        known = self.abilities.n_vocab
        for node, token in enumerate(tree.tokens):
            if not 0 <= token < known + (self._masks if node in tree.probes else 0):
                raise ValueError(f"node {node} carries {token}, which is no token here")
        paths = [[*self._tokens[-self._order :], last]]
        for node, parent in enumerate(tree.parents):
            paths.append([*paths[parent + 1 if parent != types.ROOT else 0], tree.tokens[node]])
        self.decodes += 1
        self._open = (last, tree)
        return types.Evaluation(np.stack([self._row(path[-self._order :]) for path in paths]), self._hidden(len(paths)))

    def keep(self, path: Sequence[int]) -> None:
        if self._open is None:
            raise AssertionError("keep() without evaluate()")
        last, tree = self._open
        parent = types.ROOT
        for node in path:
            if tree.parents[node] != parent or node in tree.probes:
                raise AssertionError(f"{tuple(path)} is not a path of acceptable nodes from the root")
            parent = node
        self._tokens.append(last)
        self._tokens.extend(tree.tokens[node] for node in path)
        self._open = None

    def rewind(self, length: int) -> None:
        self._open = None
        del self._tokens[length:]

    def reset(self) -> None:
        self.rewind(0)

    def save(self) -> bytearray:
        return bytearray(struct.pack(f"<{len(self._tokens)}i", *self._tokens))

    def restore(self, state: bytearray, tokens: Sequence[types.Token]) -> None:
        if state != struct.pack(f"<{len(tokens)}i", *tokens):
            raise AssertionError("the state is of other tokens")
        self._open, self._tokens = None, list(tokens)

    def close(self) -> None:
        pass

    def _check_closed(self, call: str) -> None:
        if self._open is not None:
            raise AssertionError(f"{call}() before keep()")

    def _row(self, context: Sequence[types.Token]) -> types.Floats:
        sharp = np.random.default_rng([self._seed, *context]).standard_normal(self.abilities.n_vocab, np.float32)
        if self._blur:
            other = np.random.default_rng([self._seed + 1, *context]).standard_normal(
                self.abilities.n_vocab, np.float32
            )
            sharp = (1 - self._blur) * sharp + self._blur * other
        return np.asarray(3 * sharp, np.float32)

    def _hidden(self, rows: int) -> dict[int, types.Floats]:
        return {point: np.zeros((rows, self.abilities.n_embd), np.float32) for point in self._points}
