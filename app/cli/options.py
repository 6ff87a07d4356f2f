"""The options of each command; imports no command, so that every command starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NoReturn

from slipstream.app.bench import LIMIT, PAPERS_TYPICAL, STDOUT
from slipstream.app.cli.parser import Parser, path, possibly_empty, seed
from slipstream.app.library import TOKENS
from slipstream.models.chat_template import AUTO_LEVEL, LEVELS

# options of several commands, which may also precede the command
_SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "--model": {"type": path, "help": "a name of models list, a path to a .gguf, or bundled (the default)"},
    "--draft-model": {"type": path, "metavar": "MODEL", "help": "a draft model's name or .gguf, of any vocabulary"},
    "--lora": {
        "action": "append",
        "type": path,
        "metavar": "FILE[:SCALE]",
        "help": "change the model by this LoRA adapter, as strongly as SCALE says (1); may be repeated",
    },
    "--exact": {
        "choices": ("auto", "always", "never"),
        "help": "the same seed gives the same text, bit for bit; auto: where that costs under 3 %% (auto)",
    },
    "--gpu-layers": {"type": int, "metavar": "N", "help": "the model's layers on the GPU (-1: all that fit)"},
    "--rpc": {"metavar": "HOST:PORT,…", "help": "also use the devices that these machines lend (slipstream lend)"},
    "--draft-device": {"metavar": "NAME", "help": "device of the draft model, as slipstream doctor names it"},
    "--typical": {
        "type": float,
        "nargs": "?",
        "const": PAPERS_TYPICAL,
        "metavar": "P",
        "help": "accept drafted tokens that are likely enough (Medusa's rule): faster, but it CHANGES THE TEXT;"
        " P is its threshold (0.09 if left out); off unless given",
    },
}
_EPILOG: Final = (
    "A file of prompts is .txt (one a line) or .jsonl (an object a line with messages, turns, prompt, question or"
    " text), plain or packed (.xz, .gz); all turns are played. Ctrl-C keeps what was measured. Tables are Markdown."
)
_CHAT: Final = "its id or title, or the beginning of the title; slipstream chats list shows them"
SEED: Final = 7
_DRAFTERS_EPILOG: Final = (
    "Medusa and Kangaroo read the hidden states of the model as it runs; SPACE sends gradients through it and so needs "
    "memory for all of its weights. A run that was stopped or killed goes on when the same command is given again."
)
_NAME: Final = "a model's name, or the beginning of it"
_MODELS_EPILOG: Final = (
    "Names are those of models list; the beginning is enough if it fits only one model. Models of Ollama, LM Studio, "
    "llama.cpp and Hugging Face's cache are used where they are and never changed."
)


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
    about = "do not read the prompt while it is typed (on battery, it never is)"
    parser.add_argument("--no-prepare", dest="read_ahead", action="store_const", const=False, help=about)
    _flag(parser, "--inline", "a short chat below the prompt of the shell; its text stays in the terminal")
    _model_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    run = commands.add_parser("run", help="print one reply; piped text joins the prompt")
    run.add_argument("-p", "--prompt", help="the prompt; piped text is put below it")
    _value(run, "--image", "FILE", "an image above the prompt; repeatable", action="append", default=[], type=path)
    run.add_argument("--system", default="", type=possibly_empty, help="system message")
    _value(run, "--max-tokens", "N", "at most N tokens in the reply (0: no limit)", type=int)
    _value(run, "--stop", "TEXT", "text that ends the reply; may be repeated", action="append", default=[])
    shape = run.add_mutually_exclusive_group()
    _value(shape, "--json-schema", "FILE", "the answer is JSON that fits this schema", type=path)
    _value(shape, "--grammar", "FILE", "the answer fits this grammar, written as Lark or GBNF", type=path)
    figures = run.add_mutually_exclusive_group()
    _flag(figures, "--json", "one JSON object a step, then a summary, times in ms; with the reasoning")
    _flag(figures, "--stats", "the reply's figures and seed on standard error")
    _model_options(run, inherit=True)
    run.more = _methods
    add_bench(commands)
    add_drafters(commands)
    add_models(commands)
    add_chats(commands)
    add_settings(commands)
    add_lend(commands)
    doctor = commands.add_parser("doctor", help="what this machine has, what is broken, what would be faster")
    _flag(doctor, "--json", "one JSON object")
    _value(doctor, "--rpc", "HOST:PORT,…", "also ask these machines what they lend", default=argparse.SUPPRESS)
    paths = commands.add_parser("paths", help="where everything is kept")
    _flag(paths, "--json", "one JSON object a place")
    completion = add_command(commands, "completion", "print a script that completes slipstream's commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    return parser


def _flag(parser: argparse._ActionsContainer, name: str, about: str, short: str = "", **more: Any) -> None:
    parser.add_argument(*filter(None, [short, name]), action="store_true", help=about, **more)


def _value(parser: argparse._ActionsContainer, name: str, metavar: str, about: str, **more: Any) -> None:
    parser.add_argument(name, metavar=metavar, help=about, **more)


def _methods() -> str:
    from slipstream.drafters.registry import BEHIND, IN_ORDER, METHODS, TOGETHER

    rows = [(name, method.about) for name, method in METHODS.items()]
    rows.append((f"A{IN_ORDER}B", "the first of several that is confident, as in lookup+draft"))
    rows.append((f"'A{TOGETHER}B'", "the guesses of several in one tree"))
    rows.append((f"A{BEHIND}lookup", "what lookup copies behind the guesses of A"))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {about}" for name, about in rows]
    return "\n".join(["drafters:", *lines, "Which of them work with a model: slipstream drafters list -m MODEL."])


def _model_options(parser: argparse.ArgumentParser, inherit: bool = False) -> None:
    """Adds the options that the chat and ``run`` share.

    With ``inherit``, an option that is not given after the command keeps the value given before it.
    """

    def option(*names: str, default: object = None, **more: Any) -> None:
        parser.add_argument(*names, default=argparse.SUPPRESS if inherit else default, **more)

    option(
        "-m", "--model", type=path, help="a name of models list, a path to a .gguf, or bundled (what was chosen last)"
    )
    option("--draft-model", **_SHARED["--draft-model"])
    option("--mmproj", type=path, metavar="FILE", help="the file that encodes images (the one found for the model)")
    option("--draft-gpu-layers", type=int, default=-1, metavar="N", help="its layers on the GPU (-1: all)")
    option("--drafter", metavar="NAME", help="the drafting method; slipstream run --help lists all")
    option("--context", type=int, metavar="N", help="context in tokens (0: the model's own)")
    about = "numbers of the KV cache; q8_0 takes half the memory of f16, q4_0 a quarter and is less exact (auto)"
    option("--kv-type", choices=("auto", "f16", "q8_0", "q4_0"), help=about)
    about = "when a chat outgrows the context: drop the oldest messages, compact them to a summary, or stop (drop)"
    option("--overflow", choices=("drop", "compact", "stop"), help=about)
    option("--exact", **_SHARED["--exact"])
    option("--gpu-layers", **_SHARED["--gpu-layers"])
    option(
        "--cpu-experts", type=int, metavar="N", help="its first layers whose experts stay in memory (-1: few as fit)"
    )
    option("--rpc", **_SHARED["--rpc"])
    option("--lora", **_SHARED["--lora"])
    option(
        "--split-mode", choices=("layer", "row", "none"), help="how GPUs share the model; none: the main one (layer)"
    )
    option("--tensor-split", metavar="A,B,…", help="share of each GPU (filled evenly)")
    option("--main-gpu", type=int, metavar="N", help="number of the main GPU (0)")
    option("--draft-device", **_SHARED["--draft-device"])
    option("--chat", metavar="CHAT", help="continue the kept chat of this id or title; a new name begins one")
    option("--seed", type=seed, metavar="N", help="the same seed gives the same text, see --exact (default: a new one)")
    option("--temp", type=float, metavar="T", help="temperature; 0 takes the best token (the model's own, or 0.8)")
    option("--top-k", type=int, metavar="N", help="keep the N best tokens; 0 is off (the model's own, or 40)")
    option("--top-p", type=float, metavar="P", help="keep this much probability; 1 is off (the model's own, or 0.95)")
    option("--min-p", type=float, metavar="P", help="keep this share of the best; 0 is off (the model's own, or 0.05)")
    about = "above 1 makes words already used less likely; 1 is off (1)"
    option("--repetition-penalty", type=float, metavar="X", help=about)
    option("--presence-penalty", type=float, metavar="X", help="penalty for words already used; 0 is off (0)")
    option("--top-n-sigma", type=float, metavar="N", help="keep tokens within N standard deviations; 0 is off (0)")
    option("--dry", type=float, metavar="X", help="penalty for repetitions of what was said, 0.8 or so; 0 is off (0)")
    option("--logit-bias", metavar="LIST", help="tokens to favour or avoid: the=-2, fox=1.5, 123=-inf")
    about = "how much the model thinks before it answers, as far as its chat template has a switch (auto)"
    option("--reasoning", choices=(AUTO_LEVEL, *LEVELS), help=about)
    option("--reasoning-budget", type=int, metavar="N", help="end its thoughts after N tokens (-1: no limit)")
    option("--typical", **_SHARED["--typical"])


def _share(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        short = ["-m"] if name == "--model" else []
        parser.add_argument(*short, name, default=argparse.SUPPRESS, **_SHARED[name])


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
    description = f"{sentence(about)} Without a command, it {alone}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=description, **more)
    _flag(parser, "--json", "list them as JSON")
    kinds = parser.add_subparsers(dest=f"{name}_command", metavar="COMMAND")
    parser.set_defaults(**{kinds.dest: "list"})  # after the subparsers, or their default would win
    return parser, kinds


def _json_option(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds ``--json``, which may also stand before a subcommand."""
    _flag(parser, "--json", about, default=argparse.SUPPRESS)


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    bench = add_command(commands, "bench", "measure what drafting gains on this machine", epilog=_EPILOG)
    _value(bench, "--only", "PART", "drafters or check", action="append", default=[])
    about = "compare every drafter's replies with plain decoding's, token for token; exit code 1 where one is wrong"
    _flag(bench, "--check", about)
    about = "print one line to compare with other people's: the speed without a drafter and with auto, prose and code"
    _flag(bench, "--share", about)
    bench_options(bench)


