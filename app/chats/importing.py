"""Takes over chats that slipstream exported, and ChatGPT's ``conversations.json``."""

from __future__ import annotations

import json
import math
import time
from typing import Any, Final

from slipstream.app.chats.chatgpt import conversation
from slipstream.app.chats.exporting import FORMAT, VERSION
from slipstream.app.chats.records import NAME, Figures, StoredChat, StoredMessage, new_id, storable
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Speed
from slipstream.models.errors import UsageError
from slipstream.models.quoting import quoted, shown_path

_HINT: Final = "Give a file of slipstream chats export --format json, or ChatGPT's conversations.json."
_TOKEN_LIMIT: Final = 1 << 31
_COUNTS: Final = ("prompt_tokens", "prefilled_tokens", "dropped_messages", "dropped_tokens", "ttft_ms")
_SPEED: Final = tuple(Speed.__slots__)


def import_chats(store: ChatStore, raw: bytes, source: str) -> list[StoredChat]:
    """Takes over all chats of a file; nothing of it where any part cannot be read.

    Args:
        store: Where they go.
        raw: The file.
        source: What to call it in an error.

    Returns:
        The chats as they are kept.

    Raises:
        UsageError: If it is no such file.
        SlipstreamError: If they cannot be kept.
    """
    try:
        values = json.loads(raw)
        if isinstance(values, dict) and values.get("format") == FORMAT:
            if values.get("version") != VERSION:
                raise ValueError(f"its version is {quoted(str(values.get('version')))}, and {VERSION} is known")
            found = [_chat(entry) for entry in _list(values, "chats")]
        elif isinstance(values, list) and all(isinstance(entry, dict) and "mapping" in entry for entry in values):
            found = [conversation(entry) for entry in values]
        else:
            raise ValueError("it has neither chats nor conversations")
    except (ValueError, RecursionError) as error:  # json's own errors are ValueErrors
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"{shown_path(source)} is no export of chats: {reason}.", _HINT) from error
    return [store.add_chat(chat, messages) for chat, messages in found if messages]


def _chat(values: Any) -> tuple[StoredChat, list[tuple[StoredMessage, int]]]:
    name = _text(values, "id")
    chat = StoredChat(
        id=name if NAME.fullmatch(name) else new_id(),
        title=_text(values, "title"),
        created=_time(values, "created"),
        updated=_time(values, "updated"),
        model=_text(values, "model"),
        pinned=_get(values, "pinned", bool, False),
    )
    messages: list[tuple[StoredMessage, int]] = []
    known: set[int] = set()
    for entry in _list(values, "messages"):
        message = _message(entry, chat.id)
        if message.id in known or (message.parent is not None and message.parent not in known):
            raise ValueError(f"message {message.id} comes twice, or before the one that it follows")
        known.add(message.id)
        messages.append((message, _get(entry, "picked", int, 0)))
    return chat, messages


def _message(values: Any, chat: str) -> StoredMessage:
    role, status = _text(values, "role"), _text(values, "status")
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"the role {quoted(role)} is unknown")
    tokens = _list(values, "tokens")
    if not all(type(token) is int and -_TOKEN_LIMIT <= token < _TOKEN_LIMIT for token in tokens):
        raise ValueError("a token is no number")
    return StoredMessage(
        id=_get(values, "id", int, None),
        chat=chat,
        parent=_get(values, "parent", int, None) if values.get("parent") is not None else None,
        role=role,
        content=_text(values, "content"),
        tokens=tokens,
        model=_text(values, "model"),
        status="done" if status == "done" else "interrupted",
        drafter=_text(values, "drafter"),
        seed=_get(values, "seed", int, None) if values.get("seed") is not None else None,
        figures=_figures(values.get("figures")),
        reason=_text(values, "reason"),
        created=_time(values, "created"),
    )


def _figures(values: Any) -> Figures | None:
    """The figures of a reply; None where they are not of the kind that this version shows."""
    if not isinstance(values, dict) or not isinstance(values.get("speed"), dict):
        return None
    speed = values["speed"]
    if not all(speed.get(name) is None or _is_number(speed[name]) for name in _SPEED):
        return None
    depths, drafters = values.get("by_depth", []), values.get("by_drafter", {})
    drafter_depths = values.get("drafter_depths", {})
    counts = {name: values.get(name, 0) for name in _COUNTS}
    if not all(map(_is_number, counts.values())) or not _are_counts(depths, drafters):
        return None
    if not isinstance(drafter_depths, dict) or not all(map(_are_depths, drafter_depths.values())):
        return None
    known = {name: speed[name] for name in _SPEED if speed.get(name) is not None}
    exact = bool(values.get("exact", True))
    return Figures(Speed(**known), depths, drafters, **counts, exact=exact, drafter_depths=drafter_depths)


def _are_counts(depths: Any, drafters: Any) -> bool:
    return (
        _are_depths(depths)
        and isinstance(drafters, dict)
        and all(isinstance(count, dict) and all(map(_is_number, count.values())) for count in drafters.values())
    )


def _are_depths(depths: Any) -> bool:
    return isinstance(depths, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)) for pair in depths
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and -1e15 < value < 1e15


def _get(values: Any, name: str, kind: type, default: Any) -> Any:
    value = values.get(name, default) if isinstance(values, dict) else None
    if type(value) is not kind:
        raise ValueError(f"{name} is missing or no {kind.__name__}")
    if isinstance(value, int) and abs(value) >= 1 << 62:
        raise ValueError(f"{name} is too large")
    return value


def _text(values: Any, name: str) -> str:
    return storable(str(_get(values, name, str, "")))


def _time(values: Any, name: str) -> float:
    value = values.get(name) if isinstance(values, dict) else None
    return float(value) if value is not None and _is_number(value) else time.time()


def _list(values: Any, name: str) -> list[Any]:
    return list(_get(values, name, list, []))
