"""The options of each command; imports no command, so that every command starts fast."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from slipstream.app.bench import LIMIT, PAPERS_TYPICAL
from slipstream.app.cli.values import path, possibly_empty, seed
from slipstream.app.library import TOKENS

_EPILOG: Final = (
    "A file of prompts is .txt (one a line) or .jsonl (an object a line with messages, turns, prompt, question or"
    " text), plain or packed (.xz, .gz); all turns are played. Ctrl-C keeps what was measured. Tables are Markdown."
)


def sentence(about: str) -> str:
    """Turns a line of help into a sentence; ``str.capitalize`` would change the case of names in it."""
    return f"{about[0].upper()}{about[1:]}."


def add_command(
    commands: argparse._SubParsersAction[Any], name: str, about: str, **more: Any
) -> argparse.ArgumentParser:
    """Adds a command whose line of help is also its description."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=sentence(about), **more)
    return parser


def _add_group(
    commands: argparse._SubParsersAction[Any], name: str, about: str, alone: str = "lists them", **more: Any
) -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[Any]]:
    """Adds a command with subcommands; the default is ``list``."""
    description = f"{sentence(about)} Without a command, it {alone}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=description, **more)
    kinds = parser.add_subparsers(dest=f"{name}_command", metavar="COMMAND")
    parser.set_defaults(**{kinds.dest: "list", "json": False})  # after the subparsers, or their defaults would win
    return parser, kinds


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    bench = add_command(commands, "bench", "measure what drafting gains on this machine", epilog=_EPILOG)
    bench.add_argument("--only", action="append", default=[], metavar="PART", help="drafters or check")
    bench.add_argument(
        "--check",
        action="store_true",
        help="compare every drafter's replies with plain decoding's, token for token; exit code 1 where one is wrong",
    )
    bench_options(bench)


def bench_options(bench: argparse.ArgumentParser) -> None:
    """Adds the options that all parts of the benchmark share."""
    bench.add_argument(
        "--drafters",
        metavar="NAMES",
        help="all (the default), or some, with commas between them; slipstream run --help lists them",
    )
    bench.add_argument(
        "--prompts",
        action="append",
        default=[],
        type=path,
        metavar="SET",
        help="prompts: chat, story, copy (the default is all three), or a file; may be repeated",
    )
    bench.add_argument(
        "--limit", type=int, metavar="N", help=f"prompts taken from a set, evenly spaced; 0 for all ({LIMIT})"
    )
    bench.add_argument(
        "--by-category", action="store_true", help="report each category of a prompt file separately, as for Spec-Bench"
    )
    bench.add_argument("--temp", metavar="T,…", help="temperatures, with commas between them (0,0.8)")
    bench.add_argument("--seeds", type=int, metavar="N", help="seeds for each prompt; temperature 0 needs only one (1)")
    bench.add_argument("--tokens", type=int, metavar="N", help="most tokens of a reply (160)")
    bench.add_argument(
        "-m",
        "--model",
        default=argparse.SUPPRESS,
        type=path,
        help="a name of models list, a path to a .gguf, or bundled (the default)",
    )
    bench.add_argument(
        "--draft-model",
        default=argparse.SUPPRESS,
        type=path,
        metavar="MODEL",
        help="a draft model's name or .gguf, of any vocabulary",
    )
    bench.add_argument(
        "--heads", action="append", default=[], type=path, metavar="FILE", help="also use this heads file"
    )
    _placement_options(bench)
    bench.add_argument(
        "--no-memory",
        action="store_true",
        help="skip the memory measurement, which loads the model once for each drafter",
    )
    bench.add_argument(
        "--typical",
        type=float,
        nargs="?",
        const=PAPERS_TYPICAL,
        default=argparse.SUPPRESS,
        metavar="P",
        help="with Medusa's typical acceptance, which CHANGES THE TEXT",
    )
    bench.add_argument("--svg", type=path, metavar="FILE", help="draw the speed-ups with their intervals")
    bench.add_argument("--json", type=path, metavar="FILE", help="write the figures to a file as JSON")
    bench.add_argument("--progress", action="store_true", help="print the rows so far and the time left, as JSON lines")


def _placement_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the model's placement and adapters; they may also precede the command."""
    add_lora(parser)
    parser.add_argument(
        "--gpu-layers",
        default=argparse.SUPPRESS,
        type=int,
        metavar="N",
        help="the model's layers on GPUs and other machines (-1: all that fit)",
    )
    parser.add_argument(
        "--rpc",
        default=argparse.SUPPRESS,
        metavar="HOST:PORT,…",
        help="also use the devices that these machines lend (slipstream lend)",
    )
    parser.add_argument(
        "--draft-device", default=argparse.SUPPRESS, metavar="NAME", help="device of the draft model, such as CPU"
    )


