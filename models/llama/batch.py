"""One reusable llama.cpp batch, filled through numpy."""

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.models.llama.library import pointer_to
from slipstream.models.llama.mask_rows import MaskRows
from slipstream.models.types import Floats, Token, TokenTree

_SECTIONS: Final = 4  # positions of one row with M-RoPE


class Batch:
    """A ``llama_batch`` of up to ``rows`` rows, stored in numpy arrays.

    A row's sequences are the leaves below it. In a depth-first tree these are consecutive, so every row's list of
    sequences points into one constant array 0, 1, 2, ...
    """

    def __init__(self, rows: int, sequences: int) -> None:
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(_SECTIONS * rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._lists = np.zeros(rows, np.uintp)
        self._outputs = np.zeros(rows, np.int8)
        self._numbers = np.arange(sequences, dtype=np.int32)
        self._origin = self._numbers.ctypes.data
        self.batch = C.llama_batch()
        fields = dict(C.llama_batch._fields_)
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._lists),
            ("logits", self._outputs),
        ):
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, fields[name]))
        self._by_token = ctypes.cast(self._tokens.ctypes.data, fields["token"])  # a copy: the field changes
        self._vectors: Floats | None = None  # [rows, n_embd], once there are masks

    def prompt(self, tokens: Sequence[Token], position: int, output_all: bool) -> None:
        """Fills in a run of prompt tokens of sequence 0."""
        count = len(tokens)
        self.batch.token, self.batch.embd = self._by_token, None
        self._tokens[:count] = tokens
        self._positions[:count] = np.arange(position, position + count, dtype=np.int32)
        self._counts[:count] = 1
        self._lists[:count] = self._origin
        self._outputs[:count] = output_all
        self.batch.n_tokens = count

    def tree(self, run: Sequence[Token], position: int, tree: TokenTree, leaves: int, *, output_all: bool) -> None:
        """Fills in a run of tokens that all leaves share, and a tree below its last token.

        That token and the tree have outputs. With ``output_all``, the rest of the run has outputs too; llama.cpp would
        otherwise add them and log a warning.
        """
        shared, count = len(run), len(run) + len(tree)
        root = position + shared - 1
        self.batch.token, self.batch.embd = self._by_token, None
        # one assignment per array: for a few rows, each numpy call costs more than the rows
        self._tokens[:count] = [*run, *tree.tokens]
        self._positions[:count] = [*range(position, root + 1), *(root + depth for depth in tree.depths)]
        self._outputs[:count] = [output_all] * (shared - 1) + [1] * (count - shared + 1)
        spans = zip(tree.first_leaves, tree.last_leaves, strict=True)
        self._counts[:count] = [leaves] * shared + [last - first + 1 for first, last in spans]
        starts = [self._origin + 4 * first for first in tree.first_leaves]  # a sequence number has 4 bytes
        self._lists[:count] = [self._origin] * shared + starts
        self.batch.n_tokens = count

    def beside(self, tokens: Sequence[Token], position: int, sequences: Sequence[int]) -> None:
        """Fills in rows at the same position, each in one sequence; all have outputs."""
        count = len(tokens)
        self.batch.token, self.batch.embd = self._by_token, None
        self._tokens[:count] = tokens
        self._positions[:count] = position
        self._counts[:count] = 1
        self._lists[:count] = [self._origin + 4 * sequence for sequence in sequences]  # a sequence number has 4 bytes
        self._outputs[:count] = 1
        self.batch.n_tokens = count

    def vectors(self, rows: Floats, position: int, sections: int = 1) -> None:
        """Fills in vectors of sequence 0, without outputs; they must stay in memory until the batch has run.

        With M-RoPE there are four ``sections``, copies of all positions.
        """
        count = len(rows)
        self.prompt([0] * count, position, output_all=False)
        self._positions[: sections * count] = np.tile(np.arange(position, position + count), sections)
        self.batch.token, self.batch.embd = None, pointer_to(rows)

    def by_vector(self, rows: MaskRows) -> None:
        """Replaces the tokens of the batch with vectors: a batch with a mask may contain vectors only."""
        count = self.batch.n_tokens
        if self._vectors is None:
            self._vectors = np.empty((len(self._tokens), rows.width), np.float32)
        rows.fill(self._tokens[:count].tolist(), self._vectors)
        self.batch.token, self.batch.embd = None, pointer_to(self._vectors)
