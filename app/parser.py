"""What slipstream takes on the command line; it loads nothing else, so that every command starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from slipstream.app.bench.options import PAPERS_TYPICAL, add_bench
from slipstream.app.chats.options import add_chats
from slipstream.app.drafters.options import add_drafters
from slipstream.app.models.options import add_models
from slipstream.app.settings.options import add_settings
from slipstream.models.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Wrong arguments are one line on stderr and exit code 2, like every other wrong use.

    Attributes:
        more: Makes a further part of the help, which costs too much to be made each time.
    """

    more: Callable[[], str] | None = None

    def format_help(self) -> str:
        """The help, with examples, environment and exit codes."""
        from slipstream.app.manual import ending  # only who asks for help waits for it

        parts = [super().format_help(), f"{self.more()}\n" if self.more else "", ending(self.prog)]
        return "\n".join(part for part in parts if part)

    def error(self, message: str) -> NoReturn:
        """Refuses wrong arguments."""
        raise UsageError(f"{message}.", f"Try {self.prog} --help.")


class _Version(argparse.Action):
    """Prints the version, and looks it up only then: that costs as much as all other imports of this module."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"slipstream {version('slipstream')}")
        parser.exit()


def make_parser() -> Parser:
    """Makes the parser of all commands; the options of each group stand in a module of their own."""
    parser = Parser(prog="slipstream", description="Chat with a large language model on your own computer.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--as-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--note", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument(
        "--no-prepare",
        dest="read_ahead",
        action="store_const",
        const=False,
        help="read nothing before it is sent (on battery, nothing is read anyway)",
    )
    parser.add_argument(
        "--inline", action="store_true", help="a short session below the prompt of the shell; what was said stays there"
    )
    _model_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    run = commands.add_parser("run", help="one reply to standard output; reads standard input when piped")
    run.add_argument("-p", "--prompt", help="the prompt; piped text is put below it")
    run.add_argument("--system", default="", help="system message")
    run.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of the reply (0: no limit)")
    run.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="text that ends the reply; may be repeated"
    )
    run.add_argument("--json", action="store_true", help="one JSON object a step, then a summary; thoughts too")
    _model_options(run, inherit=True)
    run.more = _methods
    add_bench(commands)
    add_drafters(commands)
    add_models(commands)
    add_chats(commands)
    add_settings(commands)
    doctor = commands.add_parser("doctor", help="what this machine has, what is broken, what would be faster")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    commands.add_parser("paths", help="where everything is kept")
    about = "print the script that lets a shell complete slipstream's words"
    completion = commands.add_parser("completion", help=about, description=about.capitalize() + ".")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    return parser


def _methods() -> str:
    """The drafting methods, a line each."""
    from slipstream.drafters.registry import IN_ORDER, METHODS, TOGETHER

    rows = [(name, method.about) for name, method in METHODS.items()]
    rows.append((f"A{IN_ORDER}B", "the first of several that is confident, as in lookup+draft"))
    rows.append((f"'A{TOGETHER}B'", "the guesses of several in one tree"))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {about}" for name, about in rows]
    return "\n".join(["drafters:", *lines, "Which of them serve a model: slipstream drafters list -m MODEL."])


def _model_options(parser: argparse.ArgumentParser, inherit: bool = False) -> None:
    """The options that the chat and ``run`` share; after a command they may be left to what stood before it."""

    def option(*names: str, default: object = None, **more: Any) -> None:
        parser.add_argument(*names, default=argparse.SUPPRESS if inherit else default, **more)

    option("-m", "--model", help="a name of models list, a path to a .gguf, or bundled (what was chosen last)")
    option("--draft-model", metavar="MODEL", help="a draft model's name or .gguf, of any vocabulary")
    option("--draft-gpu-layers", type=int, default=-1, metavar="N", help="its layers on the GPU (-1: all)")
    option("--drafter", metavar="NAME", help="who drafts; slipstream run --help lists all")
    option("--context", type=int, metavar="N", help="context in tokens (0: the model's own)")
    option("--gpu-layers", type=int, metavar="N", help="the model's layers on the GPU (-1: all that fit)")
    option("--chat", metavar="CHAT", help="go on with the kept chat of this id or title; a new name begins one")
    option("--seed", type=int, metavar="N", help="the same seed gives the same text (default: a new one)")
    option("--temp", type=float, metavar="T", help="temperature; 0 takes the best token (0.8)")
    option("--top-k", type=int, metavar="N", help="keep the N best tokens; 0 is off (40)")
    option("--top-p", type=float, metavar="P", help="keep this much probability; 1 is off (0.95)")
    option("--min-p", type=float, metavar="P", help="keep this share of the best; 0 is off (0.05)")
    option("--repetition-penalty", type=float, metavar="X", help="1 is off (1)")
    option("--presence-penalty", type=float, metavar="X", help="0 is off (0)")
    option(
        "--typical",
        type=float,
        nargs="?",
        const=PAPERS_TYPICAL,
        metavar="P",
        help="accept drafted tokens that are likely enough (Medusa's rule): faster, but it CHANGES THE TEXT;"
        " P is its threshold (0.09 if left out); off unless given",
    )
