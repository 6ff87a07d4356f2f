"""Races a drafter against plain decoding: the same prompt and seed, in two contexts on the same weights.

The steps of the two replies alternate in one process, and each clock counts only the steps of its own reply. The reply
with the earlier clock takes the next step, so that the clocks stay about equal. Before the race, both write another
reply as a warm-up: it maps memory, starts threads, and lets the autopilot try the drafters once, as in a chat.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Final

from slipstream.app.bench.race_events import (
    FRAMES,
    PROMPT,
    RaceEvent,
    RaceFrame,
    Racer,
    RaceRequest,
    RaceResult,
    RaceStart,
    encoded,
)
from slipstream.app.bench.turns import CtrlC, never, session_of
from slipstream.app.engine.process.frames import built
from slipstream.app.engine.reply import Reply
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import PLAIN, Generate, Message, Sampling
from slipstream.app.speed import Speed
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Token

RACE_TOKENS: Final = 160  # maximum tokens of each reply
CONTEXT: Final = 2048  # tokens of each of the two contexts: room for a prompt and a reply
_OTHER_PROMPT: Final = "What is the weather like in autumn?"  # on the race's own prompt, drafters would learn the reply
_WARM_UP: Final = (128, 16)  # maximum tokens, with the drafter and without
_WARM_UP_SECONDS: Final = 8.0
_TEMPERATURE, _RACE_SEED = 0.8, 1


class RaceLane:
    """One of the two replies."""

    def __init__(
        self, session: Session, request: Generate, cancelled: Callable[[], bool], most_seconds: float = inf
    ) -> None:
        self._text: list[str] = []
        self.tokens: list[Token] = []
        self.seconds, self._squares, self._count = 0.0, 0.0, 0
        self._reply: Reply = session.begin(request, lambda _: None, lambda: cancelled() or self.seconds >= most_seconds)
        self._steps = self._reply.steps()
        self.over = False
        self.speed = Speed()

    def step(self) -> None:
        self._reply.resume()
        step = next(self._steps, None)
        if step is None:
            self.over = True
            return
        self._text += (piece.text for piece in step.pieces)
        self.tokens += step.tokens
        self.seconds += step.ms / 1e3
        self._squares += (step.ms / 1e3) ** 2
        self._count += 1
        self.speed = step.speed

    @property
    def racer(self) -> Racer:
        noise = max(0.0, self._squares / self.seconds**2 - 1 / self._count) ** 0.5 if self.seconds else 0.0
        return Racer("".join(self._text), len(self.tokens), self.seconds, self.over, noise)


def run_race(request: str) -> int:
    """Prints the events of a race as JSON lines, for the chat, which starts this process; 130 if it was stopped."""
    asked: RaceRequest = built(RaceRequest, json.loads(request))
    load = replace(asked.load, n_ctx=CONTEXT, states=None)
    sampling = Sampling(temperature=_TEMPERATURE, seed=_RACE_SEED)
    with CtrlC("race: stopping") as stop, session_of(load) as (session, loaded):
        messages = asked.messages or [Message("user", PROMPT)]
        for event in race(session, loaded, asked.drafter, messages, sampling, stop=stop):
            print(json.dumps(encoded(event)), flush=True)
    return 130 if stop.asked else 0


def race(
    session: Session,
    loaded: Loaded,
    drafter: str,
    messages: list[Message],
    sampling: Sampling,
    tokens: int = RACE_TOKENS,
    stop: Callable[[], bool] = never,
) -> Iterator[RaceEvent]:
    if drafter == PLAIN:
        raise SlipstreamError("without a drafter there is nothing to race.", "Name one: --drafter auto.")
    if session.open_second is None:
        raise SlipstreamError("this model cannot be opened twice.", "Try another one.")
    other = session.open_second()
    try:
        request = Generate(1, messages, sampling, drafter, tokens)
        plain = replace(request, drafter=PLAIN)
        warm_up = replace(request, messages=[Message("user", _OTHER_PROMPT)])
        lanes = [
            RaceLane(used, replace(warm_up, drafter=name, max_tokens=most), stop, _WARM_UP_SECONDS)
            for used, name, most in zip((session, other), (drafter, PLAIN), _WARM_UP, strict=True)
        ]
        for lane in lanes:
            while not lane.over:
                lane.step()
        plain_ms = 1e3 * lanes[1].seconds / max(1, len(lanes[1].tokens))
        prompt, earlier, seed = messages[-1].content, len(messages) - 1, sampling.seed
        start = RaceStart(
            loaded.title, drafter, prompt, seed, tokens, plain_ms=plain_ms, promise=loaded.promise, earlier=earlier
        )
        yield start
        yield from _run(RaceLane(session, request, stop), RaceLane(other, plain, stop), 1 / FRAMES / start.slower, stop)
    finally:
        other.close()


def _run(ours: RaceLane, plain: RaceLane, every: float, stop: Callable[[], bool]) -> Iterator[RaceFrame | RaceResult]:
    """Steps the lane with the earlier clock; yields a frame every ``every`` seconds of a clock."""
    shown = 0.0
    while not stop() and not (ours.over and plain.over):
        behind = ours if plain.over or (not ours.over and ours.seconds <= plain.seconds) else plain
        behind.step()
        if behind.seconds >= shown + every:
            shown = behind.seconds
            yield RaceFrame(ours.racer, plain.racer)
    both = list(zip(ours.tokens, plain.tokens, strict=False))
    differs = next((at for at, (one, two) in enumerate(both) if one != two), None)
    stopped = not (ours.over and plain.over)
    if differs is None and not stopped and len(ours.tokens) != len(plain.tokens):
        differs = len(both)
    speed, busy = ours.speed, ours.speed.busy or plain.speed.busy
    frame = RaceFrame(ours.racer, plain.racer)
    yield RaceResult(frame, stopped, differs, speed.acceptance, speed.tokens_per_step, busy=busy)
