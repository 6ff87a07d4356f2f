"""Shell completion: small scripts call slipstream itself for the completions, so they are never outdated.

``slipstream completion SHELL`` prints the script; it calls ``slipstream --complete WORD...`` with the words up to the
cursor, the last one unfinished. It prints a line per completion: word, tab, meaning; ``:files`` for all file names.

shtab is not used: its scripts contain fixed options and choices. Names of models, chats and settings would still
need the functions below, and another function for each kind of name and each shell.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from slipstream.app.cli.parser import Parser
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import SlipstreamError

FILES: Final = ":files"
_FILE_WORDS: Final = frozenset({"FILE", "PATH"})
_MODEL_OPTIONS: Final = frozenset({"model", "draft_model"})

_BASH: Final = r"""# slipstream completion for bash
_slipstream() {
    local word="${COMP_WORDS[COMP_CWORD]}" line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$word")
        else
            COMPREPLY+=("$(printf %q "${line%%$'\t'*}")")
        fi
    done < <(slipstream --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//:}
complete -F _slipstream slipstream
"""
_ZSH: Final = r"""#compdef slipstream
# slipstream completion for zsh
_slipstream() {
    local line word
    local -a found
    for line in "${(@f)$(slipstream --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            _files
        elif [[ -n $line ]]; then
            word=${line%%$'\t'*}
            found+=("${word//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#found )) && _describe -o slipstream found
}
if [[ $funcstack[1] == _slipstream ]]; then _slipstream "$@"; else compdef _slipstream slipstream; fi
"""
_FISH: Final = r"""# slipstream completion for fish
function __slipstream_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -e words[1]
    for line in (slipstream --complete $words "$current" 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$current"
        else
            echo $line
        end
    end
end
complete -c slipstream -f -a "(__slipstream_complete)"
"""
SCRIPTS: Final[Mapping[str, str]] = MappingProxyType({"bash": _BASH, "zsh": _ZSH, "fish": _FISH})


def candidates(parser: Parser, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the completions of the last word.

    Args:
        words: The words after ``slipstream``; the last one is unfinished and may be empty.

    Yields:
        A word and its meaning; ``FILES`` and an empty text if files are possible.
    """
    *before, word = words or [""]
    waiting: argparse.Action | None = None
    places = _places(parser)
    for each in before:
        if waiting is not None:
            waiting = None
        elif each.startswith("-") and each != "-":
            action = parser._option_string_actions.get(each)
            waiting = action if action is not None and action.nargs is None and _takes_value(action) else None
        elif places and isinstance(places[0], argparse._SubParsersAction):
            parser = places[0].choices.get(each, parser)
            places = _places(parser)
        elif places and places[0].nargs not in ("*", "+"):
            places = places[1:]
    if waiting is not None:
        found = _values(waiting)
    elif word.startswith("-"):
        found = _options(parser)
    else:
        found = _values(places[0], parser.prog) if places else iter(())
    return (pair for pair in found if pair[0] == FILES or pair[0].startswith(word))


def _places(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser.actions if not action.option_strings]


def _takes_value(action: argparse.Action) -> bool:
    return isinstance(action, argparse._StoreAction | argparse._AppendAction)


def _options(parser: Parser) -> Iterator[tuple[str, str]]:
    for action in parser.actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            yield action.option_strings[-1], action.help or ""


def _values(action: argparse.Action, command: str = "") -> Iterator[tuple[str, str]]:
    """Lists the values of an option, or of a positional argument."""
    if isinstance(action, argparse._SubParsersAction):
        yield from ((each.dest, each.help or "") for each in action._choices_actions)
    elif action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    elif action.dest == "drafter" or (action.dest == "name" and command.startswith("slipstream drafters")):
        yield from _drafters()
    elif action.dest == "name" and command.startswith("slipstream settings"):
        yield from _settings()
    elif action.dest in _MODEL_OPTIONS or (action.dest == "name" and action.metavar == "NAME"):
        yield from _models()
        if action.dest in _MODEL_OPTIONS:
            yield FILES, ""
    elif action.dest == "method":
        yield from ((name, f"train {name} heads") for name in ("medusa", "kangaroo", "space", "dflash"))
    elif action.dest == "chat":
        yield from _chats()
    elif action.metavar in _FILE_WORDS or action.dest in ("path", "paths"):
        yield FILES, ""


def _models() -> Iterator[tuple[str, str]]:
    from slipstream.app.library.pairs import store_of
    from slipstream.app.platform.paths import Paths

    with suppress(SlipstreamError, OSError):
        yield from ((one_line(model.name), model.origin) for model in store_of(Paths.default()).installed())


def _settings() -> Iterator[tuple[str, str]]:
    from slipstream.app.settings.values import all_settings

    yield from ((name, each.about.text) for name, each in all_settings().items())


def _drafters() -> Iterator[tuple[str, str]]:
    from slipstream.drafters.registry import METHODS

    yield "auto", "the best at every step"
    yield from ((name, method.about) for name, method in METHODS.items() if name != "auto")


def _chats() -> Iterator[tuple[str, str]]:
    from slipstream.app.chats.store import ChatStore
    from slipstream.app.platform.paths import Paths

    paths = Paths.default()
    if not paths.chats.exists():
        return
    with suppress(SlipstreamError, OSError):
        store = ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images)
        try:
            yield from ((one_line(chat.id), one_line(chat.title)) for chat in store.list_chats(50))
        finally:
            store.close()


def answer(parser: Parser, words: Sequence[str]) -> str:
    lines = []
    for word, about in candidates(parser, words):
        about = " ".join(about.replace("%%", "%").split())
        lines.append(f"{word}\t{about}" if about else word)
    return "".join(f"{line}\n" for line in lines)
