"""One reply: its steps, its text, its figures, and how it ended."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Final

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.guide import Guide
from slipstream.app.engine.loop import generate
from slipstream.app.engine.prompt import Prompt
from slipstream.app.engine.stats import ReplyStats, drafter_of, judged_depth, origins
from slipstream.app.engine.stopping import FixedBudget, StopRules, WithinReply
from slipstream.app.engine.text import ChatVocabulary, TextStream, reusable
from slipstream.app.protocol.events import TREE_ROOT, Choice, Divided, Done, DraftTree, Piece, Stepped, Watched
from slipstream.app.protocol.requests import PLAIN, Generate
from slipstream.app.speed import Speed
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import Drafter, Step
from slipstream.models.llama.target import Prefill
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History, Token

LOOK_EVERY: Final = 0.03  # minimum seconds between two trees: more cannot be seen, and would slow down a small model
PLAIN_EVERY: Final = 0.1
"""Minimum seconds between the last trace and that of a step without a draft, which shows little."""
_EXPLAIN_EVERY: Final = 8  # steps between two reported choices of the autopilot: a person cannot read more


class DraftTrace:
    """Traces the steps of one reply while the panel is open; otherwise it only costs one call per step."""

    def __init__(
        self,
        watched: Callable[[], bool],
        vocabulary: ChatVocabulary,
        stats: ReplyStats,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Starts a trace; ``watched`` says whether the panel is open, which may change at any step."""
        self._watched, self._vocabulary, self._stats, self._clock = watched, vocabulary, stats, clock
        self._traced_at = self._plain_at = float("-inf")

    def of(self, step: Step, milliseconds: float) -> Watched | None:
        """Traces a step that ``stats`` already counts; None if the panel is closed or the last trace is too recent."""
        if not self._watched():
            return None
        now = self._clock()
        if step.draft.tree.drafted:
            if now - self._traced_at < LOOK_EVERY:
                return None
            self._traced_at = now
        else:
            if now - max(self._traced_at, self._plain_at) < PLAIN_EVERY:
                return None
            self._plain_at = now
        stats = self._stats
        return Watched(
            [self._tree(step, milliseconds)],
            {name: asdict(count) for name, count in stats.by_drafter.items()},
            {name: [list(counts) for counts in depths] for name, depths in stats.drafter_depths.items()},
        )

    def _tree(self, step: Step, milliseconds: float) -> DraftTree:
        draft = step.draft
        tree = draft.tree
        shown = [node for node in range(len(tree)) if node not in tree.probes]
        place = {node: index for index, node in enumerate(shown)} | {ROOT: TREE_ROOT}
        origin, source = origins(step)[-1]
        return DraftTree(
            step=self._stats.whole.steps,
            texts=[self._text(tree.tokens[node]) for node in shown],
            parents=[place[tree.parents[node]] for node in shown],
            probs=[round(float(draft.probs[node]), 4) for node in shown],
            sources=[draft.sources[node] for node in shown],
            path=[place[node] for node in step.path],
            last=Piece(self._text(step.tokens[-1]), origin, source),
            probes=len(tree.probes),
            ms=milliseconds,
        )

    def _text(self, token: Token) -> str:
        return self._vocabulary.piece(token).decode("utf-8", "backslashreplace")


