"""What ``slipstream drafters`` takes on the command line; it loads nothing else, so that every command starts fast."""

from __future__ import annotations

import argparse
from typing import Any, Final

TOKENS: Final = 500_000
SEED: Final = 7

_EPILOG: Final = (
    "Medusa and Kangaroo read the hidden states of the model as it runs; SPACE sends gradients through it and so needs "
    "memory for all of its weights. A run that was stopped or killed goes on when the same command is given again."
)


def add_drafters(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command with its own commands."""
    about = "what drafts: list it, train or import heads for a model, index text"
    alone = about.capitalize() + ". Without a command, it lists all."
    parser = commands.add_parser("drafters", help=about, description=alone)
    _model_option(parser)
    kinds = parser.add_subparsers(dest="drafters_command", metavar="COMMAND")
    parser.set_defaults(drafters_command="list")

    about = "methods and heads, and whether they serve a model"
    _model_option(kinds.add_parser("list", help=about, description=about.capitalize() + "."))

    about = "train heads for a model on this machine"
    train = kinds.add_parser("train", help=about, description=about.capitalize() + ".", epilog=_EPILOG)
    train.add_argument("method", metavar="METHOD", help="medusa, kangaroo or space")
    _model_option(train)
    train.add_argument(
        "--on",
        default="answers",
        metavar="TEXT",
        help="answers: what the model itself writes (the default); chats: your own chats; or a folder of text files",
    )
    train.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"tokens of text ({TOKENS:,})")
    train.add_argument(
        "--seed", type=int, default=argparse.SUPPRESS, metavar="N", help=f"of everything that is drawn ({SEED})"
    )
    train.add_argument("--out", metavar="FILE", help="the file to write (default: one in the folder of heads)")

    about = "import published Medusa heads or a Kangaroo adapter"
    published = kinds.add_parser("import", help=about, description=about.capitalize() + ".")
    published.add_argument("path", metavar="PATH", help="the published folder, or the file in it with the weights")
    _model_option(published)
    published.add_argument("--licence", default="", metavar="TEXT", help="under which the heads were published")
    published.add_argument(
        "--exit-layer", type=int, metavar="N", help="layers below a Kangaroo adapter, if its files do not say"
    )

    for way, about in (
        ("off", "have the autopilot leave a drafter of a model out"),
        ("on", "let the autopilot choose it again"),
    ):
        switch = kinds.add_parser(way, help=about, description=about.capitalize() + ".")
        switch.add_argument("name", metavar="NAME", help="of the drafter, as slipstream drafters list names it")
        _model_option(switch)

    about = "index text and code to draft from (drafter retrieval); chats are indexed by themselves"
    index = kinds.add_parser("index", help=about, description=about.capitalize() + ".")
    index.add_argument("paths", metavar="PATH", nargs="*", help="a file, or a folder with all that is below it")
    _model_option(index)
    index.add_argument("--list", action="store_true", help="what is indexed for this kind of model")
    index.add_argument("--remove", action="append", metavar="PATH", help="forget a file or folder; may be repeated")
    index.add_argument("--off", action="store_true", help="index no chats, and draft from no index")
    index.add_argument("--on", action="store_true", help="the opposite of --off, and the default")
    index.add_argument("--progress", action="store_true", help="say how far it is in lines, also where no terminal is")


def _model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        default=argparse.SUPPRESS,  # what stands before the command counts too
        help="a name of models list, a path to a .gguf, or bundled (the default)",
    )
