"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NoReturn

from slipstream.app.bench.options import PAPERS_TYPICAL, add_bench
from slipstream.app.chats.options import add_chats
from slipstream.app.drafters.options import add_drafters
from slipstream.app.models.options import add_models
from slipstream.app.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:  # a command loads what it needs, and the others start faster for it
    from slipstream.app.engine.requests import Load, Sampling
    from slipstream.app.paths import Paths
    from slipstream.app.settings.file import SettingsFile


class _Parser(argparse.ArgumentParser):
    """Wrong arguments are one line on stderr and exit code 2, like every other wrong use.

    Attributes:
        more: Makes the last part of the help, which costs too much to be made each time.
    """

    more: Callable[[], str] | None = None

    def format_help(self) -> str:
        return super().format_help() + (f"\n{self.more()}\n" if self.more else "")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", f"Try {self.prog} --help.")


class _Version(argparse.Action):
    """Prints the version, and looks it up only then: that costs as much as all other imports of this module."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"slipstream {version('slipstream')}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs slipstream and exits: 0 done, 1 error, 2 wrong use, 130 interrupted."""
    _open_closed_streams()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except SlipstreamError as error:
        print(f"slipstream: {one_line(f'{error.title} {error.hint}')}", file=sys.stderr)
        code = error.code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        code = 1
    sys.exit(code)


