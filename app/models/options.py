"""What ``slipstream models`` takes on the command line; it loads nothing else, so that every command starts fast."""

from __future__ import annotations

import argparse
from typing import Any

_NAME = "a model's name, or the beginning of it"
_EPILOG = (
    "Names are those of models list; any beginning that means one model will do. Models of Ollama, LM Studio, "
    "llama.cpp and Hugging Face's cache are used where they are and never changed."
)


def add_models(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command with its own commands."""
    about = "models: list, find, fetch, check, pair and remove them"
    alone = about.capitalize() + ". Without a command, it lists them."
    parser = commands.add_parser("models", help=about, description=alone, epilog=_EPILOG)
    kinds = parser.add_subparsers(dest="models_command", metavar="COMMAND")
    parser.set_defaults(models_command="list", json=False)

    _add(kinds, "list", "what is on this machine, those of other programs too", json=True)

    search = _add(kinds, "search", "find models on the hub", json=True)
    search.add_argument("text", metavar="Q", nargs="+", help="words; or owner/name, to see its quantizations")
    search.add_argument("--sort", default="downloads", choices=("downloads", "likes", "trending", "updated"))
    search.add_argument("--limit", type=int, default=20, metavar="N", help="at most N repositories (20)")

    pull = _add(kinds, "pull", "fetch a model; Ctrl-C pauses, and the same command goes on", json=True)
    pull.add_argument(
        "reference", metavar="REPO[:QUANT]", help="such as Qwen/Qwen3-4B-GGUF:Q4_K_M, an address, or a catalogue's name"
    )
    pull.add_argument("--with-drafter", action="store_true", help="fetch the drafter that is known for it, too")
    pull.add_argument("--force", action="store_true", help="even if it is too big for this machine")

    imported = _add(kinds, "import", "make a .gguf file one of slipstream's", json=True)
    imported.add_argument("path", metavar="PATH", help="the file, or the first of a split model")
    imported.add_argument("--copy", action="store_true", help="copy it (default: link to it, which takes no room)")

    verify = _add(kinds, "verify", "read every byte of models and say what is wrong", json=True)
    verify.add_argument("name", metavar="NAME", nargs="?", help=f"{_NAME}; all of slipstream's own if left out")

    remove = _add(kinds, "rm", "remove a model; it can be brought back until the chat starts again", json=False)
    remove.add_argument("name", metavar="NAME", nargs="?", help=_NAME)
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask")
    remove.add_argument("--now", action="store_true", help="free the room at once; alone: of all that was removed")

    _add(kinds, "undo", "bring back the model that was removed last", json=False)

    pairs = _add(kinds, "pairs", "the drafters for a model and why others cannot serve it", json=True)
    pairs.add_argument("name", metavar="NAME", nargs="?", help=f"{_NAME}; the catalogue, best first, if left out")


def _add(kinds: argparse._SubParsersAction[Any], name: str, about: str, *, json: bool) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=about, description=about.capitalize() + ".")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    return parser
