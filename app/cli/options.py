"""The options of each command; imports no command, so that every command starts fast."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn

from slipstream.app.bench import LIMIT, PAPERS_TYPICAL, STDOUT
from slipstream.app.cli.parser import Parser, path, possibly_empty, seed
from slipstream.app.library import TOKENS
from slipstream.models.chat_template.marks import AUTO_LEVEL, LEVELS

# options of several commands, which may also precede the command
_SHARED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "--model": {"type": path, "help": "a name of models list, a path to a .gguf, or bundled (the default)"},
        "--draft-model": {
            "type": path,
            "metavar": "MODEL",
            "help": "a draft model's name or .gguf, of any vocabulary",
        },
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
        "--rpc": {
            "metavar": "HOST:PORT,…",
            "help": "also use the devices that these machines lend (slipstream lend)",
        },
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
)
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
        "--grammar", type=path, metavar="FILE", help="the answer fits this grammar, written as Lark or GBNF"
    )
    figures = run.add_mutually_exclusive_group()
    figures.add_argument(
        "--json", action="store_true", help="one JSON object a step, then a summary, times in ms; with the reasoning"
    )
    figures.add_argument("--stats", action="store_true", help="the reply's figures and seed on standard error")
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
    paths = commands.add_parser("paths", help="where everything is kept")
    paths.add_argument("--json", action="store_true", help="one JSON object a place")
    completion = add_command(commands, "completion", "print a script that completes slipstream's commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    return parser


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
    option("--typical", **_SHARED["--typical"])


def _share(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds options that several commands have."""
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
    """Adds a command with subcommands; the default is ``list``."""
    description = f"{sentence(about)} Without a command, it {alone}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=description, **more)
    parser.add_argument("--json", action="store_true", help="list them as JSON")
    kinds = parser.add_subparsers(dest=f"{name}_command", metavar="COMMAND")
    parser.set_defaults(**{kinds.dest: "list"})  # after the subparsers, or their default would win
    return parser, kinds


