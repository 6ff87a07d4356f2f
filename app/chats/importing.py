"""Imports chats that slipstream exported, and ChatGPT's ``conversations.json``: trees with one current branch."""

import base64
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from slipstream.app.chats.exporting import FORMAT, VERSION
from slipstream.app.chats.images import images_of
from slipstream.app.chats.messages import title_of
from slipstream.app.chats.records import (
    MESSAGE_LIMIT,
    NAME,
    TOKEN_LIMIT,
    Figures,
    StoredChat,
    StoredMessage,
    bounded,
    moment,
    new_id,
    storable,
    text_of,
)
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.outside import quoted, shown_path
from slipstream.models.vision.image_file import MOST_BYTES as IMAGE_LIMIT

_ROLES: Final = ("user", "assistant")  # of ChatGPT's messages
_HINT: Final = "Give a file of slipstream chats export --format json, or ChatGPT's conversations.json."
_KINDS: Final = {"audio": "recording", "image": "image", "video": "video"}  # a word in the name of a part's kind
MOST_BYTES: Final = 256 << 20  # maximum size of a file; its parsed values take several times as much memory


def conversation(values: dict[str, Any], left_out: Counter[str]) -> tuple[StoredChat, list[tuple[StoredMessage, int]]]:
    """Converts a conversation of ChatGPT; skips nodes without text, and moves their children up.

    Counts in ``left_out`` what else its messages hold, by kind. Returns the chat, and its messages with their picks,
    parents first; raises ``ValueError`` if it is not a tree.
    """
    nodes = values["mapping"]
    if not isinstance(nodes, dict) or not all(isinstance(node, dict) for node in nodes.values()):
        raise ValueError("a conversation's mapping is no tree")
    created, updated = (moment(values.get(name), time.time()) for name in ("create_time", "update_time"))
    own = values.get("conversation_id", values.get("id"))
    name = new_id(own if isinstance(own, str) else json.dumps(nodes))  # the same at each import
    chat = StoredChat(name, bounded(storable(text_of(values.get("title")))), created, updated, "")
    current = set(_above(nodes, values.get("current_node")))
    messages: list[tuple[StoredMessage, int]] = []
    following = _children(nodes)
    listed = {child for children in following.values() for child in children}
    seen: set[str] = set()
    below: list[tuple[str, int | None]] = [(name, None) for name in reversed(nodes) if name not in listed]
    while below:
        name, parent = below.pop()
        if name in seen:
            raise ValueError("a conversation's mapping is no tree")
        seen.add(name)
        node = nodes[name]
        role, text, when = _content(node.get("message"), left_out)
        if role in _ROLES and text.strip():
            number = len(messages) + 1
            message = StoredMessage(number, chat.id, parent, role, text, created=when or created)
            messages.append((message, int(name in current)))
            parent = number
        below += [(child, parent) for child in reversed(following[name])]
    if len(seen) < len(nodes):
        raise ValueError("a conversation's messages follow each other in a circle")
    first = next((message.content for message, _ in messages if message.role == "user"), "")
    return StoredChat(chat.id, chat.title or title_of(first), created, updated, ""), messages


def _children(nodes: dict[str, Any]) -> dict[str, list[str]]:
    following: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        listed = node.get("children")
        following[name] += (child for child in (listed if isinstance(listed, list) else []) if _known(nodes, child))
    listed_somewhere = {child for children in following.values() for child in children}
    for name, node in nodes.items():
        if name not in listed_somewhere and _known(nodes, node.get("parent")):
            following[node["parent"]].append(name)
    return following


def _known(nodes: dict[str, Any], name: Any) -> bool:
    return isinstance(name, str) and name in nodes


def _above(nodes: dict[str, Any], name: Any) -> list[str]:
    branch: list[str] = []
    while isinstance(name, str) and name in nodes and len(branch) <= len(nodes):
        branch.append(name)
        name = nodes[name].get("parent")
    return branch


