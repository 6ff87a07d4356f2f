"""The KV cache of a llama.cpp context: the committed tokens, and their cells in each sequence."""

from collections.abc import Sequence
from typing import Final

from llama_cpp import llama_cpp as C

from slipstream.models.errors import EvaluationError, SlipstreamError
from slipstream.models.llama.image_layout import Images, Layout, NoImages, first_image
from slipstream.models.llama.memory import Memory
from slipstream.models.types import Token, TokenTree


class KvCache:
    """The committed tokens and their cells.

    Sequence 0 is the conversation's. The other sequences hold the branches of a tree; ``branch`` copies the positions
    that they lack from sequence 0.
    """

    def __init__(self, memory: Memory, sequences: int, same_text: bool) -> None:
        self.memory: Final = memory
        self.tokens: list[Token] = []
        self.cached = 0  # number of tokens in sequence 0; the tokens after them are queued
        # images of the cached tokens; converts counts of tokens to the positions that memory calls take
        self.layout = Layout()
        self.images: Images = NoImages()  # encodes the images of prompts
        # last token, tree and number of sequences of an evaluation before its ``keep``; None after it
        self.open: tuple[Token, TokenTree, int] | None = None
        self._same_text = same_text
        self._in_step = [0] * sequences  # number of tokens that each sequence shares with sequence 0
        self._jumped = False  # whether tokens were fed or cut since the last ``mark``

    def feed(self, tokens: Sequence[Token]) -> None:
        self.tokens.extend(tokens)
        self._jumped = True

    def branch(self, leaves: int) -> None:
        """Copies the tokens of sequence 0 to the first ``leaves`` sequences, where they lack them."""
        at = self.layout.position
        cached = at(self.cached)
        for sequence in range(1, leaves):
            if self._in_step[sequence] < self.cached:
                C.llama_memory_seq_cp(self.memory.pointer, 0, sequence, at(self._in_step[sequence]), cached)
                self._in_step[sequence] = self.cached

    def passed(self, code: int, rows: int) -> bool:
        """Handles the return code of a pass over ``rows`` rows; returns False if the caller aborted the pass."""
        if code == 0:
            self.memory.wrote(rows)
            return True
        self.memory.failed()
        queued = self.tokens[self.cached :]
        self.rewind(self.cached)  # drops the rows that were processed before the failure
        self.tokens.extend(queued)
        if code == 2:
            return False
        why = "no room in the KV cache" if code == 1 else f"llama_decode returned {code}"
        kind = SlipstreamError if code == 1 else EvaluationError  # a full cache is not a device failure
        raise kind(f"the model could not be evaluated: {why}.", "Start a new chat, or load the model again.")

    def keep(self, path: Sequence[int]) -> None:
        """Commits the open token and the nodes of ``path``, and drops the other rows; see ``LlamaTarget.keep``."""
        if self.open is None:
            raise RuntimeError("nothing to keep: evaluate() first")
        last, tree, leaves = self.open
        self.open = None
        after = len(self.tokens) + 1
        in_first = sum(1 for node in path if tree.first_leaves[node] == 0)
        end = after + in_first
        self.tokens.append(last)
        self.tokens.extend(tree.tokens[node] for node in path)
        memory, at = self.memory.pointer, self.layout.position
        if len(path) > in_first and not self._same_text:
            self.cached = len(self.tokens)
            C.llama_memory_seq_rm(memory, 0, at(end), -1)
            C.llama_memory_seq_cp(memory, tree.first_leaves[path[-1]], 0, at(end), at(self.cached))
            for sequence in range(1, leaves):
                C.llama_memory_seq_rm(memory, sequence, at(after), -1)
                self._in_step[sequence] = after
            return
        self.cached = self._cut(end) if len(tree) > in_first else end
        if self._jumped and not tree.drafted:  # a draft model may decode guesses one by one after this, then roll back
            self.mark()
        shared = in_first
        for sequence in range(1, leaves):  # each sequence shares at most as much of the path as the previous one
            while shared and tree.last_leaves[path[shared - 1]] < sequence:
                shared -= 1
            if shared < in_first:
                C.llama_memory_seq_rm(memory, sequence, at(after + shared), at(end))
            self._in_step[sequence] = after + shared

    def mark(self) -> None:
        self.memory.mark(self.layout.position(self.cached))
        self._jumped = False

    def rewind(self, length: int) -> None:
        self.open, self._jumped = None, True
        length = self.layout.whole(length)
        if length < len(self.tokens):
            del self.tokens[length:]
        keep = self._cut(min(length, self.cached))
        self._in_step = [min(shared, keep) for shared in self._in_step]
        self.cached = keep

    def restore(self, state: bytearray, tokens: Sequence[Token]) -> None:
        self.rewind(0)
        layout, at = Layout(), first_image(tokens, 0, len(tokens))
        while at < len(tokens):
            image = self.images.chunk_at(tokens, at)
            layout.add(at, len(image.tokens), image.positions)
            at = first_image(tokens, at + len(image.tokens), len(tokens))
        if not self.memory.restore(state, layout.position(len(tokens))):
            raise SlipstreamError("the kept state of this chat does not fit the model.", "The chat is read again.")
        self.tokens, self.cached, self.layout = list(tokens), len(tokens), layout

    def _cut(self, length: int) -> int:
        """Cuts the memory to ``length`` tokens or fewer, see ``Memory.cut``; returns how many are left."""
        keep = self.layout.index(self.memory.cut(self.layout.position(length)))
        self.layout.cut(keep)
        return keep
