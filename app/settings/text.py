"""Edits the text of the settings file; every setting is explained there, and the user's own text stays as it is."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from slipstream.app.settings.reading import line_of
from slipstream.app.settings.setting import Setting, Value
from slipstream.app.settings.values import CONTEXTS, KEYS, all_settings, titles

_HEAD: Final = """\
# Settings of slipstream. What is commented out is at its default, which is shown.
# The settings screen writes here, too; it keeps comments and unknown entries.
"""
_KEYS: Final = """\
# Keys: action = "key", such as
# next-drafter = "f7"
# The actions: settings screen (F9), below; several keys with commas, "" for none.
"""
_CONTEXTS: Final = """\
# Contexts of single models, in place of model.context: "file name" = tokens, such as
# "Qwen3-8B-Q4_K_M.gguf" = 131072
"""


def template() -> str:
    """A file that sets nothing and explains everything."""
    parts = [_HEAD]
    known = all_settings().values()
    for group, title in titles().items():
        lines = [f"# {title}.", f"[{group}]"]
        for each in known:
            if each.group == group:
                lines += [f"# {each.about.sentence} {each.wanted.capitalize()}; takes effect {each.about.when}."]
                lines.append(_commented(each))
        parts.append("\n".join(lines) + "\n")
    parts.append(f"{_KEYS}[{KEYS}]\n")
    parts.append(f"{_CONTEXTS}[{CONTEXTS}]\n")
    return "\n".join(parts)


def with_value(text: str, group: str, key: str, value: Value | None) -> str:
    """The text with a key set or removed.

    Args:
        text: The file, valid TOML; empty for a new one.
        value: The new value; None removes the key.
    """
    import tomlkit

    text = text if text.strip() else template()
    document = tomlkit.parse(text)
    table = document.get(group)
    known = all_settings().get(f"{group}.{key}")
    if value is None:
        if not isinstance(table, dict) or key not in table:
            return text
        line = line_of(text, group, key)
        if known and line and _same(commented := _replaced(text, line, _commented(known)), text, group, key, None):
            return commented
        del table[key]
        return tomlkit.dumps(document)
    if not isinstance(table, dict):
        document[group] = tomlkit.table()
    elif known and key not in table and (line := _waiting(text, known)):
        filled = _replaced(text, line, f"{key} = {tomlkit.item(value).as_string()}")
        if _same(filled, text, group, key, value):
            return filled
    document[group][key] = value
    return tomlkit.dumps(document)


def _commented(each: Setting) -> str:
    import tomlkit

    return f"# {each.key} = {tomlkit.item(each.default).as_string()}"


def _waiting(text: str, each: Setting) -> int:
    """The line where the setting is commented out, from 1; 0 without one."""
    begin = line_of(text, each.group)
    for number, line in enumerate(text.splitlines()[begin:], begin + 1):
        if line.lstrip().startswith("["):
            return 0
        if begin and re.match(rf"#\s*{re.escape(each.key)}\s*=", line):
            return number
    return 0


def _replaced(text: str, line: int, by: str) -> str:
    lines = text.splitlines(keepends=True)
    end = lines[line - 1][len(lines[line - 1].rstrip("\r\n")) :]
    return "".join([*lines[: line - 1], by + end, *lines[line:]])


def _same(new: str, old: str, group: str, key: str, value: Value | None) -> bool:
    """Whether a changed text has the same settings as the old one, except for this key."""
    import tomllib  # needed only when a setting is written

    with suppress(ValueError):
        wanted: dict[str, Any] = tomllib.loads(old)
        if value is None:
            del wanted[group][key]
        else:
            wanted[group][key] = value
        return tomllib.loads(new) == wanted
    return False
