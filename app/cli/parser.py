"""The parser of a command line, the types of its values, and the end of its help."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from slipstream.models.errors import UsageError, did_you_mean
from slipstream.models.outside import decimal_number, whole_number

N = TypeVar("N", int, float)
_LARGEST_SEED: Final = (1 << 64) - 1
_MOST_WORDS: Final = 300  # maximum characters of an error message, which may quote the whole command line
# full name of a command to examples: what to type, and what it does
EXAMPLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = MappingProxyType(
    {
        "slipstream": (
            ("slipstream", "the chat, with the model that was chosen last"),
            ("slipstream -m bundled --chat notes", "continue the chat called notes, or begin it"),
            ("slipstream --inline", "a few questions, below the prompt of the shell"),
            ('slipstream run -p "Why is the sky blue?"', "one reply to standard output"),
        ),
        "slipstream run": (
            ('slipstream run -p "Why is the sky blue?"', "one reply"),
            ('git diff | slipstream run -p "Write a commit message:"', "piped text comes below the prompt"),
            ("slipstream run --temp 0 --seed 1 < question.txt > answer.txt", "a filter"),
            ('slipstream run --reasoning off -p "Why?"', "an answer without thoughts, from a model that can do so"),
            ('slipstream run --chat notes -p "And then?"', "continue a kept chat, with its own sampling"),
            ("slipstream run --json-schema order.json -p 'Two teas, please.'", "an answer that a program can read"),
            ('slipstream run -m gemma-3-4b --image cat.png -p "What is it?"', "a picture, for a model that sees"),
            ("slipstream run --json -p Hi | tail -n 1 | jq .tok_per_s", "the summary is the last line"),
        ),
        "slipstream completion": (
            ("source <(slipstream completion bash)", "in ~/.bashrc"),
            ("source <(slipstream completion zsh)", "in ~/.zshrc, below compinit"),
            ("slipstream completion fish > ~/.config/fish/completions/slipstream.fish", "once, for fish"),
        ),
        "slipstream bench": (
            ("slipstream bench", "what each drafter gains, on prompts of three kinds"),
            ("slipstream bench -m qwen3 --prompts mine.txt --json figures.json", "another model, your prompts"),
            ("slipstream bench --check", "compare every drafter's replies with plain decoding's"),
        ),
        "slipstream models": (
            ("slipstream models", "what is here"),
            ("slipstream models search qwen3 4b", "what is on the hub"),
            ("slipstream models pull Qwen/Qwen3-4B-GGUF:Q4_K_M --with-drafter", "fetch a model and its drafter"),
        ),
        "slipstream models list": (("slipstream models list --json", "for a script"),),
        "slipstream models search": (
            ("slipstream models search qwen3 4b --limit 5", "the most fetched ones"),
            ("slipstream models search Qwen/Qwen3-4B-GGUF", "the quantizations of one"),
        ),
        "slipstream models pull": (
            ("slipstream models pull Qwen/Qwen3-4B-GGUF:Q4_K_M", "given again, it continues where it stopped"),
        ),
        "slipstream models import": (("slipstream models import ~/Downloads/model.gguf", "link to it, or --copy it"),),
        "slipstream models verify": (("slipstream models verify qwen3", "compare it with what was published"),),
        "slipstream models rm": (
            ("slipstream models rm qwen3", "it can be brought back with models undo"),
            ("slipstream models rm qwen3 --now", "delete it for good"),
        ),
        "slipstream models undo": (("slipstream models undo", "bring back the last removed model"),),
        "slipstream models pairs": (
            ("slipstream models pairs qwen3", "its drafters, and why others do not work with it"),
        ),
        "slipstream drafters": (
            ("slipstream drafters", "which drafters work with the model that was chosen last"),
            ("slipstream drafters train medusa -m qwen3", "train heads for it here"),
        ),
        "slipstream drafters list": (
            ("slipstream drafters list -m qwen3", "which work with it, and why others do not"),
        ),
        "slipstream drafters train": (
            ("slipstream drafters train medusa -m qwen3", "on what the model itself writes"),
            ("slipstream drafters train kangaroo --on chats", "on your own chats, for the bundled model"),
            ("slipstream drafters train all --prompts asked.jsonl", "heads of every kind, on answers to your prompts"),
        ),
        "slipstream drafters import": (("slipstream drafters import medusa-vicuna-7b -m vicuna", "published heads"),),
        "slipstream drafters off": (
            ("slipstream drafters off lookahead -m qwen3", "auto no longer uses it with this model"),
        ),
        "slipstream drafters on": (("slipstream drafters on lookahead -m qwen3", "auto uses it again"),),
        "slipstream drafters index": (
            ("slipstream drafters index ~/project", "draft from your files"),
            ("slipstream drafters index --list", "what is indexed"),
        ),
        "slipstream chats": (("slipstream chats", "all chats, the newest first"),),
        "slipstream chats list": (("slipstream chats list --json", "one object a line"),),
        "slipstream chats search": (("slipstream chats search garden fence", "in every branch of every chat"),),
        "slipstream chats show": (
            ("slipstream chats show notes", "as Markdown"),
            ('slipstream chats show "garden pl"', "by the beginning of its title"),
        ),
        "slipstream chats export": (("slipstream chats export --format json -o chats.json", "to import it elsewhere"),),
        "slipstream chats import": (("slipstream chats import conversations.json", "an export of ChatGPT"),),
        "slipstream chats delete": (("slipstream chats delete notes", "for good"),),
        "slipstream chats rename": (('slipstream chats rename notes "Garden plans"', "the new title last"),),
        "slipstream settings": (("slipstream settings", "all settings"),),
        "slipstream settings list": (("slipstream settings list --json", "one object a setting"),),
        "slipstream settings set": (("slipstream settings set sampling.temperature 0.5", "as on the screen"),),
        "slipstream settings reset": (("slipstream settings reset sampling.temperature", "its default again"),),
        "slipstream lend": (
            ("slipstream lend", "to this machine alone, and to those that have a tunnel to it"),
            ("slipstream lend --listen 192.168.1.5", "to a network that you trust"),
        ),
        "slipstream doctor": (("slipstream doctor --json > machine.json", "for a report"),),
        "slipstream paths": (("slipstream paths", "one place a line"),),
    }
)

ENVIRONMENT: Final = (
    ("SLIPSTREAM_HOME", "keep everything below this folder"),
    ("HF_TOKEN", "token of the hub, for models that ask for one"),
    ("HF_HUB_OFFLINE", "1: never use the hub"),
    ("HF_ENDPOINT", "another address of the hub"),
    ("NO_COLOR", "set to anything: no colours"),
)
EXIT_CODES: Final = (
    ("0", "done"),
    ("1", "an error; standard error says what, why and what to try"),
    ("2", "wrong usage: another option or input is needed"),
    ("130", "interrupted by Ctrl-C; what was written until then stays"),
    ("141", "the program that read the output has ended, as head does"),
)


class Parser(argparse.ArgumentParser):
    """Reports wrong use in one line with exit code 2, and parses every value by the functions below."""

    more: Callable[[], str] | None = None  # returns more help; called only for --help, because it is slow

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for kind, read in ((None, text), (int, whole), (float, decimal)):
            self.register("type", kind, read)
        self._negative_number_matcher = re.compile(r"-(?:[\d.]|inf|nan)", re.IGNORECASE)  # argparse's own lacks -1e5

    @property
    def actions(self) -> list[argparse.Action]:
        """Its options and positional arguments, subcommands included."""
        return self._actions

    def add_subparsers(self, **more: Any) -> argparse._SubParsersAction[Any]:
        """Adds subcommands; their own parsers check the words after them."""
        commands = super().add_subparsers(**more)
        commands.type = str
        return commands

    def format_help(self) -> str:
        """The help, with examples, environment and exit codes."""
        parts = [super().format_help(), f"{self.more()}\n" if self.more else "", ending(self.prog)]
        return "\n".join(part for part in parts if part)

    def parse_known_args(self, *given: Any, **more: Any) -> Any:
        """Parses arguments; reports unknown ones as an error of this command and not of the one around it."""
        found, unknown = super().parse_known_args(*given, **more)
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            meant = did_you_mean(unknown[0].partition("=")[0], options)
            raise UsageError(
                f"unrecognized arguments: {' '.join(unknown)[:_MOST_WORDS]}.",
                f"{meant} Try {self.prog} --help.".strip(),
            )
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reports an unknown command, with a similar one if there is one."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            name = " ".join([*self.prog.split()[1:], value])
            meant = did_you_mean(value, action.choices)
            hint = f"{meant} {self.prog} --help lists all." if meant else f"{self.prog} --help lists all."
            raise UsageError(f"there is no command {name[:_MOST_WORDS]}.", hint)
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            option = message.removeprefix("argument ").split(":")[0].split("/")[-1]
            message += f" (one that begins with a dash: {option}=-…)"
        raise UsageError(f"{message[:_MOST_WORDS]}.", f"Try {self.prog} --help.")


def text(value: str) -> str:
    """Reads a text that is not empty; this is the default type."""
    return possibly_empty(_filled(value))


def possibly_empty(value: str) -> str:
    """Reads any text that is valid UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that the locale cannot decode, such as those of "é" with LC_ALL=C
        try:
            return os.fsencode(value).decode()
        except UnicodeError as error:
            raise argparse.ArgumentTypeError("the value is not UTF-8") from error
    return value


