"""One reply: its steps, its text, its figures, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Final

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.draft_trace import DraftTrace
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.guide import Guide
from slipstream.app.engine.loop import generate
from slipstream.app.engine.prompt import Prompt
from slipstream.app.engine.stats import ReplyStats, drafter_of, judged_depth, origins
from slipstream.app.engine.stopping import FixedBudget, StopRules, WithinReply
from slipstream.app.engine.text import TextStream, reusable
from slipstream.app.protocol.events import Choice, Divided, Done, Piece, Stepped
from slipstream.app.protocol.requests import PLAIN, Generate
from slipstream.app.speed import Speed
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import Drafter, Step
from slipstream.models.llama.target import Prefill
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History

_EXPLAIN_EVERY: Final = 8
"""Steps between two reported choices of the autopilot: a person cannot read more."""


@dataclass(slots=True)
class _Chosen:
    """Sums over the steps for which the autopilot chose one drafter: see ``Done.auto``."""

    steps: int = 0
    expected: float = 0.0
    tokens: int = 0
    ms: float = 0.0


class Written:
    """The reply so far: its text, its figures, and the rules that end it."""

    def __init__(
        self,
        request: Generate,
        model: ChatModel,
        prompt: Prompt,
        watched: Callable[[], bool],
        pilot: Autopilot | None,
    ) -> None:
        """Starts with the tokens that an earlier process wrote."""
        vocabulary, room = model.vocabulary, model.target.abilities.n_ctx - len(prompt.tokens)
        self.rules = StopRules(vocabulary.ends, room, request.max_tokens, request.stop, vocabulary.piece)
        self.stats = ReplyStats(model.plain, len(request.begun), len(prompt.tokens))
        self.chosen: dict[str, _Chosen] = {}
        self.ttft_ms = 0.0
        self._request, self._asked, self._piece, self.pilot = request.request, request.asked, vocabulary.piece, pilot
        self._stream, self._steps = TextStream(request.stop), 0
        self._reasoning = Thinking.after(request.messages, prompt.thinks)
        self._trace = DraftTrace(watched, vocabulary, self.stats)
        for token in request.begun:
            self.rules.commit((token,))
            self._divide(self._stream.feed(self._piece(token), "plain"))

    @property
    def text(self) -> str:
        return self._stream.text

    def add(self, step: Step, milliseconds: float) -> Stepped:
        """Adds a step of the loop; returns its event."""
        self.ttft_ms = self.ttft_ms or 1e3 * (perf_counter() - self._asked)
        self.stats.add(step, milliseconds)
        self._steps += 1
        pieces: list[Piece] = []
        for token, (origin, source) in zip(step.tokens, origins(step), strict=True):
            pieces += self._stream.feed(self._piece(token), origin, source)
        divided = self._divide(pieces)
        expected, choice = 0.0, None
        if self.pilot:
            decision = self.pilot.decision
            expected = decision.expected
            chosen = self.chosen.setdefault(decision.drafter, _Chosen())
            chosen.steps += 1
            chosen.expected += expected
            chosen.tokens += len(step.tokens)
            chosen.ms += milliseconds
            if self._steps % _EXPLAIN_EVERY == 1:
                drafter, nodes, cost, plain_ms = decision.drafter, decision.nodes, decision.cost, decision.plain_ms
                choice = Choice(drafter, nodes, max(1.0, cost), expected, plain_ms, decision.trial)
        return Stepped(
            self._request,
            pieces,
            list(step.tokens),
            drafter_of(step),
            judged_depth(step),
            len(step.path),
            milliseconds,
            self.stats.speed(),
            expected,
            choice,
            self._trace.of(step, milliseconds),
            divided,
            self.ttft_ms,
        )

    def rest(self) -> Stepped | None:
        """Returns the text that was held back, once the reply is over."""
        pieces = self._stream.finish(stopped=not self.rules.reason)
        divided = self._reasoning.divide_rest(pieces)
        if not pieces and not divided:
            return None
        speed = self.stats.speed()
        return Stepped(self._request, pieces, [], PLAIN, 0, 0, 0.0, speed, divided=divided, ttft_ms=self.ttft_ms)

    def _divide(self, pieces: Sequence[Piece]) -> Divided | None:
        """Divides new text into reasoning and answer; all steps until the reasoning ends count as reasoning."""
        reasons, divided = self._reasoning.under_way, self._reasoning.divide(pieces)
        if reasons or self._reasoning.under_way:
            self.stats.think()
        return divided


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt in the cache, with the history, the sampler and the guide of its reply."""

    prompt: Prompt
    history: History
    prefill: Prefill
    sampler: Sampler
    guide: Guide


