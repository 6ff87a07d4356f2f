"""The settings and their file. Changes keep the user's own text; command-line options override the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from slipstream.app.platform.paths import write_private
from slipstream.app.platform.safe_text import one_line
from slipstream.app.settings.reading import Read, checked_context, line_of, load, nearest
from slipstream.app.settings.setting import Setting, Value
from slipstream.app.settings.toml_file import parsed, text_of
from slipstream.app.settings.values import CONTEXTS, KEYS, Settings, all_settings, titles
from slipstream.models.errors import SlipstreamError, UsageError

_CONTEXT: Final = "model.context"


class SettingsFile:
    """The settings of the file, overridden by the command line and by changes that could not be written."""

    def __init__(self, path: Path, given: Mapping[str, Value] | None = None) -> None:
        """Reads the file.

        Args:
            path: ``settings.toml``; need not exist.
            given: Settings by name that override the file's until slipstream ends.
        """
        self.path = path
        self._read: Read = load(path)
        self._notice = ""
        self._over: dict[str, Value] = dict(given or {})
        self._given = frozenset(self._over)

    @property
    def settings(self) -> Settings:
        now = self._read.settings.having(self._over)
        # a context given on the command line applies to every model
        return replace(now, contexts=MappingProxyType({})) if _CONTEXT in self._over else now

    @property
    def kept(self) -> Settings:
        return self._read.settings

    @property
    def problems(self) -> tuple[str, ...]:
        """The errors of the file, a line each."""
        return self._read.problems

    @property
    def broken(self) -> str:
        """Why the file cannot be read, or empty."""
        return self._read.broken

    def where(self, name: str) -> str:
        """The origin of a setting's value, in words; empty for its default."""
        if name in self._over:
            return "given at the start" if name in self._given else "until slipstream ends"
        return "settled" if name in self._read.values else ""

    def change(self, name: str, value: Value) -> None:
        """Sets a value in the file.

        Raises:
            UsageError: If there is no such setting, the value is invalid, or the file is broken and left as it is.
            SlipstreamError: If the file cannot be written; a valid value still applies until slipstream ends.
        """
        checked = known(name).checked(value)
        self._write({name: checked})

    def reset(self, *names: str) -> None:
        """Resets settings to their defaults.

        Raises:
            UsageError: See ``change``.
            SlipstreamError: See ``change``.
        """
        self._write({known(name).name: None for name in names})

    def keep_context(self, model: str, tokens: int | None) -> None:
        """Sets a model's own context; None returns to ``model.context``.

        Args:
            model: Name of the model's file.

        Raises:
            UsageError: If the context is invalid, or the file is broken and left as it is.
            SlipstreamError: If the file cannot be written; the context still applies until slipstream ends.
        """
        value = None if tokens is None else checked_context(model, tokens)
        self._over.pop(_CONTEXT, None)
        try:
            self._put({(CONTEXTS, model): value})
        except SlipstreamError as error:
            own = {name: kept for name, kept in self._read.settings.contexts.items() if name != model}
            own |= {} if value is None else {model: value}
            self._read = replace(self._read, settings=replace(self._read.settings, contexts=MappingProxyType(own)))
            raise SlipstreamError(error.title, f"{error.hint} Until slipstream ends the change holds.") from error

    def restore(self, values: Mapping[str, Value | None]) -> None:
        """Sets several values by name, None for the default; a key is named ``keys.`` and its action.

        Raises:
            UsageError: See ``change``.
            SlipstreamError: See ``change``.
        """
        self._write({name: _checked(name, value) for name, value in values.items()})

    def settled(self, name: str) -> Value | None:
        """The value in the file or the one that overrides it; None for the default."""
        return self._over.get(name, self._read.values.get(name))

    @property
    def chosen(self) -> frozenset[str]:
        """The fields of ``Sampling`` that the file or the command line sets."""
        drawing = [each for each in all_settings().values() if each.group == "sampling"]
        return frozenset(each.key for each in drawing if self.settled(each.name) is not None)

    def _write(self, values: Mapping[str, Value | None]) -> None:
        for name in values:
            self._over.pop(name, None)
        try:
            self._put({tuple(name.split(".", 1)): value for name, value in values.items()})  # type: ignore[misc]
        except SlipstreamError as error:
            usual = all_settings()
            held = {name: value for name, value in values.items() if name in usual}
            self._over |= {name: usual[name].default if value is None else value for name, value in held.items()}
            keys: dict[str, Value | None] = dict(self._read.settings.keys)
            keys |= {name.split(".", 1)[1]: value for name, value in values.items() if name not in held}
            own = {action: str(key) for action, key in keys.items() if key is not None}
            self._read = replace(self._read, settings=replace(self._read.settings, keys=own))
            raise SlipstreamError(error.title, f"{error.hint} Until slipstream ends the change holds.") from error

    def take_notice(self) -> str:
        """Returns what happened to the file since the last call, for the user; empty if nothing did."""
        notice, self._notice = self._notice, ""
        return notice

    def _put(self, values: Mapping[tuple[str, str], Value | None]) -> None:
        text = text_of(self.path)
        parsed(self.path, text)
        gone = not text.strip() and bool(self._read.text.strip())
        if gone:
            text = self._read.text
        for (group, key), value in values.items():
            text = with_value(text, group, key, value)
        write_private(self.path, text)
        self._read = load(self.path)
        if gone:
            self._notice = f"{self.path.name} was deleted or emptied: all settings were written to a new one."


def _checked(name: str, value: Value | None) -> Value | None:
    if value is None or name.startswith(f"{KEYS}."):
        return value
    return known(name).checked(value)


def known(name: str) -> Setting:
    """The setting of a name.

    Raises:
        UsageError: If there is no such setting; the error names the nearest.
    """
    every = all_settings()
    if name not in every:
        like = nearest(name, every) or next(
            (f" Did you mean {full}?" for full in every if full.endswith(f".{name}")), ""
        )
        raise UsageError(f"there is no setting {one_line(name)}.{like}", "slipstream settings lists all.")
    return every[name]


# the setting of an option, by the option's name
OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "model": "model.name",
        "drafter": "model.drafter",
        "context": "model.context",
        "kv_type": "model.kv_type",
        "gpu_layers": "model.gpu_layers",
        "cpu_experts": "model.cpu_experts",
        "rpc": "devices.rpc",
        "split_mode": "devices.split_mode",
        "tensor_split": "devices.tensor_split",
        "main_gpu": "devices.main_gpu",
        "draft_device": "devices.draft",
        "temp": "sampling.temperature",
        "top_k": "sampling.top_k",
        "top_p": "sampling.top_p",
        "min_p": "sampling.min_p",
        "repetition_penalty": "sampling.repetition_penalty",
        "presence_penalty": "sampling.presence_penalty",
        "top_n_sigma": "sampling.top_n_sigma",
        "dry": "sampling.dry",
        "logit_bias": "sampling.logit_bias",
        "reasoning": "sampling.reasoning",
        "reasoning_budget": "sampling.reasoning_budget",
        "typical": "sampling.typical",
        "max_tokens": "reply.max_tokens",
        "overflow": "reply.overflow",
        "read_ahead": "ahead.read",
    }
)


def given(options: Mapping[str, Any]) -> dict[str, Value]:
    """The settings that command-line options set, not checked; an option of None was not given."""
    return {name: options[option] for option, name in OPTIONS.items() if options.get(option) is not None}


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
    """A file that sets nothing and explains every setting."""
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
