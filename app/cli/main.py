"""The command line: parses the arguments, runs the command, and reports errors."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from slipstream.app.bench import RACE
from slipstream.app.cli.options import make_parser
from slipstream.app.cli.streams import Streams, notice, print_rows, read_stdin
from slipstream.app.platform.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:  # each command imports only what it needs, to start fast
    from pathlib import Path

    from slipstream.app.engine.process.client import Engine
    from slipstream.app.platform.paths import Paths
    from slipstream.app.protocol.requests import Load, Sampling
    from slipstream.app.settings.file import SettingsFile

_COMPLETES: Final = "_ARGCOMPLETE"
"""Variable that is set when a shell requests completions, see ``slipstream.app.cli.completion``."""
SUPERVISED: Final = "--supervised"
"""First argument of a command that ends with its starter; the second is the number that lowers its priority."""
WITHOUT_MODEL: Final = ("chats", "completion", "paths", "settings")
IN_THIS_PROCESS: Final = ("bench", "drafters", "lend")
"""Commands that load llama.cpp in this process instead of the engine's."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs slipstream and exits: 0 done, 1 error, 2 wrong use, 130 interrupted, 141 broken pipe on standard output."""
    streams = Streams()
    try:
        code = run_command(list(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as ended:  # after --help and --version
        code = ended.code if isinstance(ended.code, int) else 0
    except SlipstreamError as error:
        notice(f"{error.title} {error.hint}")
        code = error.code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = 1
        if not streams.refused:
            notice(_explained(error))
    sys.exit(streams.finish(code))


def _explained(error: Exception) -> str:
    try:
        from slipstream.app.platform.error_log import explained
        from slipstream.models.llama.install import broken_install

        if found := broken_install(f"{type(error).__name__}: {error}"):
            return f"{found.error.title} {found.error.hint}"
        return explained(error)
    except Exception:  # no free file descriptor or memory for another module
        return f"{error or type(error).__name__}. Where it happened could not be logged."


def run_command(arguments: list[str]) -> int:
    if arguments[:1] == [SUPERVISED] and arguments[1:2] and arguments[1].isdecimal():
        from slipstream.app.cli.launcher import end_with_starter

        end_with_starter(int(arguments[1]))
        arguments = arguments[2:]
        if arguments[:1] == [RACE]:
            from slipstream.app.bench.race import run_race

            return run_race(*arguments[1:])
    parser = make_parser()
    if _COMPLETES in os.environ:
        from slipstream.app.cli.completion import complete

        complete(parser)
    options = parser.parse_args(arguments)
    command: str = options.command or "chat"
    from slipstream.app.platform.processes import check_limits  # not needed for --help

    check_limits(runs_model=command not in WITHOUT_MODEL)
    if command in IN_THIS_PROCESS:
        from slipstream.models.llama.install import check_install

        check_install()
    act: Callable[[argparse.Namespace], int]
    match command:
        case "completion":
            from slipstream.app.cli.completion import script

            print(script(options.shell), end="")
            return 0
        case "paths":
            return _paths(options.json)
        case "bench":
            from slipstream.app.cli.bench import bench as act
        case "chats":
            from slipstream.app.cli.chats import chats as act
        case "models":
            from slipstream.app.cli.models import models as act
        case "drafters":
            from slipstream.app.cli.drafters import drafters as act
        case "settings":
            from slipstream.app.cli.settings import settings as act
        case "doctor":
            from slipstream.app.cli.devices import doctor as act
        case "lend":
            from slipstream.app.cli.devices import run_lend as act
        case "run":
            act = _one_reply
        case _:
            gc.disable()  # imports create no garbage; the chat enables it once its screen is shown
            try:
                return _chat(options, arguments)
            finally:
                gc.enable()
    return act(options)


def _paths(as_json: bool) -> int:
    from slipstream.app.platform.paths import Paths

    rows = Paths.default().rows()
    if as_json:
        print_rows([{"name": name, "path": str(place)} for name, place in rows])
        return 0
    width = max(len(name) for name, _ in rows)
    for name, place in rows:
        print(f"{name:<{width}}  {place}")
    return 0


def _one_reply(options: argparse.Namespace) -> int:
    from slipstream.app.platform.paths import Paths, places

    piped = read_stdin(options.prompt is not None, sys.stdin.buffer)
    prompt = "\n\n".join(part for part in (options.prompt or "", piped) if part.strip())
    if not prompt and not options.image:
        raise UsageError("the prompt is empty.", 'Give one with -p "…", or pipe text in.')
    paths = Paths.default()
    with places(paths) as (here, note), _started_engine(here.logs / "engine.log") as engine:
        from pathlib import Path

        from slipstream.app.chats.images import read_attached
        from slipstream.app.cli.run import RunRequest, read_grammar, run
        from slipstream.app.settings.file import given

        images = [read_attached(Path(name)) for name in options.image]
        kept = _settings(options, paths)
        for problem in kept.problems:
            notice(problem)
        most = kept.settings.reply.max_tokens
        if most < 0:
            raise UsageError(f"max-tokens is {most}; it must be 0 (no limit) or more.")
        if note and options.chat:
            raise SlipstreamError(note)  # the chat would be lost
        if note:
            notice(note)
        load = _load(options, here, kept)
        request = RunRequest(
            load=load,
            prompt=prompt,
            images=images,
            system=options.system,
            sampling=_sampling(options, kept, load),
            max_tokens=most,
            stop=options.stop,
            chat=options.chat,
            as_json=options.json,
            stats=options.stats,
            given=frozenset(name.removeprefix("sampling.") for name in given(vars(options))),
            chosen=kept.chosen,
            grammar=read_grammar(options.json_schema, options.grammar),
            overflow=kept.settings.reply.overflow,
        )
        return run(request, engine, here)


@contextmanager
def _started_engine(log: Path) -> Iterator[Engine]:
    """Starts the engine's process, which imports llama.cpp while this one imports the rest and reads the settings."""
    from slipstream.app.engine.process.client import Engine

    engine = Engine(log)
    try:
        engine.start()
        yield engine
    finally:
        engine.close(0.0)  # after an error; otherwise its user has closed it


def _chat(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs the chat in a child process; this one only restores the terminal, even after a crash."""
    if options.as_child:
        return _chat_here(options)
    from slipstream.app.cli import launcher
    from slipstream.app.platform.paths import Paths

    paths = Paths.default()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        kept = _settings(options, paths)
        _load(options, paths, kept), _sampling(options, kept)  # a wrong name is worth more than the error below
        raise UsageError("the chat needs a terminal.", 'For one reply without it: slipstream run -p "…".')
    if options.inline and sys.platform == "win32":
        raise UsageError("--inline does not work on Windows.", "Start slipstream without it.")
    problem = launcher.terminal_size_problem(*os.get_terminal_size(sys.stdout.fileno()))
    if problem:
        raise SlipstreamError(problem, "Enlarge the window and start again, or use slipstream run.")
    if arguments or paths.settings.exists():  # the defaults need no check
        kept = _settings(options, paths)
        if options.drafter:
            _drafter(options, options.drafter, notice)
        _sampling(options, kept)
    return launcher.run([sys.executable, "-m", "slipstream.app.cli.main", "--as-child", *arguments])


def _chat_here(options: argparse.Namespace) -> int:
    from slipstream.app.platform.paths import Paths, places

    paths = Paths.default()
    kept = _settings(options, paths)
    keep = kept.settings.keeping.chats or options.chat is not None
    with places(paths, keep) as (here, note), _started_engine(here.logs / "chat-engine.log") as engine:
        from slipstream.app.cli.chat import chat
        from slipstream.app.library.load_request import check_files

        if note and options.chat:
            raise SlipstreamError(note)  # the chat would be lost
        notes: list[str] = []

        def say(words: str) -> None:
            notice(words)
            notes.append(one_line(words))

        load = _load(options, here, kept, say)
        sampling = _sampling(options, kept, load)
        check_files(load, here.bundled)
        if note:
            notes.append(note)
        return chat(engine, load, sampling, options.chat, paths=here, settings=kept, notes=notes, inline=options.inline)


def _settings(options: argparse.Namespace, paths: Paths) -> SettingsFile:
    from slipstream.app.settings.file import SettingsFile, given

    return SettingsFile(paths.settings, given(vars(options)))


def _load(options: argparse.Namespace, paths: Paths, kept: SettingsFile, say: Callable[[str], None] = notice) -> Load:
    """The load request for the chosen model and drafter; a wrong name is an error before anything is loaded.

    ``say`` is told what the settings name but is not to be had, and what is used instead.
    """
    from dataclasses import replace
    from pathlib import Path

    from slipstream.app.library.load_request import (
        BUNDLED,
        check_experts,
        check_files,
        check_placement,
        check_projector,
        is_path,
        usual,
    )
    from slipstream.app.library.resolve_model import choose
    from slipstream.app.protocol.requests import Lora
    from slipstream.app.settings.values import LAST

    settings = kept.settings.model
    drafter = _drafter(options, settings.drafter, say)
    model = usual(paths) if settings.name == LAST else settings.name
    try:
        load = choose(paths, model, options.draft_model, drafter, settings.context)
        if not options.model and is_path(model):
            check_files(load)
    except SlipstreamError as error:
        if options.model or model == BUNDLED:
            raise
        chosen = "chosen last" if settings.name == LAST else "of the settings"
        say(f"{model}, {chosen}, cannot be used: {error.title} Using {BUNDLED} instead.")
        load = choose(paths, BUNDLED, options.draft_model, drafter, settings.context)
    check_placement(options.gpu_layers, options.rpc)
    check_placement(options.cpu_experts, None, "cpu-experts")
    if (options.cpu_experts or 0) > 0:
        check_experts(Path(load.model))
    check_placement(options.draft_gpu_layers, None, "draft-gpu-layers")
    load = replace(load, lora=[Lora.read(each) for each in options.lora or ()])
    if options.mmproj:
        check_projector(options.mmproj)
        load = replace(load, mmproj=str(options.mmproj))
    return replace(kept.settings.loading(load), draft_gpu_layers=options.draft_gpu_layers)


def _drafter(options: argparse.Namespace, settled: str, say: Callable[[str], None]) -> str | None:
    """The drafter; None for the autopilot. An unknown name in the options is an error, in the settings a notice."""
    from slipstream.app.protocol.requests import AUTO

    if settled == AUTO and not options.drafter:
        return None
    if options.as_child and options.drafter:
        return settled  # the launcher has checked it; the check loads llama.cpp
    from slipstream.app.engine.drafter_list import check_drafter

    try:
        check_drafter(settled)
    except SlipstreamError as error:
        if options.drafter:
            raise
        say(f"the drafter of the settings cannot be used: {error.title} Using {AUTO} instead.")
        return None
    return settled


def _sampling(options: argparse.Namespace, kept: SettingsFile, load: Load | None = None) -> Sampling:
    """The sampling; a value out of range is an error before anything is loaded. ``load`` may have a seed of its own."""
    from dataclasses import replace

    from slipstream.app.protocol.requests import Sampling, new_seed
    from slipstream.app.settings.file import known

    if options.typical == 0:
        raise UsageError(
            "typical is 0; it must be above 0 and at most 1.", "Without the option, nothing changes the text."
        )
    own = load.extras.seed if load else None
    seed = next((seed for seed in (options.seed, own) if seed is not None), new_seed())
    sampling = kept.settings.sampling.sampling(seed)
    for name in ("temperature", "logit_bias", "reasoning_budget"):  # the sampler does not check their bounds
        known(f"sampling.{name}").checked(getattr(sampling, name))
    if replace(sampling, seed=0) != Sampling() and not options.as_child:  # the check loads numpy; the launcher did it
        from slipstream.drafters.accept import accept_rule
        from slipstream.models.sampling.sampler import Sampler

        accept_rule(sampling.typical, sampling.temperature)
        Sampler(**sampling.drawing())
    return sampling


if __name__ == "__main__":
    main()
