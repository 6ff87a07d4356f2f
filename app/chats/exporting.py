"""Exports chats as Markdown to read and as JSON to import."""

import base64
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal

from slipstream.app.chats.images import image_label
from slipstream.app.chats.reasoning import begins_inside, split
from slipstream.app.chats.records import StoredMessage, changes_of_writer
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import FULL
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import PROMISES
from slipstream.app.speed import compared
from slipstream.models.errors import SlipstreamError, reason_of

Format = Literal["md", "json"]
FORMAT: Final = "slipstream-chats"
VERSION: Final = 1


def format_of(path: Path) -> Format:
    return "json" if path.suffix.lower() == ".json" else "md"


def exported(store: ChatStore, chats: Sequence[str], form: Format) -> str:
    if form == "md":
        return "\n".join(markdown(store, chat) for chat in chats)
    begin = f'{{"format": "{FORMAT}", "version": {VERSION}, "chats": [\n'
    return begin + ",\n".join(_json(store, chat) for chat in chats) + "\n]}\n"


def markdown(store: ChatStore, chat: str, branches: bool = True, thoughts: bool = True) -> str:
    """A chat as Markdown: the shown branch, then all others from their fork on; ``thoughts`` adds the reasoning."""
    kept = store.get(chat)
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.created))
    parts = [f"# {one_line(kept.title) or kept.id}\n", f"{created}\n"]
    shown = store.messages(chat)
    parts += _sections(shown, thoughts)
    if branches and store.forks(chat):
        written = {message.id for message in shown}
        everything = {message.id: message for message, _ in store.all_messages(chat)}
        following: dict[int | None, list[StoredMessage]] = defaultdict(list)
        for message in everything.values():  # parents come before their children
            following[message.parent].append(message)
        for message in everything.values():
            if message.id in written:
                continue
            siblings = [other.id for other in following[message.parent]]
            if len(siblings) > 1:
                parent = everything[message.parent].content if message.parent else ""
                place = f"after “{one_line(parent[:240])[:60]}”" if parent else "from the start"
                number = f"{siblings.index(message.id) + 1} of {len(siblings)}"
                parts.append(f"---\n\n*Another branch, {number}, {place}*\n")
            line = [message]
            while len(below := [other for other in following[line[-1].id] if other.id not in written]) == 1:
                line += below  # up to the next fork
            written |= {each.id for each in line}
            parts += _sections(line, thoughts)
    return "\n".join(parts)


def write_export(path: Path, text: str) -> None:
    mode = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        with open(os.open(path, mode, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileNotFoundError as error:
        raise SlipstreamError(
            f"cannot write to {path}: there is no folder {path.parent}.", "Create it, or name another."
        ) from error
    except OSError as error:
        hint = "Name another file, in a folder that you can write to."
        if error.errno in FULL:
            hint = "Make some room, or name a file on another disk."
        raise SlipstreamError(f"cannot write to {path}: {reason_of(error)}.", hint) from error


def _sections(messages: Sequence[StoredMessage], thoughts: bool) -> list[str]:
    writers = changes_of_writer(messages)
    return [_section(message, thoughts, one_line(writers.get(message.id, ""))) for message in messages]


def _section(message: StoredMessage, thoughts: bool, writer: str) -> str:
    reply = f"Reply by {writer}" if writer else "Reply"
    who = {"user": "You", "assistant": reply, "system": "System"}[message.role]
    who = "Summary of what is above" if message.summary else who
    text = f"## {who}\n\n{_folded(message, thoughts).rstrip()}\n"
    notes = []
    if message.figures:
        speed = message.figures.speed
        notes = [plural(speed.tokens, "token"), f"{speed.tok_per_s:.1f} tok/s"]
        if speed.acceptance is not None:
            notes.append(f"{message.drafter} {100 * speed.acceptance:.0f} % accepted")
        if speed.gain is not None:
            notes.append(compared(speed.gain, speed.noise))
        if message.seed is not None:
            notes.append(f"seed {message.seed}")
        if message.figures.promise in PROMISES:
            notes.append(PROMISES[message.figures.promise])
    if message.unfinished:
        notes.append("stopped")
    return text + (f"\n<sub>{' · '.join(notes)}</sub>\n" if notes else "")


def _folded(message: StoredMessage, thoughts: bool) -> str:
    if message.role != "assistant":
        return image_label(message.content)
    thought = message.figures.speed.thought if message.figures else 0
    parts = split(message.content, begins_inside(message.content, thought))
    if not parts.thoughts:
        return parts.answer
    answer = parts.answer if parts.answer.strip() else "*No answer, only thoughts.*"
    if not thoughts:
        tokens = f" for {plural(thought, 'token')}" if thought else ""
        return f"*It thought{tokens} first; --thoughts shows what.*\n\n{answer}"
    return f"<details><summary>Thoughts</summary>\n\n{parts.thoughts}\n\n</details>\n\n{answer}"


def _json(store: ChatStore, chat: str) -> str:
    lines, images = [], dict[str, str]()
    for message, picked in store.all_messages(chat):
        values = {name: getattr(message, name) for name in StoredMessage.__slots__ if name != "chat"}
        figures = asdict(message.figures) if message.figures else None
        lines.append(json.dumps({**values, "figures": figures, "picked": picked}, ensure_ascii=False))
        for sha256, file in store.images.found(message.content).items():
            with suppress(OSError):  # it was deleted just now
                images[sha256] = base64.b64encode(Path(file).read_bytes()).decode("ascii")
    own = json.dumps({**asdict(store.get(chat)), **({"images": images} if images else {})}, ensure_ascii=False)
    messages = ",\n".join(lines)
    return f'{own[:-1]}, "messages": [\n{messages}\n]}}'
