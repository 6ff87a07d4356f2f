"""Drafter ``medusa``: heads on the target's last hidden state guess the next few tokens at once, verified as a tree.

Source: Medusa (Cai et al., arXiv 2401.10774; github.com/FasterDecoding/Medusa, medusa/model/medusa_model.py). The
published trees are static and were measured for one model; here the tree grows best first, by the heads' current
probabilities, corrected by how often such guesses were right.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.calibration import Ratio
from slipstream.drafters.resources import Method, Resources
from slipstream.drafters.tree import TOP, TreeBuilder
from slipstream.models.errors import ModelFileError, NotANumberError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.heads.check import TOKEN_IDS, count_tensors
from slipstream.models.heads.file import HeadsInfo, read_info
from slipstream.models.llama.ggml import Operations, Tensor
from slipstream.models.llama.library import threads_of
from slipstream.models.llama.network import Network
from slipstream.models.outside import shown_path
from slipstream.models.sampling.sampler import Sampler, gumbel
from slipstream.models.sampling.top_k import Doubles
from slipstream.models.types import LAST_HIDDEN, Abilities, Floats, History, Token

_SHARED: Final = "output.weight"
_OWN: Final = "head.{}.output.weight"
_KEPT: Final = 16  # candidates of a head; the published trees use at most 10
_NODES: Final = 63  # as in the published trees
_FROM_TRAINING: Final = 50  # weight of the accuracies from training, in outcomes
_DECAY: Final = 0.995
_MOST: Final = 0.98  # largest probability of a guess
_NOISE: Final = 0.4
"""Share of the target's own noise that enters the ranking.

A share of 1 would suit heads that know the target's distribution exactly. With the bundled model's heads, 0.3 to 0.5
gives 2 to 5 % more accepted tokens than 0, and 0.75 or 1 gives fewer (temperature 0.8, trees of 8 and 16 nodes).
"""


class MedusaHeads:
    """K heads: residual blocks x + SiLU(Wx + b), then a vocabulary matrix, either one for each head or one for all."""

    def __init__(self, path: Path, threads: Callable[[], int], kept: int) -> None:
        """Loads heads, which ``unfit`` has found to fit the target, with at most ``kept`` candidates each."""
        self.info, header = read_info(path), read_header(path)
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        count = self.count = count_tensors(shapes, "head.{}.0.weight")
        layers = count_tensors(shapes, "head.0.{}.weight")
        shared = _SHARED in shapes
        outputs = [_SHARED] if shared else [_OWN.format(head) for head in range(count)]
        width, rows = shapes[outputs[0]]
        kept = self.kept = min(kept, rows)
        self._ids = _token_ids(header, rows)
        weights = {"output": outputs}
        for layer in range(layers):
            for kind in ("weight", "bias"):
                weights[f"{kind}.{layer}"] = [f"head.{head}.{layer}.{kind}" for head in range(count)]

        def build(ops: Operations, tensors: Mapping[str, Tensor], states: int) -> None:
            total = states * count
            x = ops.input(width, states, count)
            for layer in range(layers):
                inner = ops.add(ops.multiply(tensors[f"weight.{layer}"], x), tensors[f"bias.{layer}"])
                x = ops.add(x, ops.silu(inner))
            if shared:  # so that the matrix is read once for all heads
                x = ops.reshape(x, width, total, 1)
            probs = ops.reshape(ops.soft_max(ops.multiply(tensors["output"], x)), rows, total, 1)
            best = ops.top_k(probs, kept)
            ops.output(best, np.int32, kept, total, 1)
            ops.output(ops.rows(ops.reshape(probs, 1, rows, total), best), np.float32, 1, kept, total)

        self._network = Network(header, weights, build, threads)
        if not np.isfinite(self.best(np.ones(width, np.float32))[1]).all():
            self.close()
            raise ModelFileError(
                f"{shown_path(path)} is damaged: its weights are not all numbers.", "Train or import the heads again."
            )

    def best(self, state: Floats) -> tuple[NDArray[np.int32], Floats]:
        """Finds the most probable tokens of each head.

        Args:
            state: [n_embd], the target's last hidden state of a token.

        Returns:
            Tokens [count, kept], the most probable first, where head k guesses position k + 2 after the state's token;
            and their probabilities among the rows of the vocabulary matrix.
        """
        places, probs = self._network.run(np.broadcast_to(state, (self.count, 1, len(state))))
        order = (-probs[..., 0]).argsort(axis=1, kind="stable")
        places = np.take_along_axis(places[0], order, axis=1)
        return self._ids[places], np.take_along_axis(probs[..., 0], order, axis=1)

    def close(self) -> None:
        self._network.close()


class RankRecord:
    """Each rank's measured accuracy over its head's probability, by head; counts what was emitted, drafted or not."""

    def __init__(self, accuracies: Floats, ranks: int) -> None:
        """Starts from trained accuracies [heads, known ranks]; further ranks get the accuracy of the last one."""
        known = accuracies[:, np.minimum(np.arange(ranks), accuracies.shape[1] - 1)]
        trained = np.maximum(_FROM_TRAINING * known, 1e-3).astype(np.float64)
        self._ratios = [Ratio[Doubles](_DECAY, head, head) for head in trained]
        self._factors = np.ones(trained.shape)
        self._right = np.eye(ranks + 1, ranks)  # one-hot by rank; the last row is for no rank

    def corrected(self, claimed: Floats) -> Floats:
        """Corrects the heads' probabilities [heads, ranks]; each holds if the tokens above are accepted."""
        found: Floats = np.minimum(claimed * self._factors, _MOST).astype(np.float32)
        return found

    def add(self, head: int, claimed: Doubles, rank: int | None) -> None:
        """Adds a head's probabilities of its ranks, and the rank that was right, or None."""
        ratio = self._ratios[head]
        ratio.add(self._right[-1 if rank is None else rank], claimed)
        self._factors[head] = ratio.value()


