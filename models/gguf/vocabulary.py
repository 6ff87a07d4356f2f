"""The role of a model file, and the differences between two vocabularies."""

import hashlib
from typing import Final, Literal

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.architectures import mtp_only
from slipstream.models.gguf.reader import Header
from slipstream.models.outside import quoted, shown_path

MAX_SIZE_DIFFERENCE: Final = 128  # models pad their vocabularies; llama.cpp has the same limit
FIRST_COMPARED: Final = 5  # the first ids are special tokens with varying names; llama.cpp starts here too
_NONE: Final = (None, "none", "no_vocab")
# in names of control tokens that templates use, so that they were trained
_TURNS: Final = ("im_", "end", "eot", "start", "begin")
_TOKENIZER: Final = "tokenizer.ggml."
_SPECIAL: Final = ("_token", "_token_id")  # keys of BOS, EOS and padding, which differ between uploads of one model
_UNUSED_TYPE: Final = 5  # llama_token_type
Role = Literal["chat", "drafter", "other"]
"""The use of a file: a model to chat with, heads that only draft for another model, or neither (a projector)."""
HEADS_ARCHITECTURE: Final = "slipstream-heads"  # architecture of Slipstream's files of trained heads
_DRAFT_ONLY: Final = frozenset({HEADS_ARCHITECTURE, "eagle3", "dflash", "dspark"})
_DRAFT_ONLY_ENDINGS: Final = ("-assistant", "_assistant")  # Gemma 4's MTP heads, under both spellings
_NO_CHAT: Final = frozenset({"clip", "t5encoder", "wavtokenizer-dec", "gemma-embedding"})
_ENCODERS: Final = "bert"  # architectures with this ending compute embeddings


def role_of(header: Header) -> Role:
    """The role of a file by its architecture or, for heads that llama.cpp finds by file name, by its name."""
    architecture = header.architecture
    if architecture in _DRAFT_ONLY or architecture.endswith(_DRAFT_ONLY_ENDINGS):
        return "drafter"
    if architecture in _NO_CHAT or architecture.endswith(_ENCODERS):
        return "other"
    return "drafter" if mtp_only(header) or header.path.name.lower().startswith("mtp-") else "chat"


def check_vocabulary(header: Header) -> None:
    """Refuses a file that cannot generate text by itself: llama.cpp would fail, or abort the process."""
    if role_of(header) == "drafter":
        raise ModelFileError(
            f"{shown_path(header.path)} is a drafter's file ({quoted(header.architecture)[1:-1]}), not a model.",
            "Name the model that it drafts for; slipstream drafters import takes the drafter in.",
        )
    if header.tokenizer_model in _NONE:
        raise ModelFileError(
            f"{shown_path(header.path)} has no vocabulary to chat with.", "Get another conversion of the model."
        )


def vocabulary_digest(header: Header) -> str:
    """Digest, in hex, of everything that ``vocabulary_difference`` compares; equal digests mean equal vocabularies."""
    added = (_added(header.add_bos, header.bos), _added(header.add_eos, header.eos))
    digest = hashlib.sha256(f"{header.tokenizer_model} {header.n_vocab} {added}".encode())
    digest.update("\0".join(header.tokens[FIRST_COMPARED:]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def tokenizer_digest(header: Header) -> str:
    """SHA-256, in hex, of the metadata that decide how plain text is tokenized."""
    keys = sorted(key for key in header.metadata if key.startswith(_TOKENIZER) and not key.endswith(_SPECIAL))
    return hashlib.sha256("".join(repr((key, header.metadata[key])) for key in keys).encode()).hexdigest()


def vocabulary_difference(target: Header, draft: Header) -> str:
    """The first difference of two vocabularies, to follow "vocabularies differ:"; empty if there is none."""
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


def other_vocabulary(target: Header, head: Header) -> str:
    """How a head's vocabulary differs from the target's, but for a few names, such as a mask's; empty if not at all."""
    pairs = enumerate(zip(target.tokens, head.tokens, strict=False))
    differing = [token for token, (ours, theirs) in pairs if ours != theirs]
    if len(differing) <= min(MAX_SIZE_DIFFERENCE, target.n_vocab // 16):
        return ""
    first = differing[0]
    return f"token {first:,} is {quoted(target.tokens[first])} in one and {quoted(head.tokens[first])} in the other"


def _named(token: int | None) -> str:
    return "none" if token is None else f"{token:,}"


def _added(added: bool, token: int | None) -> int | None:
    return token if added else None


def spare_token(header: Header) -> int:
    """A token that stands for none, its logit always low: an unused one, else a control token that ends nothing."""
    special = {value for key, value in header.metadata.items() if key.endswith("_token_id")}
    for kinds in ((_UNUSED_TYPE,), (3,), (2,)):  # unused, control, unknown
        for token in reversed(range(len(header.token_types))):
            turn = any(word in header.tokens[token] for word in _TURNS)
            if header.token_types[token] in kinds and token not in special and not turn:
                return token
    return header.n_vocab - 1
