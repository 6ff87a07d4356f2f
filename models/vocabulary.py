"""Whether two models share a vocabulary."""

from __future__ import annotations

from typing import Final

from slipstream.models.errors import UsageError
from slipstream.models.gguf import Header
from slipstream.models.quoting import quoted
from slipstream.models.types import Token

MAX_SIZE_DIFFERENCE: Final = 128  # models pad their vocabularies; llama.cpp allows as much
FIRST_COMPARED: Final = 5  # special tokens stand below, under varying names; llama.cpp begins here too


def check_same_vocabulary(target: Header, draft: Header) -> None:
    """Checks that a draft model's tokens mean to the target what they mean to it, by llama.cpp's rule.

    Raises:
        UsageError: If they do not; it names the first difference.
    """
    hint = "Pick a draft model of the same family, or draft with lookup, which needs none."
    if target.tokenizer_model != draft.tokenizer_model:
        raise UsageError(
            f"the draft model's tokenizer is of another kind: {_kind(draft)}, but the target's is {_kind(target)}.",
            hint,
        )
    for token, (ours, theirs) in enumerate(zip(target.tokens, draft.tokens, strict=False)):
        if ours != theirs and token >= FIRST_COMPARED:
            raise UsageError(
                f"the draft model's vocabulary differs: token {token} is {quoted(theirs)}, "
                f"but the target's is {quoted(ours)}.",
                hint,
            )
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        raise UsageError(
            f"the draft model has {draft.n_vocab:,} tokens, but the target has {target.n_vocab:,}; "
            f"they may differ by {MAX_SIZE_DIFFERENCE}.",
            hint,
        )
    for name, ours_added, theirs_added, ours_id, theirs_id in (
        ("bos", target.add_bos, draft.add_bos, target.bos, draft.bos),
        ("eos", target.add_eos, draft.add_eos, target.eos, draft.eos),
    ):
        if ours_added != theirs_added or (ours_added and ours_id != theirs_id):
            raise UsageError(
                f"the draft model's {name} token differs: {_added(theirs_added, theirs_id)}, "
                f"but the target's is {_added(ours_added, ours_id)}.",
                hint,
            )


def _kind(header: Header) -> str:
    return quoted(header.tokenizer_model) if header.tokenizer_model else "missing"


def _added(added: bool, token: Token | None) -> str:
    return f"token {token}, added" if added else "not added"
