"""One llama.cpp context: prefill, tree evaluation in one pass, commit, hidden states, saved states."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.errors import ContextFullError, EvaluationError, SlipstreamError
from slipstream.models.llama.batch import Batch
from slipstream.models.llama.hidden import HiddenPoints
from slipstream.models.llama.image_layout import ImageChunk, Images, Layout, first_image
from slipstream.models.llama.library import rows_at
from slipstream.models.llama.mask_rows import MaskRows
from slipstream.models.llama.memory import Memory, open_context, rollback_of
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import WIDTHS, ContextOptions, Prefill, PrefillChunk
from slipstream.models.types import EMPTY_TREE, Abilities, Evaluation, Floats, Token, TokenTree, padded, shared_prefix

_FIRST_CHUNK: Final = 64
_LEAST_CHUNK: Final = 32  # tokens; in a smaller chunk, each token takes much longer
_CHUNK_SECONDS: Final = 0.25  # target time of a chunk, for smooth progress; on a CPU a stop takes effect within a chunk


class LlamaTarget:
    """A model with a KV cache, as ``slipstream.models.llama.target.Target`` describes it.

    A tree is evaluated in one ``llama_decode``: every leaf has a sequence of its own (the first leaf has sequence 0,
    the conversation's), a row belongs to the sequences of all leaves below it, and sees the cells of its first one.
    Other sequences are brought in step with sequence 0 by ranged copies over the positions they lack.

    Attributes:
        abilities: What it can do.
        options: How it was opened.
        scores: See ``ContextOptions``; contexts beside this one use the same value.
        rope: See ``ContextOptions``; contexts that share its weights or its hidden states must scale positions alike.
    """

    def __init__(
        self,
        model: LlamaModel,
        options: ContextOptions = ContextOptions(),  # noqa: B008 (frozen)
        drafts: bool = True,
    ) -> None:
        """Opens a context on a loaded model.

        Args:
            options: How it is opened.
            drafts: Whether a drafter is used from the start; otherwise call ``prepare_drafts`` before the first draft.

        Raises:
            SlipstreamError: If there is not enough memory for it, or the model is no decoder.
        """
        self._model, self._masks, self._logits = model, MaskRows(model), model.n_rows
        wanted = options.n_ctx or min(model.n_ctx_train, 8192)
        self.options, self._threads = replace(options, n_ctx=wanted), 0
        self._open_context(self.options if drafts else replace(self.options, rollback=0))
        params = options.params(wanted, model.recurrent)
        self._chunk, self._outputs = params.n_batch, params.n_outputs_max
        self.scores, self.rope = options.scores, options.rope
        self._batch = Batch(params.n_batch, params.n_seq_max)
        self._tokens: list[Token] = []
        self._cached = 0  # tokens in sequence 0; later ones are queued
        self._in_step = [0] * params.n_seq_max  # tokens that each sequence shares with sequence 0
        self._images: Images | None = None
        self._layout = Layout()  # of the cached tokens: memory calls take positions, everything else counts tokens
        self._open: tuple[Token, TokenTree, int] | None = None  # evaluated, not yet kept; sequences
        self._jumped = False  # whether text was fed or cut since the last evaluation
        self._cancelled: Callable[[], bool] | None = None
        self._abort = C.ggml_abort_callback(lambda _: bool(self._cancelled and self._cancelled()))
        self._no_abort = C.ggml_abort_callback(0)
        rollback = self._memory.rollback if drafts else rollback_of(model, options.rollback)
        self._ready = drafts or not rollback
        max_rows = options.max_rows if rollback is None else min(options.max_rows, 1 + rollback)
        widths = (WIDTHS if model.placement.machines else ()) if options.widths is None else options.widths
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
        )
        # with widths, every pass also has as many sequences and outputs as it can have, or its graph would change
        self._leaves = max(1, self.abilities.max_leaves) if self.abilities.widths else 1

    def prepare_drafts(self) -> None:
        """Reopens the context with the copies of states that taking back drafts needs, if it has none yet.

        Raises:
            SlipstreamError: If there is not enough memory for them; the context is as before then.
        """
        if self._ready:
            return
        tokens, state = list(self._tokens), self.save()
        points, before = self._hidden.requested, self._memory
        C.llama_free(self._context)
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
            self._tokens, self._cached = [], 0
            if tokens:
                self.restore(state, tokens)
                self._memory.take_mark(before)

    def _open_context(self, options: ContextOptions) -> None:
        params = options.params(options.n_ctx, self._model.recurrent)
        self._context = open_context(self._model, params)
        self._memory, self._hidden = Memory(self._context, self._model), HiddenPoints(self._context, self._model)
        if self._threads:
            self.use_threads(self._threads)

    @property
    def tokens(self) -> Sequence[Token]:
        """The committed tokens, in the cache or queued by ``feed``."""
        return self._tokens

    @property
    def cached(self) -> int:
        """Tokens of text in the cache, images left out; after a chunk of a prefill, the last ones are the chunk's."""
        return self._cached - self._layout.rows

    @property
    def position(self) -> int:
        """Position of the token after the committed ones; an image takes fewer positions than rows."""
        return self._layout.position(len(self._tokens))

    @property
    def context(self) -> Any:
        """The ``llama_context``, for contexts that read its weights; it is freed by ``close``."""
        return self._context

    @property
    def model(self) -> LlamaModel:
        return self._model

    @property
    def placement(self) -> Placement:
        return self._model.placement

    def request(self, points: frozenset[int]) -> None:
        """Chooses the hidden points that evaluations and prefill chunks carry from now on.

        Raises:
            ValueError: If the model does not provide one of them.
        """
        self._hidden.request(points)

    def use_masks(self, masks: Floats) -> None:
        """Sets the vectors [k, n_embd] of the ids n_vocab to n_vocab + k - 1, which probes of a tree may carry.

        Raises:
            ValueError: If the model takes no masks, or not of this width.
        """
        self._masks.use(masks)

    def use_images(self, images: Images) -> None:
        """Sets the encoder for the images of prompts; without it no image can be read."""
        self._images = images

    @property
    def most_rows(self) -> int:
        """Rows of the largest pass."""
        return int(self._chunk)

    def use_threads(self, count: int) -> None:
        """Sets the number of threads of every pass from now on."""
        self._threads = count
        C.llama_set_n_threads(self._context, count, count)

    def prefill(
        self,
        tokens: Sequence[Token],
        on_chunk: Callable[[PrefillChunk], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prefill:
        """Makes the cache hold exactly ``tokens``, reusing the prefix that it has already.

        Args:
            tokens: The prompt.
            on_chunk: Called after each chunk.
            cancelled: Polled between chunks and, on a CPU, between the nodes of the graph; True ends the prefill, and
                the cache keeps the complete chunks.

        Raises:
            ContextFullError: If the tokens do not fit.
            ModelChangedError: If the model's file was written to since it was loaded.
        """
        self._model.check_unchanged()
        if len(tokens) > self.abilities.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(tokens):,} tokens, but the context holds {self.abilities.n_ctx:,}.",
                "Shorten it, or load the model with a larger context.",
            )
        shared = shared_prefix(self._tokens, tokens)
        self.rewind(shared)
        reused = self._cached
        self._tokens.extend(tokens[len(self._tokens) :])
        complete = self._read(on_chunk, cancelled)
        self._memory.mark(self._layout.position(self._cached))
        self._jumped = False
        return Prefill(reused, self._cached - reused, complete)

    def feed(self, tokens: Sequence[Token]) -> None:
        """Commits a few tokens that enter the cache as the first rows of the next evaluation."""
        self._tokens.extend(tokens)
        self._jumped = True

    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        """Evaluates ``last`` and the tree below it in one ``llama_decode``, queued tokens first.

        Rows that pad it to one of the ``widths`` are probes below the last leaf, which ``keep`` drops.

        Returns:
            [1 + nodes, n_vocab] logits, a view that is valid until the next call, and the requested hidden points.

        Raises:
            ContextFullError: If the rows do not fit.
            ValueError: If the tree is larger than this context takes.
        """
        count = len(tree)
        if self._open:
            raise RuntimeError("keep() the last evaluation before the next one")
        if 1 + count > self.abilities.max_rows or tree.leaves > max(1, self.abilities.max_leaves):
            raise ValueError(f"a tree of {count} nodes and {tree.leaves} leaves is too large for this context")
        if len(self._tokens) + 1 + count > self.abilities.n_ctx:
            raise ContextFullError(f"the context of {self.abilities.n_ctx:,} tokens is full.", "Start a new chat.")
        whole = self._hidden.last or bool(self.abilities.widths)  # whether all rows have outputs
        queued = len(self._tokens) - self._cached
        image = queued > 0 and min(self._tokens[self._cached :]) < 0
        if image or queued + 1 + count > (self._outputs if whole else self._chunk):
            self._read(None, None)
        run = [*self._tokens[self._cached :], last]
        tree = self._padded(tree, len(run), last)
        leaves = max(tree.leaves, self._leaves)
        at = self._layout.position
        cached = at(self._cached)
        for sequence in range(1, leaves):
            if self._in_step[sequence] < self._cached:
                C.llama_memory_seq_cp(self._memory.pointer, 0, sequence, at(self._in_step[sequence]), cached)
                self._in_step[sequence] = self._cached
        spans = (tree.first_leaves, tree.last_leaves, leaves)
        self._batch.tree(run, cached, tree.tokens, tree.depths, *spans, output_all=whole)
        if tree.probes and max(tree.tokens) >= self.abilities.n_vocab:
            self._batch.by_vector(self._masks)
        self._decode()
        rows, root = len(run) + len(tree), len(run) - 1
        before = root if whole else 0  # outputs before the root's
        logits = rows_at(C.llama_get_logits(self._context), rows - root + before, self._logits)
        logits = logits[before : before + 1 + count, : self.abilities.n_vocab]
        hidden = self._hidden.read(rows, slice(root, root + 1 + count))
        self._open = (last, tree, leaves)
        return Evaluation(logits, hidden)

    def keep(self, path: Sequence[int]) -> None:
        """Commits the last evaluation's ``last`` token and the nodes of ``path``, and drops the other rows.

        With ``same_text``, nodes that were not on the batch's first path are queued to be read again: their cells are
        in another order than plain decoding's, and sums over them would round differently.
        """
        if self._open is None:
            raise RuntimeError("nothing to keep: evaluate() first")
        last, tree, leaves = self._open
        self._open = None
        after = len(self._tokens) + 1
        in_first = sum(1 for node in path if tree.first_leaves[node] == 0)
        end = after + in_first
        self._tokens.append(last)
        self._tokens.extend(tree.tokens[node] for node in path)
        memory, at = self._memory.pointer, self._layout.position
        if len(path) > in_first and not self.abilities.same_text:
            self._cached = len(self._tokens)
            C.llama_memory_seq_rm(memory, 0, at(end), -1)
            C.llama_memory_seq_cp(memory, tree.first_leaves[path[-1]], 0, at(end), at(self._cached))
            for sequence in range(1, leaves):
                C.llama_memory_seq_rm(memory, sequence, at(after), -1)
                self._in_step[sequence] = after
            return
        self._cached = self._cut(end) if len(tree) > in_first else end
        if self._jumped and not tree.drafted:  # a draft model's guesses may follow, one by one, and be taken back
            self._memory.mark(at(self._cached))
            self._jumped = False
        shared = in_first
        for sequence in range(1, leaves):  # each one shares less of the path than the one before
            while shared and tree.last_leaves[path[shared - 1]] < sequence:
                shared -= 1
            if shared < in_first:
                C.llama_memory_seq_rm(memory, sequence, at(after + shared), at(end))
            self._in_step[sequence] = after + shared

    def rewind(self, length: int) -> None:
        """Drops every token from ``length`` on, images whole; reads earlier ones again if the memory cannot be cut."""
        self._open, self._jumped = None, True
        length = self._layout.whole(length)
        if length < len(self._tokens):
            del self._tokens[length:]
        keep = self._cut(min(length, self._cached))
        self._in_step = [min(shared, keep) for shared in self._in_step]
        self._cached = keep

    def _cut(self, length: int) -> int:
        """Cuts the memory to ``length`` tokens or fewer; returns how many are left, see ``Memory.cut``."""
        keep = self._layout.index(self._memory.cut(self._layout.position(length)))
        self._layout.cut(keep)
        return keep

    def reset(self) -> None:
        """Drops every token, and zeroes the memory that held them.

        Attention adds minus infinity to the scores of dropped cells, which does not mask a NaN.
        """
        self.rewind(0)
        self._memory.clear()

    def save(self) -> bytearray:
        """Packs the cache's state, queued tokens read first; only this build can restore it."""
        self._read(None, None)
        return self._memory.save()

    def restore(self, state: bytearray, tokens: Sequence[Token]) -> None:
        """Replaces the cache by a saved state of ``tokens``; only states that this program wrote may be passed.

        Raises:
            SlipstreamError: If llama.cpp rejects the state, or one of its images is unknown; the cache is empty then.
        """
        self.rewind(0)
        layout, at = Layout(), first_image(tokens, 0, len(tokens))
        while at < len(tokens):
            image = self._image_at(tokens, at)
            layout.add(at, len(image.tokens), image.positions)
            at = first_image(tokens, at + len(image.tokens), len(tokens))
        if not self._memory.restore(state, layout.position(len(tokens))):
            raise SlipstreamError("the kept state of this chat does not fit the model.", "The chat is read again.")
        self._tokens, self._cached, self._layout = list(tokens), len(tokens), layout

    def close(self) -> None:
        self._masks.close()
        if self._context:
            C.llama_free(self._context)
            self._context = None

    def _read(self, on_chunk: Callable[[PrefillChunk], None] | None, cancelled: Callable[[], bool] | None) -> bool:
        """Decodes queued tokens in chunks; returns False if cancelled, and drops the rest."""
        total, size = len(self._tokens), _FIRST_CHUNK
        limit = min(self._chunk, self._outputs) if self._hidden.last else self._chunk
        self._cancelled = cancelled
        if cancelled:
            C.llama_set_abort_callback(self._context, self._abort, None)
        try:
            while self._cached < total:
                if cancelled and cancelled():
                    break
                end = first_image(self._tokens, self._cached, min(total, self._cached + min(size, limit)))
                if end == self._cached:
                    if not self._read_image(on_chunk):
                        break
                    continue
                chunk = self._tokens[self._cached : end]
                self._batch.prompt(chunk, self._layout.position(self._cached), output_all=self._hidden.last)
                began = time.perf_counter()
                if not self._decode():
                    break
                took = time.perf_counter() - began
                self._cached += len(chunk)
                if on_chunk:
                    on_chunk(PrefillChunk(chunk, self._cached, total, self._hidden.read(len(chunk))))
                size = max(_LEAST_CHUNK, min(2 * size, int(len(chunk) * _CHUNK_SECONDS / max(took, 1e-6))))
        finally:
            if cancelled:
                C.llama_set_abort_callback(self._context, self._no_abort, None)
                self._cancelled = None
        if self._cached < total:
            self.rewind(self._cached)
            return False
        return True

    def _padded(self, tree: TokenTree, run: int, token: Token) -> TokenTree:
        """The tree, padded with probes to one of the ``widths`` if they fit the context."""
        rows = run + len(tree)
        more = padded(rows, self.abilities.widths) - rows
        fits = len(self._tokens) + 1 + len(tree) + more <= self.abilities.n_ctx
        return tree.padded(more, token) if more and fits and self._ready else tree

    def _read_image(self, on_chunk: Callable[[PrefillChunk], None] | None) -> bool:
        """Reads the image that is queued first; returns False if it was aborted on request."""
        try:
            image = self._image_at(self._tokens, self._cached)
            C.llama_set_embeddings(self._context, False)  # otherwise each row is an output: too many
            code = image.decode(self._context, self._layout.position(self._cached))
        except SlipstreamError:
            self.rewind(self._cached)
            raise
        finally:
            C.llama_set_embeddings(self._context, self._hidden.last)
        if not self._took(code, 1):
            return False
        self._layout.add(self._cached, len(image.tokens), image.positions)
        self._cached += len(image.tokens)
        if on_chunk:
            on_chunk(PrefillChunk(image.tokens, self._cached, len(self._tokens)))
        return True

    def _image_at(self, tokens: Sequence[Token], start: int) -> ImageChunk:
        """The image whose tokens begin at an index.

        Raises:
            SlipstreamError: If it is unknown.
        """
        if self._images is None:
            raise SlipstreamError("this model is loaded without its mmproj file.", "Load it again with --mmproj FILE.")
        return self._images.chunk_at(tokens, start)

    def _decode(self) -> bool:
        """Runs the batch; returns False if it was aborted on request."""
        return self._took(C.llama_decode(self._context, self._batch.batch), self._batch.batch.n_tokens)

    def _took(self, code: int, rows: int) -> bool:
        """Handles the return code of a pass over ``rows`` rows; returns False if it was aborted on request."""
        if code == 0:
            self._memory.wrote(rows)
            return True
        self._memory.failed()
        queued = self._tokens[self._cached :]
        self.rewind(self._cached)  # rows that were processed before the failure must go
        self._tokens.extend(queued)
        if code == 2:
            return False
        why = "no room in the KV cache" if code == 1 else f"llama_decode returned {code}"
        kind = SlipstreamError if code == 1 else EvaluationError  # a full cache is no fault of the device
        raise kind(f"the model could not be evaluated: {why}.", "Start a new chat, or load the model again.")