def bench_options(bench: argparse.ArgumentParser) -> None:
    about = "all (the default), or some, with commas between them; slipstream run --help lists them"
    _value(bench, "--drafters", "NAMES", about)
    about = "prompts: chat, story, copy (the default is these three), code, or a file; may be repeated"
    _value(bench, "--prompts", "SET", about, action="append", default=[], type=path)
    _value(bench, "--limit", "N", f"prompts taken from a set, evenly spaced; 0 for all ({LIMIT})", type=int)
    _flag(bench, "--by-category", "report each category of a prompt file separately, as for Spec-Bench")
    _value(bench, "--temp", "T,…", "temperatures, with commas between them (0,0.8)")
    _value(bench, "--seeds", "N", "seeds for each prompt; temperature 0 needs only one (1)", type=int)
    _value(bench, "--tokens", "N", "most tokens of a reply (160)", type=int)
    _share(bench, "--model", "--draft-model")
    _value(bench, "--heads", "FILE", "also use this heads file", action="append", default=[], type=path)
    _share(bench, "--lora", "--gpu-layers", "--rpc", "--draft-device")
    _share(bench, "--exact", "--typical")
    _flag(bench, "--no-memory", "skip the memory measurement, which loads the model once for each drafter")
    _value(bench, "--svg", "FILE", "draw the speed-ups with their intervals", type=path)
    about = "the figures as JSON, to a file or instead of the tables"
    _value(bench, "--json", "FILE", about, type=path, nargs="?", const=STDOUT)
    _flag(bench, "--progress", "print the rows so far and the time left, as JSON lines")