class Medusa(Drafter):
    """Head k reads a token's hidden state and guesses the token k + 2 places later, without knowing those between.

    The evaluation that accepts a token also returns its state, so a draft costs only the heads. The target drew the
    history's last token from that state, so head 0 guesses the first token after the history.
    """

    name = "medusa"
    needs = Needs(frozenset({LAST_HIDDEN}))

    def __init__(self, heads: MedusaHeads, abilities: Abilities, nodes: int = _NODES) -> None:
        """Takes over the target's heads, and closes them in the end."""
        self._heads = heads
        self._n_ctx = abilities.n_ctx
        self._nodes = min(nodes, abilities.max_rows - 1)
        self._leaves = abilities.max_leaves
        self.needs = Needs(Medusa.needs.hidden, self._leaves)
        self._record = RankRecord(rank_accuracies(heads.info, heads.count), heads.kept)
        self._state: Floats | None = None  # hidden state of the token before the history's last
        self._at: int | None = None  # length of the history when the state, if any, was stored
        self._guess: tuple[NDArray[np.int32], Floats] | None = None  # the heads' tokens and probabilities in this step

    def begin(self, history: History) -> None:
        """Starts a reply: there is no state until the target has read tokens."""
        self._state = self._guess = None
        self._at = len(history.tokens)

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Keeps the state of the last token that was read; in the end, that is the prompt's last token but one."""
        self._state = hidden[LAST_HIDDEN][-1].copy()

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._guess = None
        room = min(self._nodes, self._n_ctx - len(history.tokens))
        stale = self._at not in (None, len(history.tokens))  # it did not observe some steps
        if self._state is None or stale or not should_extend(1.0, 1) or room < 1:
            return NO_DRAFT
        tokens, claimed = self._heads.best(self._state)
        if not np.isfinite(claimed).all():
            raise NotANumberError("what its heads compute is not a number.")
        if sampler.temperature:
            tokens, claimed = _noisy(tokens, claimed, sampler, history.position)
        self._guess = tokens, claimed
        probs = self._record.corrected(claimed)
        order = (-probs).argsort(axis=1, kind="stable")
        ranked = np.take_along_axis(tokens, order, axis=1).tolist()
        ranked_probs = np.take_along_axis(probs, order, axis=1).tolist()
        tree = TreeBuilder()
        tree.offer(TOP, zip(ranked[0], ranked_probs[0], strict=True))
        for node in tree.grow(should_extend, self.name, room, self._leaves):
            depth = len(node.tokens)
            if depth < len(ranked):  # a head's probabilities do not depend on the tokens above
                tree.offer(node, zip(ranked[depth], ranked_probs[depth], strict=True))
        return tree.build()

    def observe(self, history: History, step: Step) -> None:
        """Measures the heads by the step's tokens, and keeps the state of the last accepted one."""
        if self._guess:
            tokens, claimed = self._guess[0], self._guess[1].astype(np.float64)
            for head, token in enumerate(step.tokens[: self._heads.count]):
                places = (tokens[head] == token).nonzero()[0]
                self._record.add(head, claimed[head], int(places[0]) if len(places) else None)
        row = step.path[-1] + 1 if step.path else 0
        self._state, self._guess = step.evaluation.hidden[LAST_HIDDEN][row].copy(), None
        self._at = len(history.tokens)

    def rewind(self, length: int) -> None:
        """Drops the state: its token may have been removed."""
        self._state = self._guess = None

    def close(self) -> None:
        self._heads.close()


