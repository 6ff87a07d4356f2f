"""The settings and their file. Changes keep the user's own text; command-line options override the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from slipstream.app.platform.safe_text import one_line
from slipstream.app.settings.toml_file import changing, parsed, text_of
from slipstream.app.settings.values import CONTEXTS, KEYS, Setting, Settings, Value, all_settings, titles
from slipstream.models.errors import SlipstreamError, UsageError, did_you_mean
from slipstream.models.outside import shown_path

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

GIVEN: Final = "given at the start"
_CONTEXT: Final = "model.context"
_SAME_NAME: Final = {  # the settings of options that have the name of their key, by table
    "model": ("drafter", "context", "kv_type", "gpu_layers", "cpu_experts"),
    "devices": ("rpc", "split_mode", "tensor_split", "main_gpu"),
    "sampling": (
        *("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "top_n_sigma", "dry", "logit_bias"),
        *("reasoning", "reasoning_budget", "typical"),
    ),
    "reply": ("max_tokens", "overflow", "exact"),
}
# the setting of an option, by the option's name
OPTIONS: Final[Mapping[str, str]] = {
    **{key: f"{group}.{key}" for group, keys in _SAME_NAME.items() for key in keys},
    "model": "model.name",
    "draft_device": "devices.draft",
    "temp": "sampling.temperature",
    "read_ahead": "ahead.read",
}
_MOST_PROBLEMS: Final = 20  # errors of a file that are named; the others are counted
_HEAD: Final = """\
# Settings of slipstream. What is commented out is at its default, which is shown.
# The settings screen writes here, too; it keeps comments and unknown entries.
"""
_KEYS: Final = f"""\
[{KEYS}]
# Keys: action = "key", such as
# next-drafter = "f7"
# The actions: settings screen (F9), below; several keys with commas, "" for none.
"""
_CONTEXTS: Final = f"""\
[{CONTEXTS}]
# Contexts of single models, in place of model.context: "file name" = tokens, such as
# "Qwen3-8B-Q4_K_M.gguf" = 131072
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a file."""

    # the settings; missing or invalid ones have their defaults
    settings: Settings = field(default_factory=Settings)
    # the valid settings in the file, by name
    values: MappingProxyType[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[str, ...] = ()  # the errors, a line each
    broken: str = ""  # why the file cannot be read at all, or empty; a broken file is never written to
    text: str = ""  # the file as it was read; empty if it is broken


def load(path: Path) -> Contents:
    """Reads a file of settings, which need not exist; raises nothing."""
    try:
        text = text_of(path)
        table = parsed(path, text)
    except UsageError as error:
        broken = f"{error.title} {error.hint}"
        return Contents(problems=(f"{broken} Until then the defaults hold.",), broken=broken)
    return _contents(path, text, table)


def checked_context(model: str, tokens: object) -> int:
    """A model's own context; raises ``UsageError`` if it is invalid."""
    if not model:
        raise UsageError("a context needs the name of a model's file.", "Write it behind contexts and a full stop.")
    return int(replace(all_settings()["model.context"], group=CONTEXTS, key=one_line(model)).checked(tokens))


def nearest(word: str, known: Iterable[str]) -> str:
    """A question that suggests the nearest known word, after a space, or nothing."""
    return f" {did_you_mean(word, known)}".rstrip()


