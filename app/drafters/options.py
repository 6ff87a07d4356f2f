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
    """Adds the command with its three own commands."""
    about = "trained heads: list them, train them for a model, or import published ones"
    kinds = commands.add_parser("drafters", help=about, description=about.capitalize() + ".").add_subparsers(
        dest="drafters_command", metavar="COMMAND", required=True
    )

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


def _model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        default=argparse.SUPPRESS,  # what stands before the command counts too
        help="a path to a .gguf, or bundled (the default)",
    )
