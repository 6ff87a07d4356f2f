"""Finds chats by id, title, or the beginning of a title; and derives titles from first messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.app.chats.images import MARK, image_label
from slipstream.app.chats.records import StoredChat
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import UsageError

_MOST_LISTED = 5


def has_name(chat: StoredChat, name: str) -> bool:
    """Whether a name is a chat's id or its whole title, ignoring case."""
    return _normalized(name) in (_normalized(chat.id), _normalized(chat.title))


def find_by_name(chats: Sequence[StoredChat], name: str) -> list[StoredChat]:
    """Finds chats by id, else by the whole title, else by its beginning."""
    begin = _normalized(name)
    if not begin:
        return []
    return (
        [chat for chat in chats if chat.id == name]
        or [chat for chat in chats if has_name(chat, name)]
        or [chat for chat in chats if _normalized(chat.title).startswith(begin)]
    )


def require_one(found: Sequence[StoredChat], name: str) -> StoredChat:
    """Returns the only chat found; raises ``UsageError`` for several, with a hint that lists them."""
    if len(found) == 1:
        return found[0]
    named = "; ".join(id_and_title(chat) for chat in found[:_MOST_LISTED])
    more = f"; and {len(found) - _MOST_LISTED:,} more" if len(found) > _MOST_LISTED else ""
    raise UsageError(
        f'"{one_line(name)}" matches {len(found):,} chats.',
        f"Use the id of one, the first word here: {named}{more}.",
    )


def id_and_title(chat: StoredChat) -> str:
    return f"{chat.id} ({one_line(chat.title)})" if chat.title else chat.id


def _normalized(text: str) -> str:
    return one_line(text).casefold()


LENGTH = 48  # maximum characters of a title
LEAST_LENGTH = 12  # minimum characters of a clause that becomes a title

_READ = 20_000  # characters of a message that are searched for its title; few, since the screen waits

_FENCE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ADDRESS = re.compile(r"https?://(?:www\.)?([^\s/?#]+)\S*")
_LINE_MARKS = re.compile(r"^\s*(?:#{1,6}\s|>+\s?|[-*+]\s|\d+[.)]\s)", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|`+|~~)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_GREETING = re.compile(
    r"^(?:(?:hi|hello|hey|hallo|good (?:morning|afternoon|evening)|dear \w+|ok(?:ay)?|so|well|please|thanks|thank you)"
    r"(?:\s+(?:there|all|everyone|again|you))?(?:\s*[,.!:;–-]+\s*|\s+|$))+",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please |kindly |maybe )?(?:help me (?:to )?|tell me |show me )?"
    r"|i(?: would|'d) like (?:you )?to (?:know )?|i (?:want|need) (?:you )?to |i have a question(?: about)?[:,. ]*"
    r"|help me (?:to )?|tell me |please )(?=\w)",
    re.IGNORECASE,
)
_LOOSE_END = re.compile(
    r"(?:\s+(?:a|an|and|as|at|by|for|from|how|in|is|it|its|my|of|on|or|that|the|to|which|with|your))+$"
)
_CLAUSE = re.compile(r"[.!?…](?=\s|$)|[:;](?=\s)|\s[–—-]\s|\n(?!\s*[a-z])|[。！？]")


def title_of(text: str) -> str:
    """Makes a title from the first clause of a message, without greeting and markup."""
    text = (MARK.sub("", text[:_READ]).strip() or image_label(text))[:_READ]
    plain = _ADDRESS.sub(r"\1", _LINK.sub(r"\1", _FENCE.sub("\n", text)))
    plain = _EMPHASIS.sub(r"\2", _LINE_MARKS.sub("", plain)).strip()
    if not plain:  # only code
        return _cut(next((line for line in text.splitlines()[1:] if line.strip(" `~")), text).strip())
    greeted = _without(_GREETING, plain)
    plain = _without(_ASKING, greeted)
    clause = " ".join(_first_clause(plain).split()).rstrip(" ,;:.。" if plain == greeted else " ,;:.。?")
    return _cut(clause[:1].upper() + clause[1:])


def _cut(clause: str) -> str:
    if len(clause) <= LENGTH:
        return clause
    cut = clause[: LENGTH - 1]
    comma, space = cut.rfind(", "), cut.rfind(" ")
    end = comma if comma >= LEAST_LENGTH else space if space >= LEAST_LENGTH else len(cut)
    return _LOOSE_END.sub("", cut[:end].rstrip(" ,;:")) + "…"


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Removes a pattern at the start, unless nothing would be left."""
    return pattern.sub("", text, count=1).strip() or text


def _first_clause(text: str) -> str:
    for end in _CLAUSE.finditer(text):
        keep = end.end() if end.group() in "?!？！" else end.start()
        if len(text[:keep].strip()) >= LEAST_LENGTH or "\n" in end.group():
            return text[:keep]
    return text
