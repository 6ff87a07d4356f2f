"""The parser of a command line, the types of its values, and the end of its help."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from slipstream.models.errors import UsageError, did_you_mean
from slipstream.models.outside import decimal_number, whole_number

N = TypeVar("N", int, float)
_LARGEST_SEED: Final = (1 << 64) - 1
_MOST_WORDS: Final = 300  # maximum characters of an error message, which may quote the whole command line
EXAMPLES: Final = (  # a command, what to type, and what it does
    ("", "slipstream", "the chat, with the model that was chosen last"),
    ("", "slipstream -m bundled --chat notes", "continue the chat called notes, or begin it"),
    ("", "slipstream --inline", "a few questions, below the prompt of the shell"),
    ("", 'slipstream run -p "Why is the sky blue?"', "one reply to standard output"),
    ("run", 'slipstream run -p "Why is the sky blue?"', "one reply"),
    ("run", 'git diff | slipstream run -p "Write a commit message:"', "piped text comes below the prompt"),
    ("run", "slipstream run --temp 0 --seed 1 < question.txt > answer.txt", "a filter"),
    ("run", 'slipstream run --reasoning off -p "Why?"', "an answer without thoughts, from a model that can do so"),
    ("run", 'slipstream run --chat notes -p "And then?"', "continue a kept chat, with its own sampling"),
    ("run", "slipstream run --json-schema order.json -p 'Two teas, please.'", "an answer that a program can read"),
    ("run", 'slipstream run -m gemma-3-4b --image cat.png -p "What is it?"', "a picture, for a model that sees"),
    ("run", "slipstream run --json -p Hi | tail -n 1 | jq .tok_per_s", "the summary is the last line"),
    ("completion", "source <(slipstream completion bash)", "in ~/.bashrc"),
    ("completion", "source <(slipstream completion zsh)", "in ~/.zshrc, below compinit"),
    ("completion", "slipstream completion fish > ~/.config/fish/completions/slipstream.fish", "once, for fish"),
    ("bench", "slipstream bench", "what each drafter gains, on prompts of three kinds"),
    ("bench", "slipstream bench -m qwen3 --prompts mine.txt --json figures.json", "another model, your prompts"),
    ("bench", "slipstream bench --check", "compare every drafter's replies with plain decoding's"),
    ("models", "slipstream models", "what is here"),
    ("models", "slipstream models search qwen3 4b", "what is on the hub"),
    ("models", "slipstream models pull Qwen/Qwen3-4B-GGUF:Q4_K_M --with-drafter", "fetch a model and its drafter"),
    ("models list", "slipstream models list --json", "for a script"),
    ("models search", "slipstream models search qwen3 4b --limit 5", "the most fetched ones"),
    ("models search", "slipstream models search Qwen/Qwen3-4B-GGUF", "the quantizations of one"),
    ("models pull", "slipstream models pull Qwen/Qwen3-4B-GGUF:Q4_K_M", "given again, it continues where it stopped"),
    ("models import", "slipstream models import ~/Downloads/model.gguf", "link to it, or --copy it"),
    ("models verify", "slipstream models verify qwen3", "compare it with what was published"),
    ("models rm", "slipstream models rm qwen3", "it can be brought back with models undo"),
    ("models rm", "slipstream models rm qwen3 --now", "delete it for good"),
    ("models undo", "slipstream models undo", "bring back the last removed model"),
    ("models pairs", "slipstream models pairs qwen3", "its drafters, and why others do not work with it"),
    ("drafters", "slipstream drafters", "which drafters work with the model that was chosen last"),
    ("drafters", "slipstream drafters train medusa -m qwen3", "train heads for it here"),
    ("drafters list", "slipstream drafters list -m qwen3", "which work with it, and why others do not"),
    ("drafters train", "slipstream drafters train medusa -m qwen3", "on what the model itself writes"),
    ("drafters train", "slipstream drafters train kangaroo --on chats", "on your own chats, for the bundled model"),
    ("drafters train", "slipstream drafters train all --prompts asked.jsonl", "heads of every kind, on your prompts"),
    ("drafters import", "slipstream drafters import medusa-vicuna-7b -m vicuna", "published heads"),
    ("drafters off", "slipstream drafters off lookahead -m qwen3", "auto no longer uses it with this model"),
    ("drafters on", "slipstream drafters on lookahead -m qwen3", "auto uses it again"),
    ("drafters index", "slipstream drafters index ~/project", "draft from your files"),
    ("drafters index", "slipstream drafters index --list", "what is indexed"),
    ("chats", "slipstream chats", "all chats, the newest first"),
    ("chats list", "slipstream chats list --json", "one object a line"),
    ("chats search", "slipstream chats search garden fence", "in every branch of every chat"),
    ("chats show", "slipstream chats show notes", "as Markdown"),
    ("chats show", 'slipstream chats show "garden pl"', "by the beginning of its title"),
    ("chats export", "slipstream chats export --format json -o chats.json", "to import it elsewhere"),
    ("chats import", "slipstream chats import conversations.json", "an export of ChatGPT"),
    ("chats delete", "slipstream chats delete notes", "for good"),
    ("chats rename", 'slipstream chats rename notes "Garden plans"', "the new title last"),
    ("settings", "slipstream settings", "all settings"),
    ("settings list", "slipstream settings list --json", "one object a setting"),
    ("settings set", "slipstream settings set sampling.temperature 0.5", "as on the screen"),
    ("settings reset", "slipstream settings reset sampling.temperature", "its default again"),
    ("lend", "slipstream lend", "to this machine alone, and to those that have a tunnel to it"),
    ("lend", "slipstream lend --listen 192.168.1.5", "to a network that you trust"),
    ("doctor", "slipstream doctor --json > machine.json", "for a report"),
    ("paths", "slipstream paths", "one place a line"),
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

    def add_subparsers(self, **more: Any) -> argparse._SubParsersAction[Any]:
        """Adds subcommands; their own parsers check the words after them."""
        commands = super().add_subparsers(**more)
        commands.type = str
        return commands

    def format_help(self) -> str:
        parts = [super().format_help(), f"{self.more()}\n" if self.more else "", ending(self.prog)]
        return "\n".join(part for part in parts if part)

    def parse_known_args(self, *given: Any, **more: Any) -> Any:
        """Parses arguments; reports unknown ones as an error of this command and not of the one around it."""
        self._before = dict(zip(given[0][1:], given[0], strict=False)) if given and given[0] else {}
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
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            name = " ".join([*self.prog.split()[1:], value])
            option = self._before.get(value, "")
            if option.startswith("--") and option not in self._option_string_actions:  # what follows it is its value
                raise UsageError(f"{option} is no option here.", f"Put it behind a command: slipstream run {option} …")
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
    return _number(whole_number, value)


def decimal(value: str) -> float:
    return _number(decimal_number, value)


def seed(value: str) -> int:
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


def examples_of(command: str) -> list[tuple[str, str]]:
    return [(typed, does) for name, typed, does in EXAMPLES if f"slipstream {name}".strip() == command]


def ending(command: str) -> str:
    """The end of the help of a command, by its full name, such as ``slipstream models pull``."""
    parts = []
    if examples := examples_of(command):
        parts += ["examples:", *(f"  {typed}\n      {does}" for typed, does in examples), ""]
    parts += ["environment:", *_rows(ENVIRONMENT), "", "exit codes:", *_rows(EXIT_CODES)]
    return "\n".join(parts) + "\n"


def _rows(rows: tuple[tuple[str, str], ...]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {about}" for name, about in rows]
