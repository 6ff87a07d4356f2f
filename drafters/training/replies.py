"""Generates many replies at once, one row per reply in each pass, to make training text."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.library import rows_at
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token


@dataclass(slots=True)
class _Slot:
    number: int
    prompt: Sequence[Token]
    history: History
    sampler: Sampler


class ManyReplies:
    """Generates replies of one model in parallel, each in its own sequence.

    Where memory bandwidth limits decoding, a pass over many rows costs little more than a pass over one row. On a CPU
    it still costs less than one pass per row.
    """

    def __init__(self, model: LlamaModel, side_by_side: int, n_ctx: int, options: ContextOptions) -> None:
        """Opens a context; ``n_ctx`` holds one prompt with its reply, and there are ``side_by_side`` of them."""
        self._model, self._n_ctx = model, n_ctx
        params = options.params(n_ctx * side_by_side)
        params.n_seq_max, params.kv_unified = side_by_side, False  # each sequence attends to its own cells only
        params.n_outputs_max = params.n_outputs_max_per_seq = side_by_side
        self._context = C.llama_init_from_model(model.pointer, params)
        if not self._context:
            raise SlipstreamError(
                f"there is not enough memory for {side_by_side} replies at a time.", "Close other programs."
            )
        self._memory = C.llama_get_memory(self._context)
        self._chunk = params.n_batch
        self._batch = C.llama_batch_init(max(self._chunk, side_by_side), 0, 1)
        self._free = list(range(side_by_side))

    def replies(
        self, prompts: Iterator[tuple[Sequence[Token], Sampler]], most: int, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[Sequence[Token], list[Token]]]:
        """Yields (prompt, reply) as replies end, in no fixed order.

        A reply depends only on its prompt and sampler, except for rounding in wider passes.

        Args:
            prompts: Prompts with their samplers; a prompt too long for the context is skipped.
            most: Maximum tokens of a reply; a reply that the model ends includes the end token.
            stop: Polled before each pass; True ends the run and drops incomplete replies.
        """
        slots: list[_Slot] = []
        more = True
        while (more or slots) and not stop():
            while more and self._free:
                following = next(prompts, None)
                more = following is not None
                if following and 0 < len(following[0]) <= self._n_ctx - most:
                    slots.append(self._open(*following))
            if slots:
                self._pass([(s.history.tokens[-1], len(s.history.tokens) - 1, s.number, True) for s in slots])
                rows = rows_at(C.llama_get_logits(self._context), len(slots), self._model.n_rows)
                rows = rows[:, : self._model.n_vocab]
                for slot, row in zip(slots, rows, strict=True):
                    slot.history.tokens.append(slot.sampler.pick(row, slot.history))
                ended = [s for s in slots if self._ended(s, most)]
                slots = [s for s in slots if s not in ended]
                for slot in ended:
                    C.llama_memory_seq_rm(self._memory, slot.number, -1, -1)
                    self._free.append(slot.number)
                    yield slot.prompt, slot.history.tokens[len(slot.prompt) :]
        for slot in slots:
            C.llama_memory_seq_rm(self._memory, slot.number, -1, -1)
            self._free.append(slot.number)

    def close(self) -> None:
        if self._context:
            C.llama_batch_free(self._batch)
            C.llama_free(self._context)
            self._context = None

    def _open(self, prompt: Sequence[Token], sampler: Sampler) -> _Slot:
        slot = _Slot(self._free.pop(), prompt, History(list(prompt)), sampler)
        read = prompt[:-1]  # the last token is the first row of the reply
        for at in range(0, len(read), self._chunk):
            self._pass([(t, at + i, slot.number, False) for i, t in enumerate(read[at : at + self._chunk])])
        return slot

    def _ended(self, slot: _Slot, most: int) -> bool:
        made = len(slot.history.tokens) - len(slot.prompt)
        return made >= most or slot.history.tokens[-1] in self._model.ends

    def _pass(self, rows: Sequence[tuple[Token, int, int, bool]]) -> None:
        batch, count = self._batch, len(rows)
        batch.n_tokens = count
        for name, values in zip(("token", "pos"), zip(*[row[:2] for row in rows], strict=True), strict=True):
            np.ctypeslib.as_array(getattr(batch, name), (count,))[:] = values
        np.ctypeslib.as_array(ctypes.cast(batch.logits, ctypes.POINTER(ctypes.c_int8)), (count,))[:] = [
            row[3] for row in rows
        ]
        for i, row in enumerate(rows):
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = row[2]
        code = C.llama_decode(self._context, batch)
        if code:
            raise SlipstreamError(f"the model could not be evaluated: llama_decode returned {code}.")
