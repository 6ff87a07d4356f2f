"""Reads the settings; errors in the file do not prevent a start."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipstream.app.platform.safe_text import one_line
from slipstream.app.settings.setting import Value
from slipstream.app.settings.toml_file import parsed, text_of
from slipstream.app.settings.values import CONTEXTS, KEYS, Settings, all_settings
from slipstream.models.errors import UsageError, did_you_mean
from slipstream.models.outside import shown_path


@dataclass(frozen=True, slots=True)
class Read:
    """The content of a file."""

    # the settings; missing or invalid ones have their defaults
    settings: Settings = field(default_factory=Settings)
    # the valid settings in the file, by name
    values: MappingProxyType[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[str, ...] = ()  # the errors, a line each
    broken: str = ""  # why the file cannot be read at all, or empty; a broken file is never written to
    text: str = ""  # the file as it was read; empty if it is broken


def load(path: Path) -> Read:
    """Reads a file of settings; raises nothing.

    Args:
        path: ``settings.toml``; need not exist.
    """
    try:
        text = text_of(path)
        table = parsed(path, text)
    except UsageError as error:
        broken = f"{error.title} {error.hint}"
        return Read(problems=(f"{broken} Until then the defaults hold.",), broken=broken)
    return _checked(path, text, table)


def checked_context(model: str, tokens: object) -> int:
    """A model's own context; raises ``UsageError`` if it is invalid."""
    return int(replace(all_settings()["model.context"], group=CONTEXTS, key=one_line(model)).checked(tokens))


def nearest(word: str, known: Iterable[str]) -> str:
    """A question that suggests the nearest known word, after a space, or nothing."""
    meant = did_you_mean(word, known)
    return f" {meant}" if meant else ""


def line_of(text: str, group: str, key: str = "") -> int:
    """The line of a table or of its key, from 1; 0 if it is not found."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if header := re.match(r"\[\s*([^\[\]]+?)\s*\]", words):
            table = header[1].strip("\"'")
            if table == group and not key:
                return number
        elif match := re.match(r"([\w.\-\"' ]+?)\s*=", words):
            name = match[1].replace('"', "").replace("'", "").replace(" ", "")
            if (f"{table}.{name}" if table else name) in ((f"{group}.{key}",) if key else (group,)):
                return number
    return 0


def _checked(path: Path, text: str, table: dict[str, Any]) -> Read:
    known = all_settings()
    groups = [*dict.fromkeys(each.group for each in known.values()), KEYS, CONTEXTS]
    values: dict[str, Value] = {}
    keys: dict[str, str] = {}
    contexts: dict[str, int] = {}
    problems: list[str] = []

    def wrong(why: str, group: str, key: str = "") -> None:
        line = line_of(text, group, key)
        problems.append(f"{shown_path(path)}{f', line {line}' if line else ''}: {one_line(why)}")

    for group, entries in table.items():
        if group not in groups:
            wrong(
                f"there are no settings named {one_line(group)}; they were left there.{nearest(group, groups)}", group
            )
        elif not isinstance(entries, dict):
            wrong(f"{group} is no table; write [{group}] above its keys.", group)
        elif group == KEYS:
            keys = {str(action): str(key) for action, key in entries.items()}
        elif group == CONTEXTS:
            for model, tokens in entries.items():
                try:
                    contexts[str(model)] = checked_context(str(model), tokens)
                except UsageError as error:
                    wrong(f"{error.title.rstrip('.')}; model.context is taken.", group, model)
        else:
            for key, value in entries.items():
                name = f"{group}.{key}"
                if name not in known:
                    inside = [each.key for each in known.values() if each.group == group]
                    elsewhere = [each.name for each in known.values() if each.key == key]
                    like = nearest(key, inside) or (f" Did you mean {elsewhere[0]}?" if elsewhere else "")
                    wrong(f"there is no setting {one_line(name)}; it was left there.{like}", group, key)
                    continue
                try:
                    values[name] = known[name].checked(value)
                except UsageError as error:
                    default = str(known[name].default)
                    default = default.lower() if isinstance(known[name].default, bool) else default or "nothing"
                    wrong(f"{error.title.rstrip('.')}; {default} is taken.", group, key)
    settings = Settings(keys=MappingProxyType(keys), contexts=MappingProxyType(contexts)).having(values)
    return Read(settings, MappingProxyType(values), tuple(problems), text=text)