def _json_option(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds ``--json``, which may also stand before a subcommand."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=about)


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    bench = add_command(commands, "bench", "measure what drafting gains on this machine", epilog=_EPILOG)
    bench.add_argument("--only", action="append", default=[], metavar="PART", help="drafters or check")
    bench.add_argument(
        "--check",
        action="store_true",
        help="compare every drafter's replies with plain decoding's, token for token; exit code 1 where one is wrong",
    )
    bench.add_argument(
        "--share",
        action="store_true",
        help="print one line to compare with other people's: the speed without a drafter and with auto, prose and code",
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
        help="prompts: chat, story, copy (the default is these three), code, or a file; may be repeated",
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
    _share(bench, "--model", "--draft-model")
    bench.add_argument(
        "--heads", action="append", default=[], type=path, metavar="FILE", help="also use this heads file"
    )
    _share(bench, "--lora", "--gpu-layers", "--rpc", "--draft-device")
    _share(bench, "--exact", "--typical")
    bench.add_argument(
        "--no-memory",
        action="store_true",
        help="skip the memory measurement, which loads the model once for each drafter",
    )
    bench.add_argument("--svg", type=path, metavar="FILE", help="draw the speed-ups with their intervals")
    bench.add_argument(
        "--json",
        type=path,
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="the figures as JSON, to a file or instead of the tables",
    )
    bench.add_argument("--progress", action="store_true", help="print the rows so far and the time left, as JSON lines")


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


def add_chats(commands: argparse._SubParsersAction[Any]) -> None:
    _, kinds = _add_group(commands, "chats", "kept chats: list, search, show, export, import, rename, delete")
    command = partial(add_command, kinds)

    listing = command("list", "list all chats, pinned ones first, then the newest")
    _json_option(listing, "one JSON object a chat; [] without any")
    search = command("search", "find messages and titles with all of these words, in any branch")
    search.add_argument("words", nargs="+", metavar="WORD", help="a word or its beginning")
    search.add_argument("--limit", type=int, default=50, metavar="N", help="at most N hits (50)")
    _json_option(search, "one JSON object a hit; [] without any")
    show = command("show", "print a chat as Markdown: only its current branch")
    show.add_argument("chat", metavar="CHAT", help=_CHAT)
    show.add_argument("--thoughts", action="store_true", help="include the model's reasoning")
    export = command("export", "write chats with all branches and figures")
    export.add_argument("chat", nargs="*", metavar="CHAT", help=f"{_CHAT}; all if left out")
    export.add_argument(
        "--format", choices=("md", "json"), help="Markdown, or JSON to import again (by the file's ending, or md)"
    )
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


def add_drafters(commands: argparse._SubParsersAction[Any]) -> None:
    about = "drafters: list them, train or import heads for a model, index text"
    parser, kinds = _add_group(commands, "drafters", about, "lists all")
    _share(parser, "--model")
    command = partial(add_command, kinds)

    listing = command("list", "list methods and heads, and which work with a model")
    _share(listing, "--model")
    _json_option(listing, "one JSON object a method or heads file")

    train = command("train", "train heads for a model on this machine", epilog=_DRAFTERS_EPILOG)
    train.add_argument("method", metavar="METHOD", help="medusa, kangaroo, space, eagle3, dflash, or all of them")
    _share(train, "--model")
    train.add_argument(
        "--on",
        default="answers",
        type=path,
        metavar="TEXT",
        help="answers: what the model itself writes (the default); chats: your own chats; or a folder of text files",
    )
    train.add_argument(
        "--prompts",
        type=path,
        metavar="FILE",
        help="what the model answers: a line is a question, or a JSON list of a user's turns (default: from templates)",
    )
    train.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"tokens of text ({TOKENS:,})")
    train.add_argument(
        "--seed", type=seed, default=argparse.SUPPRESS, metavar="N", help=f"seed of all random choices ({SEED})"
    )
    train.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help="the file to write; for all, a folder (default: in the folder of heads)",
    )

    published = command("import", "import published Medusa heads or a Kangaroo adapter")
    published.add_argument(
        "path", type=path, metavar="PATH", help="the published folder, or the file in it with the weights"
    )
    _share(published, "--model")
    published.add_argument("--licence", metavar="TEXT", help="licence of the published heads")
    published.add_argument(
        "--exit-layer", type=int, metavar="N", help="layers below a Kangaroo adapter, if its files do not say"
    )

    for way, about in (("off", "stop auto from using a drafter with a model"), ("on", "let auto use it again")):
        switch = command(way, about)
        switch.add_argument("name", metavar="NAME", help="a drafter, as in slipstream drafters list")
        _share(switch, "--model")

    index = command("index", "index text and code to draft from (drafter retrieval); chats are indexed automatically")
    index.add_argument(
        "paths", type=path, metavar="PATH", nargs="*", help="a file, or a folder and everything below it"
    )
    _share(index, "--model")
    index.add_argument("--list", action="store_true", help="list what is indexed for this kind of model")
    _json_option(index, "the list as JSON: one object a chat or file")
    index.add_argument(
        "--remove", action="append", type=path, metavar="PATH", help="forget a file or folder; may be repeated"
    )
    index.add_argument("--off", action="store_true", help="do not index chats, and do not draft from the index")
    index.add_argument("--on", action="store_true", help="undo --off")
    index.add_argument("--progress", action="store_true", help="print progress as lines, also without a terminal")


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
        _json_option(parser, "as JSON")
    return parser


def add_settings(commands: argparse._SubParsersAction[Any]) -> None:
    _, kinds = _add_group(commands, "settings", "settings: list, set and reset them")
    command = partial(add_command, kinds)
    listing = command("list", "list all settings, their values and what they do")
    _json_option(listing, "one JSON object a setting")
    setting = command("set", "change a setting")
    setting.add_argument(
        "name", metavar="NAME", help="such as sampling.temperature; slipstream settings list shows all"
    )
    setting.add_argument("value", type=possibly_empty, metavar="VALUE", help="a number, a text, or on and off")
    reset = command("reset", "return settings to their defaults")
    reset.add_argument("name", metavar="NAME", nargs="+")