def add_lora(parser: argparse.ArgumentParser, default: object = argparse.SUPPRESS) -> None:
    """Adds ``--lora``, which may also precede the command."""
    parser.add_argument(
        "--lora",
        action="append",
        default=default,
        type=path,
        metavar="FILE[:SCALE]",
        help="change the model by this LoRA adapter, as strongly as SCALE says (1); may be repeated",
    )


def add_lend(commands: argparse._SubParsersAction[Any]) -> None:
    about = "lend this machine's devices to slipstream on another machine"
    parser = add_command(commands, "lend", about, epilog="Ctrl-C ends it.")
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="IPv4 address to listen on (127.0.0.1: this machine, and tunnels to it)"
    )
    parser.add_argument("--port", type=int, default=50052, metavar="N", help="port to listen on (50052)")
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="threads where the processor is lent (0: its cores)"
    )
    parser.add_argument(
        "--cache-gb",
        type=float,
        default=20.0,
        metavar="X",
        help="disk for weights that were lent, so that they travel once (20; 0 keeps none)",
    )


_CHAT: Final = "its id or title, or the beginning of the title; slipstream chats list shows them"


def add_chats(commands: argparse._SubParsersAction[Any]) -> None:
    _, kinds = _add_group(commands, "chats", "kept chats: list, search, show, export, import, rename, delete")
    command = partial(add_command, kinds)

    listing = command("list", "list all chats, pinned ones first, then the newest")
    listing.add_argument("--json", action="store_true", help="one JSON object a chat")
    search = command("search", "find messages and titles with all of these words, in any branch")
    search.add_argument("words", nargs="+", metavar="WORD", help="a word or its beginning")
    search.add_argument("--limit", type=int, default=50, metavar="N", help="at most N hits (50)")
    search.add_argument("--json", action="store_true", help="one JSON object a hit")
    show = command("show", "print a chat as Markdown: only its current branch")
    show.add_argument("chat", metavar="CHAT", help=_CHAT)
    show.add_argument("--thoughts", action="store_true", help="include the model's reasoning")
    export = command("export", "write chats with all branches and figures")
    export.add_argument("chat", nargs="*", metavar="CHAT", help=f"{_CHAT}; all if left out")
    export.add_argument("--format", choices=("md", "json"), default="md", help="Markdown, or JSON to import again (md)")
    export.add_argument(
        "-o", "--output", type=path, metavar="FILE", help="write to this new file instead of standard output"
    )
    taking = command("import", "add chats from a JSON export, or from ChatGPT's conversations.json")
    taking.add_argument("file", type=path, metavar="FILE")
    delete = command("delete", "erase chats and everything kept for them, for good")
    delete.add_argument("chat", nargs="+", metavar="CHAT", help=_CHAT)
    delete.add_argument(
        "-y", "--yes", action="store_true", help="do not ask when only the beginning of a title is given"
    )
    rename = command("rename", "give a chat another title")
    rename.add_argument("chat", metavar="CHAT", help=_CHAT)
    rename.add_argument("title", metavar="TITLE", help="the new title")


SEED: Final = 7

_DRAFTERS_EPILOG: Final = (
    "Medusa and Kangaroo read the hidden states of the model as it runs; SPACE sends gradients through it and so needs "
    "memory for all of its weights. A run that was stopped or killed goes on when the same command is given again."
)


def add_drafters(commands: argparse._SubParsersAction[Any]) -> None:
    about = "drafters: list them, train or import heads for a model, index text"
    parser, kinds = _add_group(commands, "drafters", about, "lists all")
    _model_option(parser)
    command = partial(add_command, kinds)

    _model_option(command("list", "list methods and heads, and which work with a model"))

    train = command("train", "train heads for a model on this machine", epilog=_DRAFTERS_EPILOG)
    train.add_argument("method", metavar="METHOD", help="medusa, kangaroo, space, eagle3 or dflash")
    _model_option(train)
    train.add_argument(
        "--on",
        default="answers",
        type=path,
        metavar="TEXT",
        help="answers: what the model itself writes (the default); chats: your own chats; or a folder of text files",
    )
    train.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"tokens of text ({TOKENS:,})")
    train.add_argument(
        "--seed", type=seed, default=argparse.SUPPRESS, metavar="N", help=f"seed of all random choices ({SEED})"
    )
    train.add_argument(
        "--out", type=path, metavar="FILE", help="the file to write (default: one in the folder of heads)"
    )

    published = command("import", "import published Medusa heads or a Kangaroo adapter")
    published.add_argument(
        "path", type=path, metavar="PATH", help="the published folder, or the file in it with the weights"
    )
    _model_option(published)
    published.add_argument("--licence", metavar="TEXT", help="licence of the published heads")
    published.add_argument(
        "--exit-layer", type=int, metavar="N", help="layers below a Kangaroo adapter, if its files do not say"
    )

    for way, about in (("off", "stop auto from using a drafter with a model"), ("on", "let auto use it again")):
        switch = command(way, about)
        switch.add_argument("name", metavar="NAME", help="a drafter, as in slipstream drafters list")
        _model_option(switch)

    index = command("index", "index text and code to draft from (drafter retrieval); chats are indexed automatically")
    index.add_argument(
        "paths", type=path, metavar="PATH", nargs="*", help="a file, or a folder and everything below it"
    )
    _model_option(index)
    index.add_argument("--list", action="store_true", help="list what is indexed for this kind of model")
    index.add_argument(
        "--remove", action="append", type=path, metavar="PATH", help="forget a file or folder; may be repeated"
    )
    index.add_argument("--off", action="store_true", help="do not index chats, and do not draft from the index")
    index.add_argument("--on", action="store_true", help="undo --off")
    index.add_argument("--progress", action="store_true", help="print progress as lines, also without a terminal")