def _open_closed_streams() -> None:
    """Gives a process that was started with closed streams (``<&-``) empty ones: Python has None in their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open as long as the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale, or a file's name, that cannot be written so


def _run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    command: str = options.command or "chat"
    if command == "paths":
        return _paths()
    if command == "bench":
        from slipstream.app.bench.command import bench

        return bench(options)
    if command == "chats":
        from slipstream.app.chats.command import chats

        return chats(options)
    if command == "models":
        from slipstream.app.models.command import models

        return models(options)
    if command == "drafters":
        from slipstream.app.drafters.command import drafters

        return drafters(options)
    if command == "doctor":
        from slipstream.app.doctor.command import doctor

        return doctor(options.json)
    if command == "run":
        return _one_reply(options)
    return _chat(options, arguments)


def _paths() -> int:
    from slipstream.app.paths import Paths

    rows = Paths.default().rows()
    width = max(len(name) for name, _ in rows)
    for name, place in rows:
        print(f"{name:<{width}}  {place}")
    return 0


def _one_reply(options: argparse.Namespace) -> int:
    from slipstream.app.paths import Paths
    from slipstream.app.places import places
    from slipstream.app.run import RunRequest, read_stdin, run

    piped = read_stdin(options.prompt is not None, sys.stdin.buffer)
    prompt = "\n\n".join(part for part in (options.prompt or "", piped) if part.strip())
    if not prompt:
        raise UsageError("the prompt is empty.", 'Give one with -p "…", or pipe text in.')
    paths = Paths.default()
    kept = _settings(options, paths)
    for problem in kept.problems:
        _say(options, problem)
    with places(paths) as (here, note):
        _say_unkept(options, note)
        request = RunRequest(
            load=_load(options, here, kept),
            prompt=prompt,
            system=options.system,
            sampling=_sampling(options, kept),
            max_tokens=kept.settings.reply.max_tokens,
            stop=options.stop,
            chat=options.chat,
            as_json=options.json,
        )
        return run(request, here)


def _chat(options: argparse.Namespace, arguments: list[str]) -> int:
    """The chat runs as a child of this process, which restores the terminal whatever becomes of it."""
    from slipstream.app import launcher
    from slipstream.app.model_choice import check_files
    from slipstream.app.paths import Paths
    from slipstream.app.places import places

    paths = Paths.default()
    kept = _settings(options, paths)
    if options.as_child:
        from slipstream.app.chat import chat

        with places(paths, kept.settings.keeping.chats or options.chat is not None) as (here, note):
            _say_unkept(options, note)
            load, sampling = _load(options, here, kept), _sampling(options, kept)
            return chat(load, sampling, options.chat, here, kept, [*options.note, *filter(None, [note])])
    load = _load(options, paths, kept)
    _sampling(options, kept)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal.", 'For one reply without it: slipstream run -p "…".')
    problem = launcher.terminal_size_problem(*os.get_terminal_size(sys.stdout.fileno()))
    if problem:
        raise SlipstreamError(problem, "Enlarge the window and start again, or use slipstream run.")
    check_files(load, paths.bundled)  # a file that is no model is one line here, not a notice on a screen
    notes = [word for note in options.note for word in ("--note", note)]
    drafter = [] if options.drafter or load.drafter == kept.settings.model.drafter else ["--drafter", load.drafter]
    return launcher.run([sys.executable, "-m", "slipstream.app.cli", "--as-child", *notes, *drafter, *arguments])


def _settings(options: argparse.Namespace, paths: Paths) -> SettingsFile:
    """What the owner has settled, and what the command line says instead."""
    from slipstream.app.settings.file import SettingsFile
    from slipstream.app.settings.given import given

    return SettingsFile(paths.settings, given(vars(options)))


def _say(options: argparse.Namespace, words: str) -> None:
    """Tells something that is no error, on standard error and on the screen of the chat that follows."""
    if not options.as_child:
        print(f"slipstream: {one_line(words)}", file=sys.stderr)
        options.note.append(one_line(words))


def _say_unkept(options: argparse.Namespace, note: str) -> None:
    """Tells that nothing is kept; a chat that is asked for by name is then refused."""
    if note and options.chat:
        raise SlipstreamError(note)
    if note:
        _say(options, note)


def _load(options: argparse.Namespace, paths: Paths, kept: SettingsFile) -> Load:
    """Which model and drafter; a wrong name is refused before anything is loaded."""
    from slipstream.app.model_choice import BUNDLED, choose, usual
    from slipstream.app.settings.values import LAST

    settings = kept.settings.model
    drafter = _drafter(options, settings.drafter)
    model = usual(paths) if settings.name == LAST else settings.name
    try:
        load = choose(paths, model, options.draft_model, drafter, settings.context)
    except SlipstreamError as error:
        if options.model or model == BUNDLED:
            raise
        chosen = "chosen last" if settings.name == LAST else "of the settings"
        _say(options, f"{model}, {chosen}, cannot be used: {error.title} Here is {BUNDLED}.")
        load = choose(paths, BUNDLED, options.draft_model, drafter, settings.context)
    for name in ("gpu_layers", "draft_gpu_layers"):
        if (getattr(options, name) or 0) < -1:
            raise UsageError(f"{name.replace('_', '-')} is {getattr(options, name)}; it must be -1 (all) or more.")
    return replace(kept.settings.loading(load), draft_gpu_layers=options.draft_gpu_layers)


def _drafter(options: argparse.Namespace, settled: str) -> str | None:
    """Who drafts, None for what fits; an unknown one of the settings gives way, one of the command line is refused."""
    from slipstream.app.engine.requests import AUTO

    if settled == AUTO and not options.drafter:
        return None
    if options.as_child:  # what follows loads llama.cpp; a child's parent has done it
        return settled
    from slipstream.app.engine.offers import check_drafter

    try:
        check_drafter(settled)
    except SlipstreamError as error:
        if options.drafter:
            raise
        _say(options, f"the drafter of the settings cannot be used: {error.title} Here is {AUTO}.")
        return None
    return settled


def _sampling(options: argparse.Namespace, kept: SettingsFile) -> Sampling:
    """How tokens are drawn; a value out of range is refused before anything is loaded."""
    from slipstream.app.engine.requests import Sampling

    if options.typical == 0:
        raise UsageError(
            "typical is 0; it must be above 0 and at most 1.", "Without the option, nothing changes the text."
        )
    seed = int.from_bytes(os.urandom(4)) >> 1 if options.seed is None else options.seed
    sampling = kept.settings.sampling.sampling(seed)
    if replace(sampling, seed=0) != Sampling() and not options.as_child:  # this loads numpy; defaults need no check
        from slipstream.drafters.accept import accept_rule
        from slipstream.models.sampling import Sampler

        settings = asdict(sampling)
        accept_rule(settings.pop("typical"), sampling.temperature)
        Sampler(**settings)
    return sampling


def _parser() -> _Parser:
    parser = _Parser(prog="slipstream", description="Chat with a large language model on your own computer.")
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
    _model_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    run = commands.add_parser("run", help="one reply to standard output; reads standard input when piped")
    run.add_argument("-p", "--prompt", help="the prompt; piped text is put below it")
    run.add_argument("--system", default="", help="system message")
    run.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of the reply (0: no limit)")
    run.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="text that ends the reply; may be repeated"
    )
    run.add_argument("--json", action="store_true", help="one JSON object a step, then a summary")
    _model_options(run, inherit=True)
    run.more = _methods
    add_bench(commands)
    add_drafters(commands)
    add_models(commands)
    add_chats(commands)
    doctor = commands.add_parser("doctor", help="what this machine has, what is broken, what would be faster")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    commands.add_parser("paths", help="where everything is kept")
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
    option("--chat", metavar="ID", help="go on with this kept chat; a new name begins one")
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


if __name__ == "__main__":
    main()