def _noisy(
    tokens: NDArray[np.int32], claimed: Floats, sampler: Sampler, position: int
) -> tuple[NDArray[np.int32], Floats]:
    """Reweights each head's candidates by the target's noise at their position; a head's total probability stays."""
    noise = np.stack([gumbel(sampler.seed, position + head, ids) for head, ids in enumerate(tokens.astype(np.int64))])
    tilted = claimed * np.exp(_NOISE * sampler.temperature * noise)
    tilted *= claimed.sum(axis=1, keepdims=True) / tilted.sum(axis=1, keepdims=True)
    order = (-tilted).argsort(axis=1, kind="stable")
    return np.take_along_axis(tokens, order, axis=1), np.take_along_axis(tilted, order, axis=1).astype(np.float32)


def unfit(path: Path, abilities: Abilities) -> str:
    """The reason why heads cannot serve a target of these abilities; empty if they can."""
    info, header = read_info(path), read_header(path)
    if info.method != "medusa":
        return f"its medusa heads are {info.method} heads"
    width, rows = (header.by_name.get(_SHARED) or header.by_name[_OWN.format(0)]).shape
    if width != abilities.n_embd:
        return f"its medusa heads read states of {width:,} numbers, and this model's have {abilities.n_embd:,}"
    ids = _token_ids(header, rows)
    if ids.min() < 0 or ids.max() >= abilities.n_vocab + abilities.spare_rows:
        return f"its medusa heads guess token {ids.max():,}, and this model has {abilities.n_vocab:,}"
    return ""


def rank_accuracies(info: HeadsInfo, heads: int) -> Floats:
    """Accuracy of each rank [heads, ranks], not conditional on the tokens before.

    Training measures it. For published heads it comes from their authors' top-1 and top-5 accuracies for Vicuna 7B
    (assets/medusa_acc.csv); ranks 1 to 4 share the difference of the two in proportion to one over the rank.
    """
    found = info.settings.get("rank_accuracies")
    if isinstance(found, list) and found and len(found) % heads == 0:
        return np.array(found, np.float32).reshape(heads, -1)
    best, five = np.array([(0.56, 0.78), (0.316, 0.563), (0.201, 0.417), (0.147, 0.34), (0.118, 0.3)], np.float32).T
    others = (five - best)[:, None] / np.arange(1, 10, dtype=np.float32) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    ranks: Floats = np.concatenate((best[:, None], others), axis=1)
    return ranks[np.minimum(np.arange(heads), len(ranks) - 1)]


def _token_ids(header: Header, rows: int) -> NDArray[np.int32]:
    if TOKEN_IDS not in header.by_name:
        return np.arange(rows, dtype=np.int32)
    ids: NDArray[np.int32] = read_tensor(header, header.by_name[TOKEN_IDS])
    return ids


def _make(resources: Resources) -> Drafter:
    assert resources.llama is not None  # ``Method.lacks`` has checked it
    llama = resources.llama
    heads = MedusaHeads(resources.heads[Medusa.name], lambda: threads_of(llama.context), _KEPT)
    return Medusa(heads, resources.abilities)


METHOD: Final = Method(
    Medusa.name,
    _make,
    Medusa.needs,
    heads=True,
    train="; slipstream drafters train medusa -m MODEL trains them",
    unfit=lambda resources: unfit(resources.heads[Medusa.name], resources.abilities),
    about="trained heads guess a tree of the next few tokens at once",
)
