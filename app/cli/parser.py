"""The parser of the command line and its help; imports no command, so that every command starts fast."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from slipstream.app.bench import PAPERS_TYPICAL
from slipstream.app.cli.options import (
    add_bench,
    add_chats,
    add_command,
    add_drafters,
    add_lend,
    add_lora,
    add_models,
    add_settings,
)
from slipstream.app.cli.values import decimal, path, possibly_empty, seed, text, whole
from slipstream.models.chat_template.marks import AUTO_LEVEL, LEVELS
from slipstream.models.errors import UsageError, did_you_mean

_MOST_WORDS: Final = 300  # maximum characters of an error message, which may quote the whole command line


class Parser(argparse.ArgumentParser):
    """Reports wrong use in one line with exit code 2, and parses every value by ``slipstream.app.cli.values``."""

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


class _Version(argparse.Action):
    """Prints the version; looks it up only then, because this takes as long as all imports of this module."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"slipstream {version('slipstream')}")
        parser.exit()


def make_parser() -> Parser:
    parser = Parser(prog="slipstream", description="Chat with a large language model on your own computer.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--as-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--no-prepare",
        dest="read_ahead",
        action="store_const",
        const=False,
        help="do not read the prompt while it is typed (on battery, it never is)",
    )
    parser.add_argument(
        "--inline",
        action="store_true",
        help="a short chat below the prompt of the shell; its text stays in the terminal",
    )
    _model_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    run = commands.add_parser("run", help="print one reply; piped text joins the prompt")
    run.add_argument("-p", "--prompt", help="the prompt; piped text is put below it")
    run.add_argument(
        "--image", action="append", default=[], type=path, metavar="FILE", help="an image above the prompt; repeatable"
    )
    run.add_argument("--system", default="", type=possibly_empty, help="system message")
    run.add_argument("--max-tokens", type=int, metavar="N", help="at most N tokens in the reply (0: no limit)")
    run.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="text that ends the reply; may be repeated"
    )
    shape = run.add_mutually_exclusive_group()
    shape.add_argument("--json-schema", type=path, metavar="FILE", help="the answer is JSON that fits this schema")
    shape.add_argument(
        "--grammar",
        type=path,
        metavar="FILE",
        help="the answer fits this grammar, written as Lark or GBNF",
    )
    run.add_argument("--json", action="store_true", help="one JSON object a step, then a summary; with the reasoning")
    _model_options(run, inherit=True)
    run.more = _methods
    add_bench(commands)
    add_drafters(commands)
    add_models(commands)
    add_chats(commands)
    add_settings(commands)
    add_lend(commands)
    doctor = commands.add_parser("doctor", help="what this machine has, what is broken, what would be faster")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.add_argument(
        "--rpc", default=argparse.SUPPRESS, metavar="HOST:PORT,…", help="also ask these machines what they lend"
    )
    commands.add_parser("paths", help="where everything is kept")
    completion = add_command(commands, "completion", "print a script that completes slipstream's commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    return parser


def _methods() -> str:
    from slipstream.drafters.registry import IN_ORDER, METHODS, TOGETHER

    rows = [(name, method.about) for name, method in METHODS.items()]
    rows.append((f"A{IN_ORDER}B", "the first of several that is confident, as in lookup+draft"))
    rows.append((f"'A{TOGETHER}B'", "the guesses of several in one tree"))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {about}" for name, about in rows]
    return "\n".join(["drafters:", *lines, "Which of them work with a model: slipstream drafters list -m MODEL."])


def _model_options(parser: argparse.ArgumentParser, inherit: bool = False) -> None:
    """Adds the options that the chat and ``run`` share.

    Args:
        inherit: Whether an option that is not given after the command keeps the value given before it.
    """

    def option(*names: str, default: object = None, **more: Any) -> None:
        parser.add_argument(*names, default=argparse.SUPPRESS if inherit else default, **more)

    option(
        "-m", "--model", type=path, help="a name of models list, a path to a .gguf, or bundled (what was chosen last)"
    )
    option("--draft-model", type=path, metavar="MODEL", help="a draft model's name or .gguf, of any vocabulary")
    option("--mmproj", type=path, metavar="FILE", help="the file that encodes images (the one found for the model)")
    option("--draft-gpu-layers", type=int, default=-1, metavar="N", help="its layers on the GPU (-1: all)")
    option("--drafter", metavar="NAME", help="the drafting method; slipstream run --help lists all")
    option("--context", type=int, metavar="N", help="context in tokens (0: the model's own)")
    option(
        "--kv-type",
        choices=("auto", "f16", "q8_0", "q4_0"),
        help="numbers of the KV cache; q8_0 takes half the memory of f16, q4_0 a quarter and is less exact (auto)",
    )
    option(
        "--overflow",
        choices=("drop", "compact", "stop"),
        help="when a chat outgrows the context: drop the oldest messages, compact them to a summary, or stop (drop)",
    )
    option("--gpu-layers", type=int, metavar="N", help="the model's layers on the GPU (-1: all that fit)")
    option(
        "--cpu-experts", type=int, metavar="N", help="its first layers whose experts stay in memory (-1: few as fit)"
    )
    option("--rpc", metavar="HOST:PORT,…", help="also use the devices that these machines lend (slipstream lend)")
    add_lora(parser, argparse.SUPPRESS if inherit else None)
    option(
        "--split-mode", choices=("layer", "row", "none"), help="how GPUs share the model; none: the main one (layer)"
    )
    option("--tensor-split", metavar="A,B,…", help="share of each GPU (filled evenly)")
    option("--main-gpu", type=int, metavar="N", help="number of the main GPU (0)")
    option("--draft-device", metavar="NAME", help="device of the draft model, as slipstream doctor names it")
    option("--chat", metavar="CHAT", help="continue the kept chat of this id or title; a new name begins one")
    option("--seed", type=seed, metavar="N", help="the same seed gives the same text (default: a new one)")
    option("--temp", type=float, metavar="T", help="temperature; 0 takes the best token (the model's own, or 0.8)")
    option("--top-k", type=int, metavar="N", help="keep the N best tokens; 0 is off (the model's own, or 40)")
    option("--top-p", type=float, metavar="P", help="keep this much probability; 1 is off (the model's own, or 0.95)")
    option("--min-p", type=float, metavar="P", help="keep this share of the best; 0 is off (the model's own, or 0.05)")
    option(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="above 1 makes words already used less likely; 1 is off (1)",
    )
    option("--presence-penalty", type=float, metavar="X", help="penalty for words already used; 0 is off (0)")
    option("--top-n-sigma", type=float, metavar="N", help="keep tokens within N standard deviations; 0 is off (0)")
    option("--dry", type=float, metavar="X", help="penalty for repetitions of what was said, 0.8 or so; 0 is off (0)")
    option("--logit-bias", metavar="LIST", help="tokens to favour or avoid: the=-2, fox=1.5, 123=-inf")
    option(
        "--reasoning",
        choices=(AUTO_LEVEL, *LEVELS),
        help="how much the model thinks before it answers, as far as its chat template has a switch (auto)",
    )
    option("--reasoning-budget", type=int, metavar="N", help="end its thoughts after N tokens (-1: no limit)")
    option(
        "--typical",
        type=float,
        nargs="?",
        const=PAPERS_TYPICAL,
        metavar="P",
        help="accept drafted tokens that are likely enough (Medusa's rule): faster, but it CHANGES THE TEXT;"
        " P is its threshold (0.09 if left out); off unless given",
    )


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


def ending(command: str) -> str:
    """The end of a command's help.

    Args:
        command: Its full name, such as ``slipstream models pull``.
    """
    parts = []
    if examples := EXAMPLES.get(command):
        parts += ["examples:", *(f"  {typed}\n      {does}" for typed, does in examples), ""]
    parts += ["environment:", *_rows(ENVIRONMENT), "", "exit codes:", *_rows(EXIT_CODES)]
    return "\n".join(parts) + "\n"


def _rows(rows: tuple[tuple[str, str], ...]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {about}" for name, about in rows]
