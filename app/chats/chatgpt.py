"""Reads a conversation of ChatGPT's data export: a mapping of nodes, of which one branch is the current one."""

from __future__ import annotations

import time
from typing import Any

from slipstream.app.chats.records import StoredChat, StoredMessage, new_id, storable
from slipstream.app.chats.titles import title_of

ROLES = ("user", "assistant")


def conversation(values: dict[str, Any]) -> tuple[StoredChat, list[tuple[StoredMessage, int]]]:
    """Makes a chat of a conversation; what is no text of a person or a model is left out, its children move up.

    Returns:
        The chat, and its messages with when they were picked, parents first.

    Raises:
        ValueError: If the mapping is no tree.
    """
    nodes = values["mapping"]
    if not isinstance(nodes, dict) or not all(isinstance(node, dict) for node in nodes.values()):
        raise ValueError("a conversation's mapping is no tree")
    created, updated = _time(values.get("create_time")), _time(values.get("update_time"))
    chat = StoredChat(new_id(), _string(values.get("title")), created, updated, "")
    current = set(_above(nodes, values.get("current_node")))
    messages: list[tuple[StoredMessage, int]] = []
    seen: set[str] = set()
    below: list[tuple[str, int | None]] = [
        (name, None) for name, node in reversed(nodes.items()) if node.get("parent") not in nodes
    ]
    while below:
        name, parent = below.pop()
        if name in seen:
            raise ValueError("a conversation's mapping is no tree")
        seen.add(name)
        node = nodes[name]
        role, text, when = _said(node.get("message"))
        if role in ROLES and text.strip():
            number = len(messages) + 1
            message = StoredMessage(
                number, chat.id, parent, role, text, [], "", "done", "", None, None, "", when or created
            )
            messages.append((message, int(name in current)))
            parent = number
        children = node.get("children")
        below += [
            (child, parent) for child in reversed(children if isinstance(children, list) else []) if child in nodes
        ]
    first = next((message.content for message, _ in messages if message.role == "user"), "")
    return StoredChat(chat.id, chat.title or title_of(first), created, updated, ""), messages


def _above(nodes: dict[str, Any], name: Any) -> list[str]:
    branch: list[str] = []
    while isinstance(name, str) and name in nodes and len(branch) <= len(nodes):
        branch.append(name)
        name = nodes[name].get("parent")
    return branch


def _said(message: Any) -> tuple[str, str, float]:
    """Role, text and time of a node's message; empty where it has none that is text."""
    if not isinstance(message, dict):
        return "", "", 0.0
    author, content = message.get("author"), message.get("content")
    if (
        not isinstance(author, dict)
        or not isinstance(content, dict)
        or content.get("content_type")
        not in (
            "text",
            "multimodal_text",
        )
    ):
        return "", "", 0.0
    parts = content.get("parts")
    text = "\n\n".join(part for part in parts if isinstance(part, str)) if isinstance(parts, list) else ""
    when = message.get("create_time")
    return _string(author.get("role")), storable(text), float(when) if isinstance(when, int | float) else 0.0


def _string(value: Any) -> str:
    return storable(value) if isinstance(value, str) else ""


def _time(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else time.time()