def path(value: str) -> str:
    """Reads the name of a file, a folder or a model, in the file system's encoding."""
    return _filled(value)


def whole(value: str) -> int:
    """Reads a whole number, for options of type ``int``."""
    return _number(whole_number, value)


def decimal(value: str) -> float:
    """Reads a decimal number, for options of type ``float``."""
    return _number(decimal_number, value)


def seed(value: str) -> int:
    """Reads a whole number of up to 64 bits."""
    return _number(lambda text: whole_number(text, -_LARGEST_SEED, _LARGEST_SEED), value)


def _number(read: Callable[[str], N], value: str) -> N:
    try:
        return read(_filled(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _filled(value: str) -> str:
    if not value:
        raise argparse.ArgumentTypeError("the value is empty")
    return value


def ending(command: str) -> str:
    """The end of the help of a command, by its full name, such as ``slipstream models pull``."""
    parts = []
    if examples := EXAMPLES.get(command):
        parts += ["examples:", *(f"  {typed}\n      {does}" for typed, does in examples), ""]
    parts += ["environment:", *_rows(ENVIRONMENT), "", "exit codes:", *_rows(EXIT_CODES)]
    return "\n".join(parts) + "\n"


def _rows(rows: tuple[tuple[str, str], ...]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {about}" for name, about in rows]