class Reply:
    """A reply that is written while its caller iterates over its steps."""

    def __init__(
        self,
        request: Generate,
        model: ChatModel,
        drafters: Drafters,
        drafter: Drafter,
        read: ReadPrompt | None,
        written: Written | None,
        cancelled: Callable[[], bool],
    ) -> None:
        """Called only by ``Session.begin``."""
        self._request, self._model, self._drafters, self._drafter = request, model, drafters, drafter
        self._read, self._written, self._cancelled = read, written, cancelled
        self._before = 0.0

    def resume(self) -> None:
        """Restarts the clock of the next step after other work."""
        self._before = perf_counter()

    def steps(self, answer_now: Callable[[], bool] = lambda: False) -> Iterator[Stepped]:
        """Writes the reply step by step; a step's time starts at the end of the last step, or at ``resume``.

        Args:
            answer_now: See ``Session.reply``.
        """
        if self._read is None or self._written is None:
            return
        request, model, written = self._request, self._model, self._written
        rule = accept_rule(request.sampling.typical, request.sampling.temperature)
        sampler, rules = self._read.sampler, written.rules
        budget = FixedBudget(rules, known=lambda: model.plain.milliseconds is not None)
        should_extend = WithinReply(rules) if written.pilot else budget
        self.resume()
        if self._read.prefill.complete:
            history, guide = self._read.history, self._read.guide

            def cancelled() -> bool:
                if answer_now():
                    guide.close(history)
                return self._cancelled()

            for step in generate(
                model.target, self._drafter, sampler, history, should_extend, rules, cancelled, rule, guide
            ):
                now = perf_counter()
                milliseconds, self._before = 1e3 * (now - self._before), now
                budget.step += 1
                if model.threads and model.threads.add(step):
                    model.plain.forget()
                yield written.add(step, milliseconds)
        if rest := written.rest():
            yield rest

    def done(self) -> Done:
        """The result, or the state so far."""
        if self._read is None or self._written is None:
            return Done(self._request.request, "cancelled", "", [], 0, 0, 0, 0.0, Speed())
        request, model, written = self._request, self._model, self._written
        prompt, prefill, stats = self._read.prompt, self._read.prefill, self._written.stats
        size = len(prompt.tokens)
        return Done(
            request=request.request,
            reason=written.rules.reason or "cancelled",
            text=written.text,
            tokens=reusable(self._read.history.tokens[size:], written.text, model.vocabulary),
            prompt_tokens=size,
            prefilled_tokens=prefill.decoded + prefill.complete,  # the first step evaluates the last token
            dropped_messages=prompt.dropped,
            ttft_ms=written.ttft_ms,
            speed=stats.speed(),
            by_depth=stats.by_depth,
            by_drafter={name: asdict(count) for name, count in stats.by_drafter.items()},
            drafter_depths=stats.drafter_depths,
            phases=stats.phase_ms(),
            exact=request.sampling.typical is None,
            auto={name: asdict(chosen) for name, chosen in written.chosen.items()},
            dropped_tokens=prompt.trimmed,
            failed=self._drafters.new_failures(),
            remarks=model.new_remarks() | model.unknown_level(request.sampling.reasoning),
            complete=self._read.guide.complete(self._read.history),
            thoughts_closed=self._read.guide.closed,
        )
