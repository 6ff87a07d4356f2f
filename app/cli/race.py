"""``slipstream race``: the same reply with a drafter and without, side by side."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import replace
from time import monotonic, sleep
from typing import Final

from slipstream.app.bench.inflate import Wish, check_room, families, inflated, inflated_folder
from slipstream.app.bench.race import CONTEXT, race
from slipstream.app.bench.race_events import PROMPT, Event, Finish, Frame, Start, encoded
from slipstream.app.bench.race_picture import Line, picture
from slipstream.app.bench.stopping import Stop
from slipstream.app.bench.turns import session_of
from slipstream.app.library.load_request import BUNDLED, check_files, placed
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import PLAIN, Load, Lora, Sampling
from slipstream.app.settings.file import known
from slipstream.models.errors import UsageError
from slipstream.models.llama.devices import devices
from slipstream.models.llama.library import process_log

LARGER: Final = "1b"  # suggested shape for ``--inflate`` if the model is too small to gain
_HEIGHT: Final = 24
_COLOURS: Final = {"title": "1", "faint": "2", "head": "1", "ours": "32", "plain": "2", "good": "32", "bad": "33"}


def run_race(options: argparse.Namespace) -> int:
    """Runs and shows a race; the exit code is 130 if it was stopped."""
    if options.max_tokens < 1:
        raise UsageError(f"max-tokens is {options.max_tokens}; it must be 1 or more.")
    known("sampling.temperature").checked(options.temp)
    paths = Paths.default()
    wish = Wish.of(options.inflate, options.quant, options.inflate_drafter, options.keep_inflated)
    sampling = Sampling(temperature=options.temp, seed=options.seed)
    load = choose(paths, options.model or BUNDLED, options.draft_model, PLAIN)
    load = replace(load, heads=[*load.heads, *options.heads], lora=[Lora.read(each) for each in options.lora or ()])
    check_files(load)
    prompt = options.prompt or PROMPT
    show = _Json() if options.json else _Terminal() if sys.stdout.isatty() else _Lines()
    with Stop("race: stopping") as stop:

        def run(load: Load, widened: str = "") -> None:
            load = placed(load, options.gpu_layers, options.rpc, options.draft_device)
            load, most = replace(load, n_ctx=load.n_ctx or CONTEXT), options.max_tokens
            with (
                process_log().listening(),
                session_of(load) as (session, loaded),
            ):  # otherwise llama.cpp prints its log
                for event in race(session, loaded, options.drafter, prompt, sampling, most, stop, widened):
                    show.take(event)

        if wish is None:
            run(load)
            if not options.json and not stop.asked and show.even:
                price = families(load, _larger())[0].price
                print(f"As large as a 1B model: slipstream race --inflate {LARGER} ({price})")
        else:
            folder, planned = inflated_folder(paths.derived), families(load, wish)[:1]
            check_room(planned, folder, devices(), wish.keep)
            if not planned[0].stands_in(folder):
                then = "" if wish.keep else "; the files are deleted afterwards"
                _tell(f"widening takes {planned[0].price}{then}")
            with inflated(planned[0], folder, wish.keep, _tell) as made:
                name = planned[0].name
                name += f", its draft model to {options.inflate_drafter}" if planned[0].draft else ""
                run(placed(made.load, options.gpu_layers, options.rpc, options.draft_device), name)
        return 130 if stop.asked else 0


def _larger() -> Wish:
    wish = Wish.of(LARGER, None, None, False)
    assert wish
    return wish


def _is_even(finish: Finish) -> bool:
    return finish.frame.speedup is not None and finish.frame.speedup < 1.05


def _tell(line: str) -> None:
    print(f"race: {line}", file=sys.stderr, flush=True)


class _Json:
    """Prints each event as a line of JSON."""

    even = False

    def take(self, event: Event) -> None:
        print(json.dumps(encoded(event)), flush=True)


class _Lines:
    """Prints only the result, for output that is not a terminal."""

    _start: Start
    even = False  # whether the drafter gained nothing

    def take(self, event: Event) -> None:
        if isinstance(event, Start):
            self._start = event
        elif isinstance(event, Finish):
            self.even = _is_even(event)
            self.print(picture(self._start, event.frame, event, 100, _HEIGHT))

    @staticmethod
    def print(lines: list[Line]) -> None:
        print("\n".join(text.rstrip() for text, _ in lines if text.strip()), flush=True)


class _Terminal:
    """Redraws the same lines at the times that the race measured; shows a short race in slow motion."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self._began = 0.0
        self._drawn = 0
        self.even = False

    def take(self, event: Event) -> None:
        """Waits until the time of an event, then draws it."""
        if isinstance(event, Start):
            self._start, self._began = event, monotonic()
            return
        assert self._start
        finish = event if isinstance(event, Finish) else None
        self.even = finish is not None and _is_even(finish)
        frame = finish.frame if finish else event
        assert isinstance(frame, Frame)
        if not finish:
            sleep(max(0.0, self._began + self._start.slower * frame.seconds - monotonic()))
        size = shutil.get_terminal_size((80, _HEIGHT))
        lines = picture(self._start, frame, finish, size.columns - 1, min(size.lines - 1, _HEIGHT))
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        drawn = (f"\x1b[{_COLOURS.get(kind, '0')}m{text}\x1b[0m\x1b[K" for text, kind in lines)
        print(up + "\r" + "\n".join(drawn), flush=True)
        self._drawn = len(lines)