def _model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        default=argparse.SUPPRESS,  # it may also precede the command
        type=path,
        help="a name of models list, a path to a .gguf, or bundled (the default)",
    )


_NAME = "a model's name, or the beginning of it"
_MODELS_EPILOG = (
    "Names are those of models list; the beginning is enough if it fits only one model. Models of Ollama, LM Studio, "
    "llama.cpp and Hugging Face's cache are used where they are and never changed."
)


def add_models(commands: argparse._SubParsersAction[Any]) -> None:
    about = "models: list, search, pull, import, verify and remove them, and pair them with drafters"
    _, kinds = _add_group(commands, "models", about, epilog=_MODELS_EPILOG)

    _add(kinds, "list", "list the models on this machine, also those of other programs", json=True)

    search = _add(kinds, "search", "find models on the hub", alias="find", json=True)
    search.add_argument("text", metavar="Q", nargs="+", help="words; or owner/name, to see its quantizations")
    search.add_argument("--sort", default="downloads", choices=("downloads", "likes", "trending", "updated"))
    search.add_argument("--limit", type=int, default=20, metavar="N", help="at most N repositories (20)")

    pull = _add(kinds, "pull", "fetch a model; Ctrl-C pauses, and the same command continues", alias="fetch", json=True)
    pull.add_argument(
        "reference",
        metavar="REPO[:QUANT]",
        help="such as Qwen/Qwen3-4B-GGUF:Q4_K_M, an address, or a name of models pairs",
    )
    pull.add_argument("--with-drafter", action="store_true", help="also fetch the best drafter known for it")
    pull.add_argument("--force", action="store_true", help="fetch it even if it is too big for this machine")

    imported = _add(kinds, "import", "add a .gguf file to slipstream's models", json=True)
    imported.add_argument("path", type=path, metavar="PATH", help="the file, or the first of a split model")
    imported.add_argument(
        "--copy", action="store_true", help="copy the file (default: link to it, which takes no space)"
    )

    verify = _add(kinds, "verify", "check every byte of a model's files", alias="check", json=True)
    verify.add_argument(
        "name", type=path, metavar="NAME", nargs="?", help=f"{_NAME}; all of slipstream's own models if left out"
    )

    about = "remove a model: to the system's trash, from which models undo brings it back"
    remove = _add(kinds, "rm", about, alias="remove", json=False)
    remove.add_argument("name", type=path, metavar="NAME", nargs="?", help=_NAME)
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask")
    remove.add_argument("--now", action="store_true", help="delete it for good: free the disk space at once")

    _add(kinds, "undo", "bring back the last removed model", json=False)

    pairs = _add(kinds, "pairs", "list the drafters for a model, and why others do not work with it", json=True)
    pairs.add_argument(
        "name", type=path, metavar="NAME", nargs="?", help=f"{_NAME}; the whole catalogue, best first, if left out"
    )


def _add(
    kinds: argparse._SubParsersAction[Any], name: str, about: str, *, json: bool, alias: str | None = None
) -> argparse.ArgumentParser:
    parser = add_command(kinds, name, about, aliases=[alias] if alias else [])
    parser.set_defaults(models_command=name)
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def add_settings(commands: argparse._SubParsersAction[Any]) -> None:
    _, kinds = _add_group(commands, "settings", "settings: list, set and reset them")
    command = partial(add_command, kinds)
    listing = command("list", "list all settings, their values and what they do")
    listing.add_argument("--json", action="store_true", help="one JSON object a setting")
    setting = command("set", "change a setting")
    setting.add_argument(
        "name", metavar="NAME", help="such as sampling.temperature; slipstream settings list shows all"
    )
    setting.add_argument("value", type=possibly_empty, metavar="VALUE", help="a number, a text, or on and off")
    reset = command("reset", "return settings to their defaults")
    reset.add_argument("name", metavar="NAME", nargs="+")