def add_lend(commands: argparse._SubParsersAction[Any]) -> None:
    about = "lend this machine's devices to slipstream on another machine"
    parser = add_command(commands, "lend", about, epilog="Ctrl-C ends it.")
    _value(parser, "--listen", "ADDRESS", "IPv4 address to listen on (127.0.0.1: this machine, and tunnels to it)")
    _value(parser, "--port", "N", "port to listen on (50052)", type=int, default=50052)
    _value(parser, "--threads", "N", "threads where the processor is lent (0: its cores)", type=int, default=0)
    about = "disk for weights that were lent, so that they travel once (20; 0 keeps none)"
    _value(parser, "--cache-gb", "X", about, type=float, default=20.0)


def add_chats(commands: argparse._SubParsersAction[Any]) -> None:
    _, kinds = _add_group(commands, "chats", "kept chats: list, search, show, export, import, rename, delete")
    command = partial(add_command, kinds)

    listing = command("list", "list all chats, pinned ones first, then the newest")
    _json_option(listing, "one JSON object a chat; [] without any")
    search = command("search", "find messages and titles with all of these words, in any branch")
    _value(search, "words", "WORD", "a word or its beginning", nargs="+")
    _value(search, "--limit", "N", "at most N hits (50)", type=int, default=50)
    _json_option(search, "one JSON object a hit; [] without any")
    show = command("show", "print a chat as Markdown: only its current branch")
    _value(show, "chat", "CHAT", _CHAT)
    _flag(show, "--thoughts", "include the model's reasoning")
    export = command("export", "write chats with all branches and figures")
    _value(export, "chat", "CHAT", f"{_CHAT}; all if left out", nargs="*")
    export.add_argument(
        "--format", choices=("md", "json"), help="Markdown, or JSON to import again (by the file's ending, or md)"
    )
    export.add_argument(
        "-o", "--output", type=path, metavar="FILE", help="write to this new file instead of standard output"
    )
    taking = command("import", "add chats from a JSON export, or from ChatGPT's conversations.json")
    taking.add_argument("file", type=path, metavar="FILE")
    delete = command("delete", "erase chats and everything kept for them, for good")
    _value(delete, "chat", "CHAT", _CHAT, nargs="+")
    _flag(delete, "--yes", "do not ask when only the beginning of a title is given", short="-y")
    rename = command("rename", "give a chat another title")
    _value(rename, "chat", "CHAT", _CHAT)
    _value(rename, "title", "TITLE", "the new title")