def _content(message: Any, left_out: Counter[str]) -> tuple[str, str, float]:
    if not isinstance(message, dict):
        return "", "", 0.0
    author, content, metadata = (message.get(name) for name in ("author", "content", "metadata"))
    role = text_of(author.get("role")) if isinstance(author, dict) else ""
    kind, parts = "text", content  # of other exports than ChatGPT's own
    if isinstance(content, dict):
        kind = text_of(content.get("content_type", "text"))
        parts = content.get("parts", content.get("text"))
    parts = [parts] if isinstance(parts, str) else parts if isinstance(parts, list) else []
    metadata = metadata if isinstance(metadata, dict) else {}
    hidden, attached = metadata.get("is_visually_hidden_from_conversation"), metadata.get("attachments")
    for file in attached if isinstance(attached, list) and not hidden else ():
        shown = isinstance(file, dict) and text_of(file.get("mime_type")).startswith("image/")  # it is a part, too
        left_out["file"] += not shown
    texts = [spoken for part in parts if (spoken := _spoken(part)).strip()]
    if role not in _ROLES:
        left_out[f'message of the role "{bounded(one_line(storable(role)))}"'] += (
            bool(texts or kind != "text") and not hidden
        )
        return "", "", 0.0
    if kind not in ("text", "multimodal_text"):
        left_out[_kind(kind)] += not hidden
        return "", "", 0.0
    for part in parts:
        if not isinstance(part, str) and not _spoken(part).strip():
            left_out[_kind(text_of(part.get("content_type")) if isinstance(part, dict) else "")] += 1
    text = "\n\n".join(texts)
    if len(text) > MESSAGE_LIMIT:
        raise ValueError(f"a message has {len(text):,} characters; at most {MESSAGE_LIMIT:,} fit")
    return role, storable(text), moment(message.get("create_time"))


def _spoken(part: Any) -> str:
    """The text of a part: itself, or under a key."""
    return part if isinstance(part, str) else text_of(part.get("text")) if isinstance(part, dict) else ""


def _kind(name: str) -> str:
    named = next((words for word, words in _KINDS.items() if word in name), "")
    return named or f'part of the kind "{bounded(one_line(storable(name))) or "unknown"}"'


def read_export(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            raw = file.read(MOST_BYTES + 1) if size <= MOST_BYTES else b""  # a pipe has no size
    except OSError as error:
        reason = reason_of(error)
        raise SlipstreamError(f"cannot read {shown_path(path)}: {reason}.", "Check the path of the file.") from error
    if max(size, len(raw)) > MOST_BYTES:
        many = f"{size:,}" if size > MOST_BYTES else f"more than {MOST_BYTES:,}"
        raise SlipstreamError(
            f"{shown_path(path)} has {many} bytes; at most {MOST_BYTES:,} can be imported.",
            "Export fewer chats at once, and import one file after the other.",
        )
    return raw


def import_chats(
    store: ChatStore, raw: bytes, source: str, tell: Callable[[str], object] = lambda words: None
) -> list[StoredChat]:
    """Imports all chats of a file, or none; calls ``tell`` with a line about those that are left out.

    Chats that are here already are left out, so an import that was killed can be repeated. Returns the new ones.
    """
    name, left_out = shown_path(source), Counter[str]()
    try:
        values = json.loads(raw)
        if isinstance(values, dict) and values.get("format") == FORMAT:
            if values.get("version") != VERSION:
                raise ValueError(f"its version is {quoted(str(values.get('version')))}, but only {VERSION} can be read")
            found = [_chat(entry, left_out) for entry in _list(values, "chats")]
            images = [image for entry in values["chats"] for image in _images(entry)]
        elif isinstance(values, list) and all(isinstance(entry, dict) and "mapping" in entry for entry in values):
            found, images = [conversation(entry, left_out) for entry in values], []
        else:
            raise ValueError("it has neither chats nor conversations")
    except (ValueError, RecursionError) as error:  # json's own errors are ValueErrors
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"{name} is no export of chats: {reason}.", _HINT) from error
    except MemoryError as error:
        raise SlipstreamError(f"{name} does not fit into memory.", "Export fewer chats at once.") from error
    full = [(chat, messages) for chat, messages in found if messages]
    if not full:
        why = "its chats have no messages with text" if found else "it holds no chats"
        raise UsageError(f"nothing was imported from {name}: {why}.", _HINT)
    if left := len(found) - len(full):
        tell(f"{plural(left, 'chat')} without text {'was' if left == 1 else 'were'} left out.")
    for sha256, image in images:
        store.images.keep(image, sha256)
    named = {
        sha256: message.content for _, said in full for message, _ in said for sha256 in images_of(message.content)
    }
    left_out["image that the file does not hold"] = sum(
        sha256 not in store.images.found(named[sha256]) for sha256 in named
    )
    added = store.add_chats(full)
    counted = ", ".join(_counted(count, kind) for kind, count in left_out.most_common() if count)
    if added and counted:
        tell(f"left out: {counted}.")
    if here := len(full) - len(added):
        tell(f"{plural(here, 'chat')} {'was' if here == 1 else 'were'} here already.")
    return added


