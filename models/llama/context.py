"""One llama.cpp context: prefill, tree evaluation in one pass, commit, hidden states, saved states."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llama_cpp import llama_cpp as C

from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.errors import ContextFullError, SlipstreamError
from slipstream.models.llama.batch import Batch
from slipstream.models.llama.chunk_reader import ChunkReader
from slipstream.models.llama.hidden import HiddenPoints
from slipstream.models.llama.image_layout import Images
from slipstream.models.llama.kv_cache import KvCache
from slipstream.models.llama.library import rows_at, run_pass
from slipstream.models.llama.mask_rows import MaskRows
from slipstream.models.llama.memory import Memory, open_context, rollback_of
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import WIDTHS, ContextOptions, Prefill, PrefillChunk
from slipstream.models.types import EMPTY_TREE, Abilities, Evaluation, Floats, Token, TokenTree, padded, shared_prefix


class LlamaTarget:
    """A model with a KV cache.

    A tree is evaluated in one ``llama_decode``. Every leaf has its own sequence; the first leaf has sequence 0, the
    conversation's. A row belongs to the sequences of all leaves below it, and attends to the cells of the first one.
    """

    def __init__(
        self,
        model: LlamaModel,
        options: ContextOptions = ContextOptions(),  # noqa: B008 (frozen)
        drafts: bool = True,
    ) -> None:
        """Opens a context on a model; without ``drafts``, call ``prepare_drafts`` before the first draft."""
        self.model, self.placement = model, model.placement
        self._masks, self._logits = MaskRows(model), model.n_rows
        wanted = options.n_ctx or min(model.n_ctx_train, DEFAULT_CONTEXT)
        self.options, self._threads, self._chunks = replace(options, n_ctx=wanted), 0, 0
        # ``rope``: see ``ContextOptions``; contexts of drafting heads must use the same scaling
        # ``scores``: see ``ContextOptions``; contexts of drafting heads use the same value
        self.scores, self.rope = options.scores, options.rope
        params = options.params(wanted, model.recurrent)
        self.most_rows, self._outputs = int(params.n_batch), params.n_outputs_max  # at most, of a pass
        self._batch = Batch(params.n_batch, params.n_seq_max)
        self._open_context(self.options if drafts else replace(self.options, rollback=0))
        rollback = self._cache.memory.rollback if drafts else rollback_of(model, options.rollback)
        self._ready = drafts or not rollback
        max_rows = options.max_rows if rollback is None else min(options.max_rows, 1 + rollback)
        widths = (WIDTHS if model.placement.keeps_graphs else ()) if options.widths is None else options.widths
        self.abilities = Abilities(
            n_vocab=model.n_vocab,
            n_ctx=wanted,
            n_embd=model.n_embd,
            n_layer=model.n_layer,
            max_rows=max_rows,
            max_leaves=options.max_leaves if rollback is None else min(1, rollback),
            hidden=self._hidden.offered,
            same_text=options.same_text,
            masks=self._masks.offered,
            spare_rows=model.n_rows - model.n_vocab,
            rewinds=rollback is None,
            widths=tuple(width for width in widths if width <= max_rows),
            replays=bool(widths) and not model.placement.machines,  # over a network each pass takes a round trip
        )
        self._least = 1  # minimum rows of an evaluation, if there are widths
        self._shape = (1, 1)  # rows and sequences of the latest evaluation, if there are widths

    def prepare_drafts(self) -> None:
        """Reopens the context with the state copies that drafts need; without memory, raises and stays as it was."""
        if self._ready:
            return
        state, points, before = self.save(), self._hidden.requested, self._cache
        C.llama_free(self.context)
        try:
            self._open_context(self.options)
            self._ready = True
        except SlipstreamError as error:
            self._open_context(replace(self.options, rollback=0))
            raise SlipstreamError(
                "there is not enough memory to draft for this model.",
                "Go on without a drafter, or shorten the context.",
            ) from error
        finally:
            self._hidden.request(points)
            self._cache.images = before.images
            if before.tokens:
                self.restore(state, before.tokens)
                self._cache.memory.take_mark(before.memory)

    def _open_context(self, options: ContextOptions) -> None:
        params = options.params(options.n_ctx, self.model.recurrent)
        # for contexts that use its weights or cache; ``close`` frees it
        self.context: Any = open_context(self.model, params)
        self._hidden = HiddenPoints(self.context, self.model)
        self._cache = KvCache(Memory(self.context, self.model), params.n_seq_max, options.same_text)
        self._reader = ChunkReader(
            self.context, self._cache, self._hidden, self._batch, most_rows=self.most_rows, most_outputs=self._outputs
        )
        self._reader.size = self._chunks
        if self._threads:
            self.use_threads(self._threads)

    @property
    def tokens(self) -> Sequence[Token]:
        """The committed tokens, in the cache or queued by ``feed``."""
        return self._cache.tokens

    @property
    def cached(self) -> int:
        """Number of text tokens in the cache, without images; a chunk that was just read is included."""
        return self._cache.cached - self._cache.layout.rows

    @property
    def position(self) -> int:
        """Position of the token after the committed ones; an image takes fewer positions than rows."""
        return self._cache.layout.position(len(self._cache.tokens))

    def request(self, points: frozenset[int], rows: int = 1) -> None:
        """Chooses the hidden points of all later evaluations and prefill chunks.

        Args:
            points: See ``Abilities.hidden``.
            rows: Minimum rows of an evaluation, if there are ``Abilities.widths``: passes of equal size reuse a graph.
        """
        self._hidden.request(points)
        self._least = rows

    def use_masks(self, masks: Floats) -> None:
        """Sets the mask vectors [k, n_embd], which probes of a tree use under the ids n_vocab to n_vocab + k - 1."""
        self._masks.use(masks)

    def use_images(self, images: Images) -> None:
        """Sets the encoder for the images of prompts; without it no image can be read."""
        self._cache.images = images

    def use_threads(self, count: int) -> None:
        """Sets the number of threads of every pass from now on."""
        self._threads = count
        C.llama_set_n_threads(self.context, count, count)

    def use_chunks(self, size: int) -> None:
        """Reads prompts in chunks of ``size`` tokens from now on; 0 for chunks that take about equally long."""
        self._chunks = self._reader.size = size

    def prefill(
        self,
        tokens: Sequence[Token],
        on_chunk: Callable[[PrefillChunk], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prefill:
        """Makes the cache hold exactly ``tokens``, reusing the prefix that it already has.

        Args:
            cancelled: Polled between chunks and, on a CPU, between the nodes of the graph; True ends the prefill, and
                the cache keeps the complete chunks.

        Raises:
            ContextFullError: If the tokens do not fit.
            ModelChangedError: If the model's file was written to since it was loaded.
        """
        self.model.check_unchanged()
        if len(tokens) > self.abilities.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(tokens):,} tokens, but the context holds {self.abilities.n_ctx:,}.",
                "Shorten it, or load the model with a larger context.",
            )
        cache = self._cache
        cache.rewind(shared_prefix(cache.tokens, tokens))
        reused = cache.cached
        cache.tokens.extend(tokens[len(cache.tokens) :])
        complete = self._reader.read(on_chunk, cancelled)
        cache.mark()
        return Prefill(reused, cache.cached - reused, complete)

    def feed(self, tokens: Sequence[Token]) -> None:
        """Commits a few tokens; the next evaluation decodes them as its first rows."""
        self._cache.feed(tokens)

    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        """Evaluates ``last`` and the tree below it in one ``llama_decode``, after the queued tokens.

        With ``widths``, the tree is padded with probes below its last leaf; ``keep`` drops them.

        Returns:
            [1 + nodes, n_vocab] logits, a view that is valid until the next call, and the requested hidden points.

        Raises:
            ContextFullError: If the rows do not fit.
            ValueError: If the tree is too large for this context.
        """
        count, cache = len(tree), self._cache
        if cache.open:
            raise RuntimeError("keep() the last evaluation before the next one")
        if 1 + count > self.abilities.max_rows or tree.leaves > max(1, self.abilities.max_leaves):
            raise ValueError(f"a tree of {count} nodes and {tree.leaves} leaves is too large for this context")
        if len(cache.tokens) + 1 + count > self.abilities.n_ctx:
            raise ContextFullError(f"the context of {self.abilities.n_ctx:,} tokens is full.", "Start a new chat.")
        whole = self._hidden.last or bool(self.abilities.widths)  # whether all rows have outputs
        queued = len(cache.tokens) - cache.cached
        image = queued > 0 and min(cache.tokens[cache.cached :]) < 0
        if image or queued + 1 + count > (self._outputs if whole else self.most_rows):
            self._reader.read()
        run = [*cache.tokens[cache.cached :], last]
        if self.abilities.widths:
            tree = self._padded(tree, len(run), last)
        rows, leaves = len(run) + len(tree), tree.leaves
        if self.abilities.widths:  # a pass with fewer sequences would have another graph
            leaves = max(leaves, self._shape[1] if self._shape[0] == rows else 1)
            self._shape = (rows, leaves)
        if leaves > 1:
            cache.branch(leaves)
        self._batch.tree(run, cache.layout.position(cache.cached), tree, leaves, output_all=whole)
        if tree.probes and max(tree.tokens) >= self.abilities.n_vocab:
            self._batch.by_vector(self._masks)
        root = len(run) - 1
        self._decode(rows)
        before = root if whole else 0  # number of outputs before the root's
        logits = rows_at(C.llama_get_logits(self.context), rows - root + before, self._logits)
        logits = logits[before : before + 1 + count, : self.abilities.n_vocab]
        hidden = self._hidden.read(rows, slice(root, root + 1 + count))
        cache.open = (last, tree, leaves)
        return Evaluation(logits, hidden, len(tree) - count)

    def keep(self, path: Sequence[int]) -> None:
        """Commits the last evaluation's ``last`` token and the nodes of a path from the root; drops other rows.

        With ``same_text``, nodes outside the batch's first path are queued and decoded again: the order of their cells
        differs from plain decoding, so sums over them would round differently.
        """
        self._cache.keep(path)

    def rewind(self, length: int) -> None:
        """Drops every token from ``length`` on, and any image that would be split.

        If the memory cannot be cut there, it is cut further back, and the tokens in between are queued again.
        """
        self._cache.rewind(length)

    def reset(self) -> None:
        """Drops every token, and zeroes the memory that held them.

        Attention adds minus infinity to the scores of dropped cells, which does not mask a NaN.
        """
        self._cache.rewind(0)
        self._cache.memory.clear()

    def save(self) -> bytearray:
        """Decodes queued tokens, then returns the cache's state; only the same build can restore it."""
        self._reader.read()
        return self._cache.memory.save()

    def restore(self, state: bytearray, tokens: Sequence[Token]) -> None:
        """Replaces the cache with a state of ``tokens`` from ``save``; if the state does not fit, it is empty."""
        self._cache.restore(state, tokens)

    def close(self) -> None:
        self._masks.close()
        if self.context:
            C.llama_free(self.context)
            self.context = None

    def _decode(self, rows: int) -> None:
        self._cache.passed(run_pass(C.llama_decode, self.context, self._batch.batch), rows)

    def _padded(self, tree: TokenTree, run: int, token: Token) -> TokenTree:
        """Pads the tree with probes to one of the ``widths``, if the context has room for them."""
        rows = run + len(tree)
        more = padded(max(rows, self._least), self.abilities.widths) - rows
        fits = len(self.tokens) + 1 + len(tree) + more <= self.abilities.n_ctx
        return tree.padded(more, token) if more and fits and self._ready else tree