def lines_of(text: str) -> dict[str, int]:
    """The lines, from 1, of tables and of keys by ``table.key``; the first of several counts."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, _ = line.partition("=")
        if line.lstrip().startswith("[") and "]" in line:
            table = line.partition("]")[0].strip("[ \t\"'")
            found.setdefault(table, number)
        elif equals and re.fullmatch(r"[\w.\-\"' \t]+", key):
            name = re.sub("[\"' \t]", "", key)
            found.setdefault(f"{table}.{name}" if table else name, number)
    return found


def _contents(path: Path, text: str, table: dict[str, Any]) -> Contents:
    known = all_settings()
    lines = lines_of(text)
    groups = [*dict.fromkeys(each.group for each in known.values()), KEYS, CONTEXTS]
    values: dict[str, Value] = {}
    keys: dict[str, str] = {}
    contexts: dict[str, int] = {}
    problems: list[str] = []

    def wrong(why: str, group: str, key: str = "") -> None:
        line = lines.get(f"{group}.{key}" if key else group, 0)
        problems.append(f"{shown_path(path)}{f', line {line}' if line else ''}: {one_line(why)}")

    for group, entries in table.items():
        if group not in groups:
            like = nearest(group, groups) if len(problems) < _MOST_PROBLEMS else ""  # it takes long
            wrong(f"there are no settings named {one_line(group)}; they were left there.{like}", group)
        elif not isinstance(entries, dict):
            wrong(f"{group} is no table; write [{group}] above its keys.", group)
        elif group == KEYS:
            keys = {action: str(key) for action, key in entries.items()}
        elif group == CONTEXTS:
            for model, tokens in entries.items():
                try:
                    contexts[model] = checked_context(model, tokens)
                except UsageError as error:
                    wrong(f"{error.title.rstrip('.')}; model.context is taken.", group, model)
        else:
            for key, value in entries.items():
                name = f"{group}.{key}"
                if name not in known:
                    like = _like(name) if len(problems) < _MOST_PROBLEMS else ""
                    wrong(f"there is no setting {one_line(name)}; it was left there.{like}", group, key)
                    continue
                try:
                    values[name] = known[name].checked(value)
                except UsageError as error:
                    default = str(known[name].default)
                    default = default.lower() if isinstance(known[name].default, bool) else default or "nothing"
                    wrong(f"{error.title.rstrip('.')}; {default} is taken.", group, key)
    if len(problems) > _MOST_PROBLEMS:
        more = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [f"{shown_path(path)}: {more:,} more entries are wrong; they were left there."]
    settings = Settings(keys=MappingProxyType(keys), contexts=MappingProxyType(contexts)).having(values)
    return Contents(settings, MappingProxyType(values), tuple(problems), text=text)


def _like(name: str) -> str:
    """A question that suggests a setting for an unknown one, after a space, or nothing."""
    key = name.rpartition(".")[2]
    of_its_key = (f" Did you mean {each.name}?" for each in all_settings().values() if each.key == key)
    return nearest(name, all_settings()) or next(of_its_key, "")


class SettingsFile:
    """The settings of the file, overridden by the command line and by changes that could not be written."""

    def __init__(self, path: Path, given: Mapping[str, Value] | None = None) -> None:
        """Reads the file, which need not exist; ``given`` overrides its settings by name until slipstream ends."""
        self.path = path
        self._read: Contents = load(path)
        self._notice = ""
        self._over: dict[str, Value | None] = dict(given or {})
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
        return self._read.problems

    @property
    def broken(self) -> str:
        """Why the file cannot be read, or empty."""
        return self._read.broken

    def where(self, name: str) -> str:
        """The origin of a setting's value, in words; empty for its default."""
        if name in self._over:
            return GIVEN if name in self._given else "until slipstream ends"
        return "settled" if name in self._read.values else ""

    def change(self, name: str, value: Value) -> None:
        """Sets a value in the file; if that cannot be written, a valid value still applies until slipstream ends."""
        self._write({name: known(name).checked(value)})

    def reset(self, *names: str) -> None:
        self._write({known(name).name: None for name in names})

    def keep_context(self, model: str, tokens: int | None) -> None:
        """Sets the own context of a model, by its file's name; None returns to ``model.context``."""
        value = None if tokens is None else checked_context(model, tokens)
        self._over.pop(_CONTEXT, None)
        self._write({f"{CONTEXTS}.{model}": value})

    def restore(self, values: Mapping[str, Value | None]) -> None:
        """Sets several values by name, None for the default; a key is named ``keys.`` and its action."""
        set_now = {name: value for name, value in values.items() if value is not None and name in all_settings()}
        self._write({**values, **{name: known(name).checked(value) for name, value in set_now.items()}})

    def settled(self, name: str) -> Value | None:
        """The value in the file or the one that overrides it; None for the default."""
        return self._over.get(name, self._read.values.get(name))

    @property
    def chosen(self) -> frozenset[str]:
        """The fields of ``Sampling`` that the file or the command line sets."""
        known = all_settings().values()
        return frozenset(each.key for each in known if each.group == "sampling" and self.settled(each.name) is not None)

    def _write(self, values: Mapping[str, Value | None]) -> None:
        for name in values:
            self._over.pop(name, None)
        try:
            self._put(values)
        except SlipstreamError as error:
            self._over |= values
            raise SlipstreamError(error.title, f"{error.hint} Until slipstream ends the change holds.") from error

    def take_notice(self) -> str:
        """Returns what happened to the file since the last call, for the user; empty if nothing did."""
        notice, self._notice = self._notice, ""
        return notice

    def _put(self, values: Mapping[str, Value | None]) -> None:
        with changing(self.path, self._read.text if self._read.text.strip() else template()) as document:
            gone = bool(self._read.text.strip()) and not text_of(self.path).strip()
            for name, value in values.items():
                _put(document, name, value)
        self._read = load(self.path)
        if gone:
            self._notice = f"{self.path.name} was deleted or emptied: all settings were written to a new one."


def known(name: str) -> Setting:
    """The setting of a name; without one, the error names the nearest."""
    every = all_settings()
    if name not in every:
        raise UsageError(f"there is no setting {one_line(name)}.{_like(name)}", "slipstream settings lists all.")
    return every[name]


def given(options: Mapping[str, Any]) -> dict[str, Value]:
    """The settings that command-line options set, not checked; an option of None was not given."""
    return {name: options[option] for option, name in OPTIONS.items() if options.get(option) is not None}


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
    return "\n".join([*parts, _KEYS, _CONTEXTS])


def _commented(each: Setting) -> str:
    import tomlkit

    return f"# {each.key} = {tomlkit.item(each.default).as_string()}"


def _put(document: TOMLDocument, name: str, value: Value | None) -> None:
    """Sets or removes a key; a setting takes the place of the comment that shows its default, and gives it back."""
    from tomlkit import comment, item, table
    from tomlkit.items import Comment, SingleKey, Table

    group, key = name.split(".", 1)
    entries, setting = document.get(group), all_settings().get(name)
    if setting and isinstance(entries, Table) and not entries.is_super_table():  # it has a header of its own
        body = entries.value.body
        for at, (its_key, content) in enumerate(body):
            if value is None and its_key is not None and its_key.key == key:
                body[at] = (None, comment(_commented(setting).removeprefix("# ")))
                return
            waiting = isinstance(content, Comment) and re.match(rf"#\s*{re.escape(key)}\s*=", content.trivia.comment)
            if value is not None and waiting and key not in entries:
                body[at] = (SingleKey(key), item(value))
                return
    if value is not None:
        if not isinstance(entries, dict):
            document[group] = table()
        document[group][key] = value
    elif isinstance(entries, dict):
        entries.pop(key, None)