def add_drafters(commands: argparse._SubParsersAction[Any]) -> None:
    about = "drafters: list them, train or import heads for a model, index text"
    parser, kinds = _add_group(commands, "drafters", about, "lists all")
    _share(parser, "--model")
    command = partial(add_command, kinds)

    listing = command("list", "list methods and heads, and which work with a model")
    _share(listing, "--model")
    _json_option(listing, "one JSON object a method or heads file")

    train = command("train", "train heads for a model on this machine", epilog=_DRAFTERS_EPILOG)
    _value(train, "method", "METHOD", "medusa, kangaroo, space, eagle3, dflash, or all of them")
    _share(train, "--model")
    about = "answers: what the model itself writes (the default); chats: your own chats; or a folder of text files"
    _value(train, "--on", "TEXT", about, default="answers", type=path)
    about = "what the model answers: a line is a question, or a JSON list of a user's turns (default: from templates)"
    _value(train, "--prompts", "FILE", about, type=path)
    about = "heads that the training goes on from, or a folder of them"
    _value(train, "--from", "FILE", about, type=path, dest="begin")
    _value(
        train, "--adapter", "FILE", "with space: also tune a LoRA adapter with masks, and write both there", type=path
    )
    _value(train, "--tokens", "N", f"tokens of text ({TOKENS:,})", type=int, default=TOKENS)
    _value(train, "--seed", "N", f"seed of all random choices ({SEED})", type=seed, default=argparse.SUPPRESS)
    _value(train, "--out", "FILE", "the file to write; for all, a folder (default: in the folder of heads)", type=path)

    published = command("import", "import published Medusa heads or a Kangaroo adapter")
    _value(published, "path", "PATH", "the published folder, or the file in it with the weights", type=path)
    _share(published, "--model")
    _value(published, "--licence", "TEXT", "licence of the published heads")
    _value(published, "--exit-layer", "N", "layers below a Kangaroo adapter, if its files do not say", type=int)

    for way, about in (("off", "stop auto from using a drafter with a model"), ("on", "let auto use it again")):
        switch = command(way, about)
        switch.add_argument("name", metavar="NAME", help="a drafter, as in slipstream drafters list")
        _share(switch, "--model")

    index = command("index", "index text and code to draft from (drafter retrieval); chats are indexed automatically")
    _value(index, "paths", "PATH", "a file, or a folder and everything below it", type=path, nargs="*")
    _share(index, "--model")
    _flag(index, "--list", "list what is indexed for this kind of model")
    _json_option(index, "the list as JSON: one object a chat or file")
    _value(index, "--remove", "PATH", "forget a file or folder; may be repeated", action="append", type=path)
    _flag(index, "--off", "do not index chats, and do not draft from the index")
    _flag(index, "--on", "undo --off")
    _flag(index, "--progress", "print progress as lines, also without a terminal")


