"""An engine without a model: it plays replies from a script, with pieces of every origin."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol import events
from slipstream.app.protocol.requests import Generate, Load, Prepare
from slipstream.app.speed import Speed
from slipstream.models.errors import EngineDiedError, SlipstreamError

PATIENCE = 60.0  # seconds that a hold lasts at most; a busy machine takes long to come to the next key
DEPTHS = [[8, 6], [4, 2]]  # at each depth: steps that reached it, accepted there
LOADED = events.Loaded(
    name="slipstream-mini",
    architecture="llama",
    n_ctx=1024,
    fingerprint="f1",
    device="CPU",
    promise="same text",
    drafters=[
        events.DrafterOffer("none", True),
        events.DrafterOffer("draft", True),
        events.DrafterOffer("lookup", True),
        events.DrafterOffer("medusa", False, "no heads are trained for this model"),
    ],
    plain_tok_per_s=44.0,
)


@dataclass
class Script:
    text: str = "The sea is wide and blue."  # the reply
    hold: int | None = None  # characters after which it waits for ``ScriptedEngine.go`` or a stop, or None
    reason: str = "stop"  # how it ends
    fails: SlipstreamError | None = None  # raised at the hold, or at once where there is none
    dropped: int = 0  # messages left out
    opened: bool = False  # whether the prompt has opened a thinking part
    failed: dict[str, str] = field(default_factory=dict)  # drafters that fail meanwhile, and why
    remarks: dict[str, str] = field(default_factory=dict)  # what is told of the model's files, and what to do


@dataclass
class ScriptedEngine(Engine):
    """Plays ``scripts`` in order, the last one again and again."""

    scripts: list[Script] = field(default_factory=lambda: [Script()])
    load_fails: list[SlipstreamError] = field(default_factory=list)
    hold_load: bool = False
    loads: list[Load] = field(default_factory=list)
    asked: list[Generate] = field(default_factory=list)
    prepared: list[Prepare] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    unthought: list[int] = field(default_factory=list)  # replies whose thoughts were ended
    watched: bool = False
    end: Callable[[EngineDiedError], None] = field(default=lambda error: None)
    count: Callable[[events.Counted], None] = field(default=lambda counted: None)
    leaves_out: tuple[int, int] = (0, 0)  # messages and tokens
    closed: bool = False
    loaded: events.Loaded = LOADED
    _signals: queue.Queue[str] = field(default_factory=queue.Queue)
    _go_load: threading.Event = field(default_factory=threading.Event)

    def load(self, load: Load, on_progress: Callable[[float | None], None] | None = None) -> events.Loaded:
        self.loads.append(load)
        for share in (0.25, 0.5):
            if on_progress:
                on_progress(share)
        if self.hold_load:
            self._go_load.wait(PATIENCE)
        if self.load_fails:
            raise self.load_fails.pop(0)
        return self.loaded

    def reply(self, generate: Generate) -> Iterator[events.Prefilling | events.Stepped | events.Done]:
        self.asked.append(generate)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if script.fails and script.hold is None:
            raise script.fails
        prompt = 20 * len(generate.messages)
        yield events.Prefilling(generate.request, 0, prompt)
        yield events.Prefilling(generate.request, prompt, prompt)
        written = ""
        speed = Speed()
        tokens: list[int] = []
        reason = script.reason
        mind = Thinking.after(generate.messages, script.opened)
        thought, ttft_ms = (0, 0.0), 0.0
        for stepped in play(generate, script.text):
            if script.hold is not None and len(written) >= script.hold:
                signal = self._signals.get(timeout=PATIENCE)
                if signal == "stop":
                    reason = "cancelled"
                    break
                if signal == "close":
                    raise EngineDiedError("the engine ended: it was closed.", "")
                if script.fails:
                    raise script.fails
                script.hold = None
            written += "".join(piece.text for piece in stepped.pieces)
            tokens += stepped.tokens
            reasons, divided = mind.under_way, mind.divide(stepped.pieces)
            if reasons or mind.under_way:
                thought = (len(tokens), 1000.0 * len(tokens))
            speed = replace(stepped.speed, thought=thought[0], thought_ms=thought[1])
            seen = watched(stepped, generate.drafter) if self.watched else None
            ttft_ms = ttft_ms or 1e3 * (perf_counter() - generate.asked)
            yield replace(stepped, speed=speed, watched=seen, divided=divided, ttft_ms=ttft_ms)
        if rest := mind.divide_rest([]):
            yield events.Stepped(generate.request, [], [], "none", 0, 0, 0.0, speed, divided=rest, ttft_ms=ttft_ms)
        yield events.Done(
            generate.request,
            reason,  # type: ignore[arg-type]
            written,
            tokens,
            prompt,
            prompt,
            script.dropped,
            ttft_ms,
            speed,
            promise="changed" if generate.sampling.typical else "same_text",
            by_drafter=counts(speed, generate.drafter),
            by_depth=DEPTHS if speed.drafted else [],
            drafter_depths={generate.drafter: DEPTHS} if speed.drafted else {},
            dropped_tokens=100 * script.dropped,
            failed=script.failed,
            remarks=script.remarks,
        )

    def prepare(self, prepare: Prepare) -> None:
        self.prepared.append(prepare)
        words = sum(len(message.content.split()) for message in prepare.messages)
        self.count(events.Counted(prepare.request, words, *self.leaves_out))

    def tell_count(self, told: Callable[[events.Counted], None]) -> None:
        self.count = told

    def watch(self, on: bool) -> None:
        self.watched = on

    def tell_wait(self, told: Callable[[str], None]) -> None:
        self.wait = told

    def tell_end(self, told: Callable[[EngineDiedError], None]) -> None:
        self.end = told

    def stop(self, request: int) -> None:
        self.stopped.append(request)
        self._signals.put("stop")

    def end_thoughts(self, request: int) -> None:
        self.unthought.append(request)

    def go(self) -> None:
        self._signals.put("go")

    def go_load(self) -> None:
        self._go_load.set()

    def close(self, patience: float = 2.0) -> None:
        self.closed = True
        self._signals.put("close")
        self._go_load.set()


def play(generate: Generate, text: str) -> Iterator[events.Stepped]:
    """Cuts a text into steps of one to four words, as the drafter would have."""
    words = text.split(" ")
    words = [word + " " for word in words[:-1]] + words[-1:]
    plain = generate.drafter == "none"
    at = step = drafted = accepted = 0
    while text and at < len(words):
        size = 1 if plain else 1 + (step * 7 + len(words[at])) % 4
        group = words[at : at + size]
        at += size
        step += 1
        if plain:
            pieces = [events.Piece(group[0], "plain")]
        else:
            whole = step % 2 == 0
            pieces = [events.Piece(word, "accepted", generate.drafter) for word in group[:-1]]
            pieces.append(events.Piece(group[-1], "bonus" if whole else "recovered"))
            drafted += len(group) - 1 + (not whole)
            accepted += len(group) - 1
        tok_per_s = 44.0 if plain else 60.0 + 8 * (len(group) % 4) + step % 7
        speed = Speed(
            tok_per_s=tok_per_s, acceptance=accepted / drafted if drafted else None, tokens_per_step=at / step,
            plain_tok_per_s=tok_per_s if plain else tok_per_s / 1.7, drafted=drafted, accepted=accepted, steps=step,
            tokens=min(at, len(words)),
        )  # fmt: skip
        tokens = list(range(at - len(group), at))
        ms = 1000 * len(group) / speed.tok_per_s
        yield events.Stepped(
            generate.request, pieces, tokens, generate.drafter, len(group) - 1, len(group) - 1, ms, speed
        )


def watched(stepped: events.Stepped, drafter: str) -> events.Watched:
    """What was drafted for a step: a wrong word that looked likelier, then its own words, and one too many."""
    *path, last = stepped.pieces
    speed = stepped.speed
    texts = [f" {piece.text.strip()}" for piece in path]
    drafted = drafter != "none"
    tree = events.DraftTree(
        step=speed.steps, texts=[" wrong", *texts, " more"] if drafted else [],
        parents=[-1, -1, *range(1, len(texts) + 1)] if drafted else [],
        probs=[0.5, *[0.25] * len(texts), 0.125] if drafted else [],
        sources=[drafter] * (len(texts) + 2) if drafted else [], path=list(range(1, len(texts) + 1)), last=last,
        probes=0, ms=stepped.ms,
    )  # fmt: skip
    return events.Watched([tree], counts(speed, drafter), {drafter: DEPTHS} if drafted else {})


def counts(speed: Speed, drafter: str) -> dict[str, dict[str, int]]:
    return {drafter: {"steps": speed.steps, "drafted": speed.drafted, "accepted": speed.accepted}}
