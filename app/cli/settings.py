"""``slipstream settings``: lists, sets and resets the settings without the chat."""

import argparse
from dataclasses import replace
from typing import Final

from slipstream.app.cli.streams import notice, print_rows
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.app.settings.file import SettingsFile, known
from slipstream.app.settings.values import CONTEXTS, Value, all_settings
from slipstream.models.outside import shown_path

_OWN: Final = f"{CONTEXTS}."


def settings(options: argparse.Namespace) -> int:
    file = SettingsFile(Paths.default().settings)
    if options.settings_command == "set":
        if options.name.startswith(_OWN):
            return _keep_context(file, options.name, options.value)
        setting = known(options.name)
        value = setting.read(options.value)
        if setting.about.here:
            from slipstream.app.tui.settings.apply_settings import check_here  # imports the interface

            check_here(setting.name, str(value))
        file.change(setting.name, value)
    elif options.settings_command == "reset":
        for name in options.name:
            if name.startswith(_OWN):
                _keep_context(file, name, None)
        options.name = [name for name in options.name if not name.startswith(_OWN)]
        file.reset(*options.name)
    else:
        for problem in file.problems:
            notice(problem)
        _list(file, options.json)
        return 0
    names = [options.name] if isinstance(options.name, str) else options.name
    for name in names:
        print(f"{name} = {_word(file.settings.value(name))} (takes effect {known(name).about.when})")
    return 0


def _keep_context(file: SettingsFile, name: str, value: str | None) -> int:
    """Stores the context length of a single model, named by its file; None for ``value`` removes it."""
    usual, model = known("model.context"), name.removeprefix(_OWN)
    tokens = None if value is None else int(replace(usual, group=CONTEXTS, key=model).read(value))
    file.keep_context(model, tokens)
    print(f"{one_line(name)} = {usual.default if tokens is None else tokens} (takes effect {usual.about.when})")
    return 0


def _list(file: SettingsFile, as_json: bool) -> None:
    every = all_settings()
    if as_json:
        print_rows(
            [
                {
                    "name": name,
                    "value": file.settings.value(name),
                    "default": each.default,
                    "settled": bool(file.where(name)),
                    "about": each.about.text,
                }
                for name, each in every.items()
            ]
        )
        return
    values = {name: _word(file.settings.value(name))[:24] for name in every}
    wide, wider = max(map(len, every)), max(map(len, values.values()))
    for name, each in every.items():
        mark = "*" if file.where(name) else " "
        print(f"{mark} {name:<{wide}}  {values[name]:<{wider}}  {each.about.text}")
    for action, keys in file.settings.keys.items():
        print(f"* keys.{one_line(action)} = {_word(keys)}")
    for model, tokens in file.settings.contexts.items():
        print(f"* {_OWN}{one_line(model)} = {tokens}")
    print(f"* changed by you, in {shown_path(file.path)}; the others have their defaults.")


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return one_line(f"{value:g}" if isinstance(value, float) else str(value)) or '""'
