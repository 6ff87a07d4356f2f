"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, NoReturn

from slipstream.app.parser import make_parser
from slipstream.app.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:  # a command loads what it needs, and the others start faster for it
    from slipstream.app.engine.requests import Load, Sampling
    from slipstream.app.paths import Paths
    from slipstream.app.settings.file import SettingsFile

ASK: Final = "--complete"
"""Before the words of a command line that a shell wants to complete, see ``slipstream.app.completion``."""
_READER_LEFT: Final = 141
"""As if SIGPIPE had ended it, which shells expect of the beginning of a pipe."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs slipstream and exits: 0 done, 1 error, 2 wrong use, 130 interrupted, 141 nobody reads the output."""
    _open_closed_streams()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except SlipstreamError as error:
        print(f"slipstream: {one_line(f'{error.title} {error.hint}')}", file=sys.stderr)
        code = error.code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the end of Python would complain
        code = _READER_LEFT
    sys.exit(code)


def _open_closed_streams() -> None:
    """Gives a process that was started with closed streams (``<&-``) empty ones: Python has None in their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open as long as the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale, or a file's name, that cannot be written so


def _run(arguments: list[str]) -> int:
    if arguments[:1] == [ASK]:
        from slipstream.app.completion import answer

        print(answer(make_parser(), arguments[1:]), end="")
        return 0
    options = make_parser().parse_args(arguments)
    command: str = options.command or "chat"
    if command == "completion":
        from slipstream.app.completion import SCRIPTS

        print(SCRIPTS[options.shell], end="")
        return 0
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
    if command == "settings":
        from slipstream.app.settings.command import settings

        return settings(options)
    if command == "doctor":
        from slipstream.app.doctor.command import doctor

        return doctor(options.json)
    if command == "run":
        return _one_reply(options)
    gc.disable()  # what is loaded now stays; the chat looks for garbage once its screen is up
    try:
        return _chat(options, arguments)
    finally:
        gc.enable()


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
    from slipstream.app.settings.given import given

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
            given=frozenset(name.removeprefix("sampling.") for name in given(vars(options))),
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
            notes = [*options.note, *filter(None, [note])]
            return chat(load, sampling, options.chat, here, kept, notes, options.inline)
    load = _load(options, paths, kept)
    _sampling(options, kept)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal.", 'For one reply without it: slipstream run -p "…".')
    if options.inline and sys.platform == "win32":
        raise UsageError("--inline does not work on Windows.", "Start slipstream without it.")
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
    from slipstream.app.engine.requests import Sampling, new_seed

    if options.typical == 0:
        raise UsageError(
            "typical is 0; it must be above 0 and at most 1.", "Without the option, nothing changes the text."
        )
    seed = new_seed() if options.seed is None else options.seed
    sampling = kept.settings.sampling.sampling(seed)
    if replace(sampling, seed=0) != Sampling() and not options.as_child:  # this loads numpy; defaults need no check
        from slipstream.drafters.accept import accept_rule
        from slipstream.models.sampling import Sampler

        settings = asdict(sampling)
        accept_rule(settings.pop("typical"), sampling.temperature)
        Sampler(**settings)
    return sampling


if __name__ == "__main__":
    main()
