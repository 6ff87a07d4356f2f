"""Shell completion by argcomplete: a shell runs slipstream, which answers from its parser and from what is kept.

A static script, as shtab writes, would have no names of models, chats, settings and drafters.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Final, TextIO

from argcomplete import autocomplete
from argcomplete.completers import FilesCompleter, SuppressCompleter
from argcomplete.shell_integration import shellcode

from slipstream.app.cli.parser import Parser
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import SlipstreamError

_FILE_WORDS: Final = frozenset({"FILE", "PATH", "PATH…", "FILE[:SCALE]"})
_MODEL_OPTIONS: Final = frozenset({"model", "draft_model"})
Names = Iterator[tuple[str, str]]  # names and their meaning


def script(shell: str) -> str:
    return shellcode(["slipstream"], shell=shell)


def complete(parser: Parser, output: TextIO | None = None) -> None:
    """Answers the shell that runs this program for completions, and exits; returns if none does."""
    _add_completers(parser)
    quiet = SuppressCompleter()
    autocomplete(
        parser, always_complete_options=False, default_completer=quiet, exit_method=sys.exit, output_stream=output
    )


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                _add_completers(each)
        elif names := _names(action, parser.prog):
            files = action.dest in _MODEL_OPTIONS
            action.completer = partial(_completed, names, files)  # type: ignore[attr-defined]
        elif action.metavar in _FILE_WORDS or action.dest in ("path", "paths"):
            action.completer = FilesCompleter()  # type: ignore[attr-defined]


def _completed(names: Callable[[], Names], files: bool, prefix: str, **_: object) -> dict[str, str]:
    found = {one_line(name): one_line(about) for name, about in names() if name.startswith(prefix)}
    return found | (dict.fromkeys(FilesCompleter()(prefix), "") if files else {})


def _names(action: argparse.Action, command: str) -> Callable[[], Names] | None:
    if action.dest == "drafter" or (action.dest == "name" and command.startswith("slipstream drafters")):
        return _drafters
    if action.dest == "name" and command.startswith("slipstream settings"):
        return _settings
    if action.dest in _MODEL_OPTIONS or (action.dest == "name" and action.metavar == "NAME"):
        return _models
    if action.dest == "method":
        return _trained
    return _chats if action.dest == "chat" else None


def _trained() -> Names:
    from slipstream.app.cli.drafters_train import ALL
    from slipstream.models.heads.matching_heads import TRAINED

    yield from ((name, f"train {name} heads") for name in (*TRAINED, ALL))


def _models() -> Names:
    from slipstream.app.library.pairs import store_of
    from slipstream.app.platform.paths import Paths

    with suppress(SlipstreamError, OSError):
        yield from ((model.name, model.origin) for model in store_of(Paths.default()).installed())


def _settings() -> Names:
    from slipstream.app.settings.values import all_settings

    yield from ((name, each.about.text) for name, each in all_settings().items())


def _drafters() -> Names:
    from slipstream.drafters.registry import METHODS

    yield "auto", "the best at every step"
    yield from ((name, method.about) for name, method in METHODS.items() if name != "auto")


def _chats() -> Names:
    from slipstream.app.chats.store import ChatStore
    from slipstream.app.platform.paths import Paths

    with suppress(SlipstreamError, OSError):
        paths = Paths.default()
        if paths.chats.exists():
            with closing(ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images)) as store:
                yield from ((chat.id, chat.title) for chat in store.list_chats(50))
