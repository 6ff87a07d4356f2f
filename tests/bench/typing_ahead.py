"""Part ``typing``: how long the first token takes after Enter, where the prompt was read while it was typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from tests.bench.clocks import Spread

from slipstream.app.bench.report import table
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Done, Stepped
from slipstream.app.protocol.requests import PAUSE, Generate, Load, Message, Prepare, Sampling
from slipstream.models.errors import ContextFullError

PASTE: Final = 2000  # tokens of the paste, or as many as the context has room for
_ROOM: Final = 512  # tokens of the context that are left for what is typed and for the reply
_KEY: Final = 0.12  # seconds between two keys of a word: 60 words a minute, with the pauses between words
_WORD: Final = 0.35  # seconds before a new word: long enough for the word before it to be read
_TYPED: Final = "Say in one line how many geese the fox met in all of these years, and where it met the last of them. "
_REPLY: Final = 32
_FEW: Final = 20  # sentences by which a sentence's tokens are counted


@dataclass(frozen=True, slots=True)
class TypingFigures:
    """What reading ahead gains."""

    model: str  # its name
    promise: str  # what the engine promises of its text
    prompt_tokens: int  # tokens of the whole prompt
    typed_s: float  # seconds of typing after the paste
    rounds: int  # replies of each kind
    without_ms: Spread  # milliseconds from Enter to the first token where nothing was read before
    ahead_ms: Spread  # the same where it was
    without_tokens: int  # tokens that were read after Enter, the most of all rounds
    ahead_tokens: int  # the same where they were read before
    ratio: float  # how many times sooner the first token comes, by the medians
    same: bool  # whether both kinds of replies are the same, token for token

    @property
    def passed(self) -> bool:
        """Whether the text is the same where that is promised."""
        return self.same or self.promise != "same text"


@dataclass(frozen=True, slots=True)
class _Reply:
    """One reply: milliseconds to its first token, its tokens, and how it ended."""

    milliseconds: float
    tokens: list[int]
    done: Done


class _Typist:
    """Types into an engine's process, and presses Enter."""

    def __init__(self, engine: Engine, drafter: str) -> None:
        self._engine, self._drafter, self._request = engine, drafter, 0

    def ask(self, text: str, most: int = _REPLY) -> _Reply:
        """Presses Enter."""
        self._request += 1
        request = Generate(self._request, _chat(text), Sampling(seed=1), self._drafter, most)
        began, first, tokens = perf_counter(), 0.0, list[int]()
        for event in self._engine.reply(request):
            if isinstance(event, Stepped):
                first = first or perf_counter()
                tokens += event.tokens
            elif isinstance(event, Done):
                done = event
        return _Reply(1e3 * (first - began), tokens, done)

    def type(self, pasted: str, typed: str) -> None:
        """Pastes and types; what is there is read as the chat has it read: at once, and after each pause."""
        text = pasted
        self._engine.prepare(Prepare(_chat(text), self._drafter))
        for key in typed:
            gap = _gap(text)
            if gap > PAUSE:
                sleep(PAUSE)
                self._engine.prepare(Prepare(_chat(text), self._drafter))
                gap -= PAUSE
            sleep(gap)
            text += key


def _chat(text: str) -> list[Message]:
    return [Message("user", text)]


def _gap(text: str) -> float:
    """Seconds before the next key."""
    return _WORD if text.endswith(" ") else _KEY


def _typed(seconds: float) -> str:
    """What is typed in so many seconds."""
    text, passed = "", 0.0
    while (passed := passed + _gap(text)) <= seconds:
        text += _TYPED[len(text) % len(_TYPED)]
    return text


def _sentences(count: int) -> str:
    return "".join(f"In year {year} the fox met {year * 7 % 90} geese by the river. " for year in range(count))


def measure_typing(
    load: Load, log: Path, rounds: int, seconds: float, tell: Callable[[str], None], paste: int = PASTE
) -> TypingFigures:
    """Pastes a text, types for a while and asks, in turns with and without reading ahead.

    Before each a short question empties the cache, but for the template's first tokens.

    Args:
        load: Loads the model.
        log: Where the engine's process writes its log.
        rounds: Replies of each kind.
        seconds: How long it is typed after the paste.
        tell: Hears how far it is.
        paste: Tokens of the paste, if the context holds them.

    Raises:
        SlipstreamError: If the model cannot be loaded or its context is too small.
    """
    with closing(Engine(log)) as engine:
        loaded = engine.load(replace(load, derived=None, index=None, chats=None))
        typist = _Typist(engine, load.drafter)
        size = min(paste, loaded.n_ctx - _ROOM)
        if size < _ROOM:
            raise ContextFullError(f"a context of {loaded.n_ctx:,} tokens is too small.", "Take another model.")
        each = typist.ask(_sentences(_FEW), 1).done.prompt_tokens / _FEW
        pasted = _sentences(max(1, int(size / each)))
        found: dict[bool, list[_Reply]] = {False: [], True: []}
        typed = _typed(seconds)
        for turn in range(rounds):
            for ahead, replies in found.items():
                tell(f"typing: round {turn + 1} of {rounds}, {'read ahead' if ahead else 'read after Enter'}")
                typist.ask("Hello.", 1)
                if ahead:
                    typist.type(pasted, typed)
                replies.append(typist.ask(pasted + typed))
        return _figures(loaded.name, loaded.promise, seconds, found[False], found[True])


def _figures(
    model: str, promise: str, seconds: float, without: Sequence[_Reply], ahead: Sequence[_Reply]
) -> TypingFigures:
    waits = Spread.of([each.milliseconds for each in without]), Spread.of([each.milliseconds for each in ahead])
    return TypingFigures(
        model=model,
        promise=promise,
        prompt_tokens=without[0].done.prompt_tokens,
        typed_s=seconds,
        rounds=len(without),
        without_ms=waits[0],
        ahead_ms=waits[1],
        without_tokens=max(each.done.prefilled_tokens for each in without),
        ahead_tokens=max(each.done.prefilled_tokens for each in ahead),
        ratio=waits[0].median / waits[1].median,
        same=all(a.tokens == b.tokens for a, b in zip(without, ahead, strict=True)),
    )


def typing_text(figures: TypingFigures) -> str:
    """The table of the part."""
    same = "the same" if figures.same else "NOT the same"
    return table(
        f"typing: milliseconds from Enter to the first token, {figures.model}",
        ("the prompt is read", "ms", "tokens read after Enter"),
        [
            ("after Enter", figures.without_ms.text(0), f"{figures.without_tokens:,}"),
            ("while it is typed", figures.ahead_ms.text(0), f"{figures.ahead_tokens:,}"),
        ],
        [
            f"{figures.ratio:.1f}x sooner; the replies are {same}, token for token ({figures.promise} is promised).",
            f"A prompt of {figures.prompt_tokens:,} tokens: a paste, then {figures.typed_s:g} s of typing;"
            f" {figures.rounds} rounds.",
        ],
    )
