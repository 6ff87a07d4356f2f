"""The bundled tokenizer: byte-level BPE with GPT-2's pre-tokenizer, and the chat template's ids."""

from collections.abc import Iterable
from pathlib import Path

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from slipstream.drafters.training.family.chats import Chat

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
CONTROL = (END_OF_TEXT, START, END, *(f"<|reserved_{i}|>" for i in range(16)))
"""Ids 0 to 18; no text contains the reserved ones."""

START_ID = CONTROL.index(START)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Jinja; written to the GGUF. ``ChatEncoder`` encodes its pieces."""

REPLY_WEIGHT = 1.0  # loss weight of text that the model writes
PROMPT_WEIGHT = 0.3  # loss weight of text that it only reads


def train(texts: Iterable[str], size: int = 4096) -> Tokenizer:
    """Trains the tokenizer.

    Args:
        texts: Text to learn merges from, one message or story each.
        size: Number of ids, including the control tokens and the 256 bytes.
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def from_gguf(path: Path) -> Tokenizer:
    """Reads the tokenizer from a model of this recipe, so that its training can continue from the file alone."""
    fields = gguf.GGUFReader(path).fields
    tokens, merges = (fields[f"tokenizer.ggml.{part}"].contents() for part in ("tokens", "merges"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = _byte_level(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    return tokenizer


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Reads a tokenizer that ``Tokenizer.save`` wrote."""
    return Tokenizer.from_file(str(path))


class ChatEncoder:
    """Encodes chats piece by piece, so that no merge crosses from the template into the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # a pasted "<|im_end|>" must stay text, as it does in the engine
        self._heads = {role: self.ids(f"{role}\n") for role in ("system", "user", "assistant")}
        self._newline = self.ids("\n")
        self._end_of_text, self._start, self._end = (CONTROL.index(t) for t in (END_OF_TEXT, START, END))

    def ids(self, text: str) -> list[int]:
        """Ids of plain text; a control token in it is encoded as text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, chat: Chat) -> tuple[list[int], list[float]]:
        """Ids and loss weights of one chat or running text, closed by the end-of-text id.

        Weight i is that of predicting id i. Template pieces weigh 0, but ``<|im_end|>`` weighs as much as its message.
        """
        ids: list[int] = []
        weights: list[float] = []
        for message in chat:
            content = self.ids(message["content"].strip())
            if message["role"] == "text":
                return [*content, self._end_of_text], [REPLY_WEIGHT] * (len(content) + 1)
            weight = REPLY_WEIGHT if message["role"] == "assistant" else PROMPT_WEIGHT
            head = [self._start, *self._heads[message["role"]]]
            ids += [*head, *content, self._end, *self._newline]
            weights += [0.0] * len(head) + [weight] * (len(content) + 1) + [0.0] * len(self._newline)
        return [*ids, self._end_of_text], [*weights, 0.0]

    def prompt(self, chat: Chat) -> list[int]:
        """Ids of a chat up to the start of the model's reply."""
        ids = self.encode(chat)[0][:-1]
        return [*ids, self._start, *self._heads["assistant"]]
