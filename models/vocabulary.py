"""What two models' vocabularies have to do with each other."""

from __future__ import annotations

from typing import Final

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf import Header

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
    return (
        target.tokenizer_model == draft.tokenizer_model
        and abs(target.n_vocab - draft.n_vocab) <= MAX_SIZE_DIFFERENCE
        and all(
            ours == theirs
            for ours, theirs in zip(target.tokens[FIRST_COMPARED:], draft.tokens[FIRST_COMPARED:], strict=False)
        )
        and _added(target.add_bos, target.bos) == _added(draft.add_bos, draft.bos)
        and _added(target.add_eos, target.eos) == _added(draft.add_eos, draft.eos)
    )


def _added(added: bool, token: int | None) -> int | None:
    """The token if it is added to texts, else None."""
    return token if added else None