def _counted(count: int, kind: str) -> str:
    noun, _, rest = kind.partition(" ")
    return " ".join(filter(None, (plural(count, noun), rest)))


def _images(values: dict[str, Any]) -> list[tuple[str, bytes]]:
    """The images of a chat, by hash; their content is checked when they are used."""
    found = []
    for sha256, text in _get(values, "images", dict, {}).items():
        if not isinstance(text, str) or len(text) > 2 * IMAGE_LIMIT:
            raise ValueError("an image is too large")
        raw = base64.b64decode(text, validate=True)
        if hashlib.sha256(raw).hexdigest() != sha256:
            raise ValueError("an image is damaged")
        found.append((sha256, raw))
    return found


def _chat(values: Any, left_out: Counter[str]) -> tuple[StoredChat, list[tuple[StoredMessage, int]]]:
    name = _text(values, "id")
    chat = StoredChat(
        id=name if NAME.fullmatch(name) else new_id(),
        title=bounded(_text(values, "title")),
        created=_time(values, "created"),
        updated=_time(values, "updated"),
        model=bounded(_text(values, "model")),
        pinned=_get(values, "pinned", bool, False),
    )
    messages: list[tuple[StoredMessage, int]] = []
    known: set[int] = set()
    for entry in _list(values, "messages"):
        message = _message(entry, chat.id)
        figures = entry.get("figures") or {}
        left_out["record of figures that no version writes"] += bool(figures) and message.figures is None
        left_out["record of the words' origins"] += bool(
            message.figures and figures.get("origins") and not message.figures.origins
        )
        if message.id in known or (message.parent is not None and message.parent not in known):
            raise ValueError(f"message {message.id} appears twice, or before its parent")
        known.add(message.id)
        messages.append((message, _get(entry, "picked", int, 0)))
    return chat, messages


def _message(values: Any, chat: str) -> StoredMessage:
    role, status = _text(values, "role"), _text(values, "status")
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"the role {quoted(role)} is unknown")
    tokens = _list(values, "tokens")
    if not all(type(token) is int and -TOKEN_LIMIT <= token < TOKEN_LIMIT for token in tokens):
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
        figures=Figures.of_values(values.get("figures")),
        reason=_text(values, "reason"),
        created=_time(values, "created"),
        writer=bounded(_text(values, "writer")) if "writer" in values else "",
    )


def _get(values: Any, name: str, kind: type, default: Any) -> Any:
    value = values.get(name, default) if isinstance(values, dict) else None
    if type(value) is not kind:
        raise ValueError(f"{name} is missing or no {kind.__name__}")
    if isinstance(value, int) and abs(value) >= 1 << 62:
        raise ValueError(f"{name} is too large")
    return value


def _text(values: Any, name: str, most: int = MESSAGE_LIMIT) -> str:
    text = str(_get(values, name, str, ""))
    if len(text) > most:
        raise ValueError(f"{name} has {len(text):,} characters; at most {most:,} fit")
    return storable(text)


def _time(values: Any, name: str) -> float:
    return moment(values.get(name) if isinstance(values, dict) else None, time.time())


def _list(values: Any, name: str) -> list[Any]:
    return list(_get(values, name, list, []))
