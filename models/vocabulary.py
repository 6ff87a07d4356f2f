"""Vocabularies: whether two models share one, and the bytes that a token stands for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from slipstream.models.errors import UsageError
from slipstream.models.gguf import Header
from slipstream.models.quoting import quoted
from slipstream.models.types import Token

MAX_SIZE_DIFFERENCE: Final = 128  # models pad their vocabularies; llama.cpp allows as much
FIRST_COMPARED: Final = 5  # special tokens stand below, under varying names; llama.cpp begins here too

UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
BYTE: Final = 6
NORMAL: Final = 1

_SPACE: Final = "\u2581"


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


class Pieces:
    """The bytes of each token, from the header alone; a character may be spread over several tokens."""

    def __init__(self, header: Header) -> None:
        """Remembers the vocabulary; bytes are worked out when they are first asked for.

        Args:
            header: Of the model whose tokens are meant.
        """
        self._tokens = header.tokens
        self._types = header.token_types
        self._kind = header.tokenizer_model
        self._known: dict[Token, bytes] = {}

    def bytes_of(self, token: Token, control: bool = False) -> bytes:
        """Returns what a token adds to the text.

        Args:
            token: Its id; the empty bytes come back for one that the vocabulary does not have.
            control: Whether a control token gives its name; otherwise it gives nothing.
        """
        if not 0 <= token < len(self._tokens):
            return b""
        kind = self._types[token] if self._types else NORMAL
        if kind in (CONTROL, UNKNOWN):
            return self._tokens[token].encode() if control else b""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._spelled(self._tokens[token], kind)
        return known

    def _spelled(self, text: str, kind: int) -> bytes:
        if kind == BYTE:
            return bytes.fromhex(text[3:5])
        if kind == USER_DEFINED:
            return text.encode()
        if kind != NORMAL:
            return b""
        if self._kind == "gpt2":
            alphabet = byte_alphabet()
            return b"".join(alphabet.get(char) or char.encode() for char in text)
        if self._kind == "rwkv":
            return _unescaped(text)
        return text.replace(_SPACE, " ").encode()


@lru_cache(maxsize=1)
def byte_alphabet() -> Mapping[str, bytes]:
    """Returns GPT-2's byte-level alphabet: the printable character that stands for each byte.

    Source: ``bytes_to_unicode`` in https://github.com/openai/gpt-2.
    """
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    alphabet = {chr(byte): bytes([byte]) for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    alphabet |= {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
    return MappingProxyType(alphabet)


def _unescaped(text: str) -> bytes:
    r"""Reads the escapes of RWKV's vocabulary: ``\n``, ``\t``, ``\r``, ``\xNN``, and a backslash before others."""
    out = bytearray()
    place = 0
    while place < len(text):
        char, following = text[place], text[place + 1 : place + 2]
        if char == "\\" and following == "x" and _is_hex(text[place + 2 : place + 4]):
            out.append(int(text[place + 2 : place + 4], 16))
            place += 4
        elif char == "\\" and following:
            out += {"n": "\n", "t": "\t", "r": "\r"}.get(following, following).encode()
            place += 2
        else:
            out += char.encode()
            place += 1
    return bytes(out)


def _is_hex(digits: str) -> bool:
    return len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits)


def _kind(header: Header) -> str:
    return quoted(header.tokenizer_model) if header.tokenizer_model else "missing"


def _added(added: bool, token: Token | None) -> str:
    return f"token {token}, added" if added else "not added"