class ReplyProgress:
    """The reply so far: its text, its figures, and the rules that end it."""

    def __init__(
        self, request: Generate, model: ChatModel, prompt: Prompt, watched: Callable[[], bool], pilot: Autopilot | None
    ) -> None:
        """Starts with the tokens that an earlier process wrote."""
        vocabulary, room = model.vocabulary, model.target.abilities.n_ctx - len(prompt.tokens)
        self._reasoning = Thinking.after(request.messages, prompt.thinks)
        limits = vocabulary.ends, room, request.max_tokens or model.max_tokens, request.stop, vocabulary.piece
        self.rules = StopRules(*limits, marks=model.end_marks, thinking=copy(self._reasoning))
        self.stats = ReplyStats(model.plain, model.others, begun=len(request.begun), prompt_tokens=len(prompt.tokens))
        self.chosen: dict[str, dict[str, float]] = {}  # see ``Done.auto``
        self.remarks: dict[str, str] = {}  # see ``Done``
        self.ttft_ms = 0.0
        self._request, self._asked, self._piece, self.pilot = request.request, request.asked, vocabulary.piece, pilot
        self._stream = TextStream(request.stop, marks=model.end_marks, thinking=copy(self._reasoning))
        self._steps = 0
        self._trace = DraftTrace(watched, vocabulary, self.stats)
        for token in request.begun:
            self.rules.commit((token,))
            self._divide(self._stream.feed(self._piece(token), "plain"))

    @property
    def text(self) -> str:
        return self._stream.text

    def add(self, step: Step, milliseconds: float) -> Stepped:
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
            sums = {"steps": 1, "expected": expected, "tokens": len(step.tokens), "ms": milliseconds}
            before = self.chosen.get(decision.drafter, dict.fromkeys(sums, 0.0))
            self.chosen[decision.drafter] = {name: before[name] + value for name, value in sums.items()}
            if self._steps % _EXPLAIN_EVERY == 1:
                choice = Choice(
                    decision.drafter,
                    decision.nodes,
                    max(1.0, decision.cost),
                    expected,
                    plain_ms=decision.plain_ms,
                    trial=decision.trial,
                    check=rows[2] / rows[1] if len(rows := self.pilot.throughput.costs.rows) > 2 else 0.0,
                )
        return Stepped(
            request=self._request,
            pieces=pieces,
            tokens=list(step.tokens),
            drafter=drafter_of(step),
            drafted=judged_depth(step),
            accepted=len(step.path),
            ms=milliseconds,
            speed=self.stats.speed(),
            expected=expected,
            choice=choice,
            watched=self._trace.of(step, milliseconds),
            divided=divided,
            ttft_ms=self.ttft_ms,
        )

    def rest(self) -> Stepped | None:
        pieces = self._stream.finish(stopped=not self.rules.reason)
        divided = self._reasoning.divide_rest(pieces)
        if not pieces and not divided:
            return None
        return Stepped(
            request=self._request,
            pieces=pieces,
            tokens=[],
            drafter=PLAIN,
            drafted=0,
            accepted=0,
            ms=0.0,
            speed=self.stats.speed(),
            divided=divided,
            ttft_ms=self.ttft_ms,
        )

    def _divide(self, pieces: Sequence[Piece]) -> Divided | None:
        """Divides new text into reasoning and answer; all steps until the reasoning ends count as reasoning."""
        reasons, divided = self._reasoning.under_way, self._reasoning.divide(pieces)
        if reasons or self._reasoning.under_way:
            self.stats.think()
        return divided


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt in the cache, and what writes its reply."""

    prompt: Prompt
    history: History
    prefill: Prefill
    sampler: Sampler
    guide: Guide
    drafter: Drafter
    progress: ReplyProgress


class Reply:
    """A reply that is written while its caller iterates over its steps."""

    def __init__(
        self,
        request: Generate,
        model: ChatModel,
        drafters: Drafters,
        cancelled: Callable[[], bool],
        read: ReadPrompt | None = None,
    ) -> None:
        """Called only by ``Session.begin``; ``read`` is None if the reply was cancelled before its prompt was made."""
        self._request, self._model, self._drafters = request, model, drafters
        self._cancelled, self._read = cancelled, read
        self._before = 0.0

    def resume(self) -> None:
        """Restarts the clock of the next step after other work."""
        self._before = perf_counter()

    def steps(self, answer_now: Callable[[], bool] = lambda: False) -> Iterator[Stepped]:
        """Writes the reply step by step; a step's time starts at the end of the last step, or at ``resume``."""
        if self._read is None:
            return
        model, read, written = self._model, self._read, self._read.progress
        sampling, rules = self._request.sampling, written.rules
        record = self._drafters.record(self._request.drafter)
        budget = FixedBudget(rules, plain_ms=lambda: model.plain.milliseconds, record=record)
        should_extend = WithinReply(rules) if written.pilot else budget
        self.resume()
        if read.prefill.complete:

            def cancelled() -> bool:
                if answer_now():
                    read.guide.close(read.history)
                return self._cancelled()

            for step in generate(
                model.target,
                read.drafter,
                read.sampler,
                read.history,
                should_extend=should_extend,
                rules=rules,
                cancelled=cancelled,
                rule=accept_rule(sampling.typical, sampling.temperature),
                guide=read.guide,
            ):
                now = perf_counter()
                milliseconds, self._before = 1e3 * (now - self._before), now
                budget.add(step)
                if model.threads and model.threads.add(step):
                    model.plain.forget()
                if model.spill:
                    written.remarks |= model.spill.add(step, len(read.history.tokens))
                yield written.add(step, milliseconds)
        if rest := written.rest():
            yield rest

    def done(self) -> Done:
        request, model, read = self._request, self._model, self._read
        if read is None:
            return Done(
                request=request.request,
                reason="cancelled",
                text="",
                tokens=[],
                prompt_tokens=0,
                prefilled_tokens=0,
                dropped_messages=0,
                ttft_ms=0.0,
                speed=Speed(),
            )
        prompt, prefill, written, stats = read.prompt, read.prefill, read.progress, read.progress.stats
        size, record = len(prompt.tokens), self._drafters.record(request.drafter)
        remarks = written.remarks | model.new_remarks() | model.unknown_level(request.sampling.reasoning)
        if record.new:
            record.new = False
            remarks[f"{request.drafter} is silent: {record.reason}."] = "It tries again now and then."
        return Done(
            request=request.request,
            reason=written.rules.reason or "cancelled",
            text=written.text,
            tokens=reusable(read.history.tokens[size:], written.text, model.vocabulary),
            prompt_tokens=size,
            prefilled_tokens=prefill.decoded + prefill.complete,  # the first step evaluates the last token
            dropped_messages=prompt.dropped,
            ttft_ms=written.ttft_ms,
            speed=stats.speed(),
            by_depth=stats.by_depth,
            by_drafter={name: asdict(count) for name, count in stats.by_drafter.items()},
            drafter_depths=stats.drafter_depths,
            phases=stats.phase_ms(),
            promise="changed" if request.sampling.typical else "same_text" if model.same_text else "same_odds",
            auto=written.chosen,
            dropped_tokens=prompt.trimmed,
            failed=self._drafters.new_failures(),
            remarks=remarks,
            silent={request.drafter: record.reason} if record.reason else {},
            complete=read.guide.complete(read.history),
            thoughts_closed=read.guide.closed,
        )