def add_models(commands: argparse._SubParsersAction[Any]) -> None:
    about = "models: list, search, pull, import, verify and remove them, and pair them with drafters"
    _, kinds = _add_group(commands, "models", about, epilog=_MODELS_EPILOG)

    _add(kinds, "list", "list the models on this machine, also those of other programs", json=True)

    search = _add(kinds, "search", "find models on the hub", alias="find", json=True)
    _value(search, "text", "Q", "words; or owner/name, to see its quantizations", nargs="+")
    search.add_argument("--sort", default="downloads", choices=("downloads", "likes", "trending", "updated"))
    _value(search, "--limit", "N", "at most N repositories (20)", type=int, default=20)

    pull = _add(kinds, "pull", "fetch a model; Ctrl-C pauses, and the same command continues", alias="fetch", json=True)
    about = "such as Qwen/Qwen3-4B-GGUF:Q4_K_M, an address, or a name of models pairs"
    _value(pull, "reference", "REPO[:QUANT]", about)
    _flag(pull, "--with-drafter", "also fetch the best drafter known for it")
    _flag(pull, "--force", "fetch it even if it is too big for this machine")

    imported = _add(kinds, "import", "add a .gguf file to slipstream's models", json=True)
    _value(imported, "path", "PATH", "the file, or the first of a split model", type=path)
    _flag(imported, "--copy", "copy the file (default: link to it, which takes no space)")

    verify = _add(kinds, "verify", "check every byte of a model's files", alias="check", json=True)
    _value(verify, "name", "NAME", f"{_NAME}; all of slipstream's own models if left out", type=path, nargs="?")

    about = "remove a model: to the system's trash, from which models undo brings it back"
    remove = _add(kinds, "rm", about, alias="remove", json=False)
    _value(remove, "name", "NAME", _NAME, type=path, nargs="?")
    _flag(remove, "--yes", "do not ask", short="-y")
    _flag(remove, "--now", "delete it for good: free the disk space at once")

    _add(kinds, "undo", "bring back the last removed model", json=False)

    pairs = _add(kinds, "pairs", "list the drafters for a model, and why others do not work with it", json=True)
    _value(pairs, "name", "NAME", f"{_NAME}; the whole catalogue, best first, if left out", type=path, nargs="?")


def _add(
    kinds: argparse._SubParsersAction[Any], name: str, about: str, *, json: bool, alias: str | None = None
) -> argparse.ArgumentParser:
    parser = add_command(kinds, name, about, aliases=[alias] if alias else [])
    parser.set_defaults(models_command=name)
    if json:
        _json_option(parser, "as JSON")
    return parser


def add_settings(commands: argparse._SubParsersAction[Any]) -> None:
    _, kinds = _add_group(commands, "settings", "settings: list, set and reset them")
    command = partial(add_command, kinds)
    listing = command("list", "list all settings, their values and what they do")
    _json_option(listing, "one JSON object a setting")
    setting = command("set", "change a setting")
    _value(setting, "name", "NAME", "such as sampling.temperature; slipstream settings list shows all")
    _value(setting, "value", "VALUE", "a number, a text, or on and off", type=possibly_empty)
    reset = command("reset", "return settings to their defaults")
    reset.add_argument("name", metavar="NAME", nargs="+")
