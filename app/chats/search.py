"""Finds words in messages and titles, and makes snippets."""

import re
import sqlite3
import unicodedata
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any, Final

from slipstream.app.chats.records import TITLE_LIMIT, bounded, moment, text_of
from slipstream.app.platform.safe_text import one_line

AROUND: Final = 12  # words of a snippet
_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters, which visible text does not contain
# scripts without spaces between words, where the index finds only whole runs of letters
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_ACCENTS: Final = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f]")  # not the marks that make other letters
_FIRST_OTHER: Final = "\u0370"  # Greek; Latin letters come before it
_LONGEST: Final = 2 * TITLE_LIMIT
_SNIPPETS: Final = 50_000  # characters from which SQLite takes long for a snippet
_SIDE: Final = 30  # characters before a found word in a snippet of such a script


@dataclass(frozen=True, slots=True)
class Hit:
    """A message or title that contains the words."""

    chat: str
    title: str
    message: int | None  # None for a title
    role: str  # the role of the message; empty for a title
    snippet: str  # the text around the words, in one line that is safe to show
    spans: tuple[tuple[int, int], ...]  # the words in it, as ``(start, end)``
    created: float  # time of the message, or of the chat's newest message
    writer: str = ""  # name of the model that wrote the message, or empty


def find(db: sqlite3.Connection, words: str, limit: int) -> list[Hit]:
    words = words.replace(_OPEN, "").replace(_CLOSE, "")
    if not any(char.isalnum() for char in words):
        return []
    folded = [_folded(part) for part in _normal(words).split() if any(map(str.isalnum, part))]
    if _UNSPACED.search(_normal(words)):
        return _anywhere(db, folded, limit)
    query = " ".join(
        '"' + part.replace('"', '""').replace("\0", " ") + '"*' for part in words.split() if any(map(str.isalnum, part))
    )
    titles = db.execute(
        "SELECT chats.id, chats.title, NULL, '', chats.updated, highlight(title_words, 0, ?, ?) "
        "FROM title_words JOIN chats ON chats.id = title_words.chat "
        "WHERE title_words MATCH ? AND deleted IS NULL ORDER BY updated DESC LIMIT ?",
        (_OPEN, _CLOSE, query, limit),
    ).fetchall()
    messages = db.execute(
        "SELECT chats.id, chats.title, messages.id, role, messages.created, CASE WHEN length(messages.content) < ? "
        "THEN snippet(message_words, 0, ?, ?, '…', ?) END, messages.content, messages.writer "
        "FROM message_words JOIN messages ON messages.id = message_words.rowid JOIN chats ON chats.id = messages.chat "
        "WHERE message_words MATCH ? AND deleted IS NULL ORDER BY message_words.rowid DESC LIMIT ?",
        (_SNIPPETS, _OPEN, _CLOSE, AROUND, query, limit - len(titles)),
    )
    found = [_hit(row[:5], row[5]) for row in titles]
    found += [_hit(row[:5], row[5] or _marked(text_of(row[6]), folded), row[7]) for row in messages]
    if len(found) < limit and (not words.isascii() or _mixes_scripts(db)):
        known = {(hit.chat, hit.message) for hit in found}
        found += [hit for hit in _anywhere(db, folded, limit, glued=True) if (hit.chat, hit.message) not in known]
    return found[:limit]


def _mixes_scripts(db: sqlite3.Connection) -> bool:
    """Whether any word of the index begins with a letter that is not Latin; such a word may hold Latin ones."""
    try:
        for name in ("message", "title"):
            db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{name}_terms USING fts5vocab(main, {name}_words, row)")
            if db.execute(f"SELECT 1 FROM temp.{name}_terms WHERE term >= ? LIMIT 1", (_FIRST_OTHER,)).fetchone():
                return True
    except sqlite3.Error:  # temporary tables may be forbidden
        return True
    return False


def _normal(text: str) -> str:
    """Text in composed form, with the usual letters for wide, narrow and joined ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _folded(normal: str) -> str:
    """Text without case and accents, as long as before."""
    return (normal if normal.isascii() else _accented().sub(lambda found: _letter(found[0]), normal)).lower()


@cache
def _accented() -> re.Pattern[str]:
    """Finds the letters that lose more than their case."""
    letters = map(chr, range(0xC0, 0x2000))
    return re.compile(f"[{''.join(char for char in letters if _letter(char) != char.lower())}]")


@cache
def _letter(char: str) -> str:
    bare = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", char))).casefold()
    return bare if len(bare) == 1 else char


def _glued(part: str, text: str) -> bool:
    """Whether a word stands in a text at the begin of a word, or behind a letter of another script."""
    at = text.find(part)
    while at >= 0:
        before = text[at - 1 : at]
        if not before.isalnum() or _script(before) != _script(part):
            return True
        at = text.find(part, at + 1)
    return False


def _script(text: str) -> str:
    return unicodedata.name(text[0], "").split(" ")[0].replace("DIGIT", "LATIN")


def _anywhere(db: sqlite3.Connection, parts: list[str], limit: int, glued: bool = False) -> list[Hit]:
    """Scans all text: slower than the index, but finds words inside a run of letters.

    With ``glued``, words behind letters of their own script are left out: the index has read both as one word.
    """
    titles = db.execute(
        "SELECT id, title, NULL, '', updated, title, '' FROM chats WHERE deleted IS NULL ORDER BY updated DESC"
    )
    messages = db.execute(
        "SELECT chats.id, chats.title, messages.id, role, messages.created, content, writer FROM messages "
        "JOIN chats ON chats.id = messages.chat WHERE deleted IS NULL "
        "AND status IN ('done', 'interrupted') ORDER BY messages.id DESC"
    )

    def fits(text: str) -> bool:
        return all(_glued(part, text) if glued else part in text for part in parts)

    fitting = (row for row in chain(titles, messages) if fits(_folded(_normal(text_of(row[5])))))
    return [_hit(row[:5], _marked(text_of(row[5]), parts), row[6]) for row in islice(fitting, limit)]


def _marked(text: str, parts: list[str]) -> str:
    text = _normal(text)
    folded = _folded(text)
    word = re.compile("|".join(re.escape(part) for part in sorted(parts, key=len, reverse=True)))
    found = word.search(folded)
    at = found.start() if found else 0
    start, end = max(at - _SIDE, 0), at + 3 * _SIDE
    cut, shown = start, "…" if start else ""
    for match in word.finditer(folded, start, end):
        shown += text[cut : match.start()] + _OPEN + text[match.start() : match.end()] + _CLOSE
        cut = match.end()
    return shown + text[cut:end] + ("…" if end < len(text) else "")


def _hit(row: tuple[Any, ...], text: object, writer: object = "") -> Hit:
    chat, title, message, role, created = row
    snippet, spans, start, marked = "", list[tuple[int, int]](), 0, text_of(text)
    if len(marked) > _LONGEST:  # a word may be as long as its message
        at = max(marked.find(_OPEN) - _SIDE, 0)
        marked = ("…" if at else "") + marked[at : at + _LONGEST] + "…"
    for piece in re.split(f"([{_OPEN}{_CLOSE}])", one_line(marked)):
        if piece == _OPEN:
            start = len(snippet)
        elif piece == _CLOSE:
            spans.append((start, len(snippet)))
        else:
            snippet += piece
    where = {"chat": chat, "title": bounded(text_of(title)), "message": message, "role": role}
    writer = bounded(text_of(writer))
    return Hit(**where, snippet=snippet, spans=tuple(spans), created=moment(created), writer=writer)
