"""What two models' vocabularies have to do with each other."""

from __future__ import annotations

import hashlib
from typing import Final

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf import Header
from slipstream.models.quoting import quoted

MAX_SIZE_DIFFERENCE: Final = 128  # models pad their vocabularies; llama.cpp allows as much
FIRST_COMPARED: Final = 5  # special tokens stand below, under varying names; llama.cpp begins here too
_NONE: Final = (None, "none", "no_vocab")


def check_vocabulary(header: Header) -> None:
    """Refuses a model that cannot tokenize: to ask llama.cpp for it would abort the process.

    Raises:
        ModelFileError: If it has no tokenizer.
    """
    if header.tokenizer_model in _NONE:
        raise ModelFileError(f"{header.path} has no vocabulary to chat with.", "Get another conversion of the model.")


def same_vocabulary(target: Header, draft: Header) -> bool:
    """Whether a draft model's tokens mean to the target what they mean to it, by llama.cpp's rule."""
    return not vocabulary_difference(target, draft)


def vocabulary_digest(header: Header) -> str:
    """Names all that ``same_vocabulary`` compares, in hex: models with one digest have one vocabulary."""
    added = (_added(header.add_bos, header.bos), _added(header.add_eos, header.eos))
    digest = hashlib.sha256(f"{header.tokenizer_model} {header.n_vocab} {added}".encode())
    digest.update("\0".join(header.tokens[FIRST_COMPARED:]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def vocabulary_difference(target: Header, draft: Header) -> str:
    """Says where two vocabularies first differ, in words that follow "vocabularies differ:"; empty if they do not."""
    if target.tokenizer_model != draft.tokenizer_model:
        return f"tokenizers are {target.tokenizer_model} and {draft.tokenizer_model}"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"they have {target.n_vocab:,} and {draft.n_vocab:,} tokens"
    for token, (ours, theirs) in enumerate(zip(target.tokens, draft.tokens, strict=False)):
        if ours != theirs and token >= FIRST_COMPARED:
            return f"token {token:,} is {quoted(ours)} in one and {quoted(theirs)} in the other"
    for place, one, other in (
        ("first", _added(target.add_bos, target.bos), _added(draft.add_bos, draft.bos)),
        ("last", _added(target.add_eos, target.eos), _added(draft.add_eos, draft.eos)),
    ):
        if one != other:
            return f"the token that is put {place} is {_named(one)} in one and {_named(other)} in the other"
    return ""


def _named(token: int | None) -> str:
    return "none" if token is None else f"{token:,}"


def _added(added: bool, token: int | None) -> int | None:
    """The token if it is added to texts, else None."""
    return token if added else None
