"""``slipstream run``: one reply on standard output; the reasoning on standard error, if that is a terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from slipstream.app.chats.compaction import asking, compaction
from slipstream.app.chats.images import AttachedImage
from slipstream.app.chats.recording import Event, history, recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.streams import notice
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.load_request import tell_check
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import MOST_MARKS, clean
from slipstream.app.protocol import (
    Choice,
    Done,
    Generate,
    Load,
    Loaded,
    Message,
    Piece,
    Sampling,
    Stepped,
    check_reasoning,
    failure_words,
)
from slipstream.app.settings.presets import suggested, values_of
from slipstream.app.speed import Speed, speedup
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError, UsageError, reason_of
from slipstream.models.grammar import GrammarKind
from slipstream.models.outside import quoted, read_limited, shown_path

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerPrinter:
    """Prints one reply as it streams. A pipe gets only the answer, byte for byte; a terminal gets it cleaned."""

    def __init__(self) -> None:
        self._before = ""  # the end of the answer so far, for the filter
        self._thoughts = ""  # the same of the reasoning
        self._styled = not os.environ.get("NO_COLOR")

    def take(self, thoughts: str, answer: str) -> None:
        """Prints new reasoning and new text of the answer."""
        if thoughts and sys.stderr.isatty():
            thoughts = thoughts if self._thoughts else thoughts.lstrip()
            words = clean(thoughts, self._thoughts)
            _write(sys.stderr, f"{_DIM}{words}{_PLAIN}" if self._styled and words else words)
            self._thoughts = (self._thoughts + thoughts)[-MOST_MARKS:]
        if answer:
            self._end_thoughts()
            _write(sys.stdout, clean(answer, self._before) if sys.stdout.isatty() else answer)
            self._before = (self._before + answer)[-MOST_MARKS:]

    def finish(self) -> None:
        self._end_thoughts()
        _write(sys.stdout, "\n")

    def _end_thoughts(self) -> None:
        if self._thoughts:
            _write(sys.stderr, "\n" if self._thoughts.endswith("\n") else "\n\n")
            self._thoughts = ""


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


INTERRUPTED: Final = 130
MOST_GRAMMAR: Final = 1 << 20  # bytes of a schema or a grammar
MOST_INPUT: Final = 8 << 20  # bytes of standard input: eight for each token of the largest possible context
_PATIENCE: Final = 2.0  # seconds before the hint on a silent pipe
_SAVING: Final = 60.0  # seconds to save the KV cache of a kept chat


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One ``slipstream run``."""

    load: Load
    prompt: str  # the prompt, standard input included
    images: list[AttachedImage] = field(default_factory=list)  # above the prompt
    system: str = ""  # system message, or empty
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 0  # most tokens; 0 for no limit
    stop: list[str] = field(default_factory=list)  # strings that end the reply
    chat: str | None = None  # name of the kept chat to continue, or None
    as_json: bool = False  # whether to print one JSON object a step, then a summary
    grammar: tuple[str, GrammarKind] = ("", "json")  # see ``Generate``
    given: frozenset[str] = frozenset()  # fields of ``sampling`` that options set; a kept chat may override the others
    # fields of ``sampling`` that options or settings set; the model's own values replace the others
    chosen: frozenset[str] = frozenset()
    overflow: str = "drop"  # see ``ReplySettings``


def run(request: RunRequest, paths: Paths) -> int:
    """Writes one reply to standard output.

    Returns:
        The exit code: 0, or 130 if it was interrupted; the text so far is printed and kept.

    Raises:
        UsageError: If the model has no such level of reasoning.
        SlipstreamError: If it fails.
    """
    store = ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images) if request.chat else None
    if store:
        store.listen(notice)
    engine = Engine(paths.logs / "engine.log")
    engine.tell_wait(lambda names: notice(f"waiting for {names}."))
    try:
        loaded = engine.load(replace(request.load, states=str(paths.states)), _loading)
        if loaded.remark:
            notice(loaded.remark)
        if "reasoning" in request.given:
            check_reasoning(request.sampling.reasoning, loaded)
        request = replace(request, sampling=suggested(request.sampling, loaded.sampling, request.chosen))
        if store and request.chat:
            return _in_chat(request, paths, store, request.chat, engine, loaded)
        messages = [Message("system", request.system)] if request.system else []
        files = {image.facts.sha256: str(image.path.absolute()) for image in request.images}
        messages.append(Message("user", _asked(request), images=files))
        return _code(_print_reply(request, engine, loaded, messages, None))
    finally:
        engine.close(_SAVING if store else 2.0)  # the KV cache of a long chat is large
        if store:
            store.close()


def _loading(share: float | None) -> None:
    """Explains a longer wait, on a terminal."""
    if share is None and sys.stderr.isatty():
        tell_check()


def _in_chat(request: RunRequest, paths: Paths, store: ChatStore, name: str, engine: Engine, loaded: Loaded) -> int:
    """Continues a kept chat, or begins a new one."""
    chat = store.open_or_create(name)
    if not store.messages(chat.id):  # the name may be mistyped
        notice(f'a new chat, "{chat.id}".')
    names = frozenset(Sampling.__slots__) - request.given
    own: dict[str, Any] = {name: value for name, value in store.sampling(chat.id).items() if name in names}
    request = replace(request, sampling=replace(request.sampling, **own))
    if request.system:
        store.set_system(chat.id, request.system)
    for image in request.images:
        store.images.keep(image.raw, image.facts.sha256)
    private_folder(paths.states)
    numbers = count(1)
    try:
        return _asked_in(request, store, chat.id, engine, loaded, next(numbers))
    except ContextFullError:
        if request.overflow != "compact" or not _compacted(request, store, chat.id, engine, loaded, numbers):
            raise
    return _asked_in(request, store, chat.id, engine, loaded, next(numbers))


def _compacted(
    request: RunRequest, store: ChatStore, chat: str, engine: Engine, loaded: Loaded, numbers: Iterator[int]
) -> bool:
    """Summarizes the older messages of a chat; returns False if there are too few."""
    try:
        plan = compaction(store.messages(chat))
    except UsageError:
        return False
    notice(f"the context is full: summarizing {plan.count} messages; they stay in the chat.")

    def ask(messages: list[Message]) -> Done:
        like = Generate(0, messages, request.sampling, request.load.drafter)
        *_, last = engine.reply(asking(next(numbers), messages, like, loaded.reasoning))
        assert isinstance(last, Done)  # a failed reply raises
        return last

    text = plan.summary(ask, loaded.fingerprint, store.images.found)
    store.add_summary(chat, plan.parent, text, len(plan.kept), loaded.fingerprint)
    return True


def _asked_in(request: RunRequest, store: ChatStore, chat: str, engine: Engine, loaded: Loaded, number: int) -> int:
    """Sends the prompt in a kept chat; the user's message is on disk before the engine gets it."""
    asked = store.add_user(chat, _asked(request))
    messages = history(store.messages(chat), loaded.fingerprint, images=store.images.found)
    reply = store.begin_reply(
        chat,
        model=loaded.title,
        fingerprint=loaded.fingerprint,
        drafter=request.load.drafter,
        seed=request.sampling.seed,
    )
    try:
        done = _print_reply(
            request,
            engine,
            loaded,
            messages,
            store.state(chat),
            lambda events: recorded(events, store, reply.id),
            number,
        )
    except SlipstreamError as error:
        if not isinstance(error, EngineDiedError):
            store.withdraw(asked.id)  # the engine refused it
        raise
    return _code(done)


def _asked(request: RunRequest) -> str:
    """The user's message: the images, then the prompt."""
    return "\n".join([*(image.mark for image in request.images), *([request.prompt] if request.prompt else [])])


def _code(done: Done) -> int:
    return INTERRUPTED if done.reason == "cancelled" else 0


def _print_reply(
    request: RunRequest,
    engine: Engine,
    loaded: Loaded,
    messages: list[Message],
    state: Path | None,
    keep: Callable[[Iterator[Event]], Iterator[Event]] = iter,
    number: int = 1,
) -> Done:
    """Prints a reply as it streams; the first Ctrl-C stops it in order, a second one ends the program at once."""
    generate = Generate(
        request=number,
        messages=messages,
        sampling=request.sampling,
        drafter=request.load.drafter,
        max_tokens=request.max_tokens,
        stop=request.stop,
        overflow="drop" if request.overflow == "drop" else "stop",
        grammar=request.grammar[0],
        grammar_kind=request.grammar[1],
        state=str(state) if state else None,
        frame_ms=0.0 if request.as_json else 16.0,
    )
    hard, printer, answer = signal.getsignal(signal.SIGINT), AnswerPrinter(), ""

    def interrupted(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, hard)
        threading.Thread(target=engine.stop, args=(generate.request,)).start()  # the main thread may be reading a frame

    signal.signal(signal.SIGINT, interrupted)
    try:
        for event in keep(engine.reply(generate)):
            if isinstance(event, Stepped):
                print_step(event, request.as_json, printer)
                answer += _text(event.parts.answer)
            elif isinstance(event, Done):
                if not request.as_json:
                    printer.finish()
                done = replace(event, failed=loaded.failed | event.failed)
                _print_done(done, answer, request, loaded)
                return done
    finally:
        signal.signal(signal.SIGINT, hard)
    raise AssertionError("a reply ends with Done or an error")


def print_step(step: Stepped, as_json: bool, printer: AnswerPrinter) -> None:
    if as_json:
        _print_json(
            text=_text(step.pieces),
            tokens=step.tokens,
            drafter=step.drafter,
            drafted=step.drafted,
            accepted=step.accepted,
            ms=round(step.ms, 3),
            **({"expected": round(step.expected, 3)} if step.expected else {}),
            **({"choice": _choice(step.choice)} if step.choice else {}),
        )
    else:
        printer.take(step.parts.reasoning, _text(step.parts.answer))


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _print_done(done: Done, answer: str, request: RunRequest, loaded: Loaded) -> None:
    for words in failure_words(done.failed):
        notice(f"{words}.")
    if not done.complete:
        why = "the context is full" if done.reason == "context" else "it was interrupted"
        why = f"it reached {request.max_tokens:,} tokens" if done.reason == "length" else why
        notice(f"the answer is cut short and does not fit its grammar: {why}.")
    if not request.as_json:
        if not done.exact:
            notice("typical acceptance was on, which changes the text.")
        if done.dropped_messages:
            gone = f"the {done.dropped_messages} oldest messages ({done.dropped_tokens:,} tokens) were left out."
            notice(f"the context is full; {gone}")
        if done.reason == "context":
            notice("the reply ended because the context is full.")
        return
    speed = done.speed
    _print_json(
        done=done.reason,
        **({"lora": [{"file": each.path, "scale": each.scale} for each in loaded.lora]} if loaded.lora else {}),
        tokens=speed.tokens,
        prompt_tokens=done.prompt_tokens,
        prefilled_tokens=done.prefilled_tokens,
        tok_per_s=_rounded(speed.tok_per_s),
        acceptance=_rounded(speed.acceptance),
        tokens_per_step=_rounded(speed.tokens_per_step),
        speedup=_rounded(speed.speedup),
        plain_tok_per_s=_rounded(speed.plain_tok_per_s),
        **({"busy": True} if speed.busy else {}),
        ttft_ms=_rounded(done.ttft_ms),
        steps=speed.steps,
        drafted=speed.drafted,
        accepted=speed.accepted,
        by_depth=done.by_depth,
        by_drafter=done.by_drafter,
        phases={name: _rounded(ms) for name, ms in done.phases.items()},
        **({"auto": _chosen(done)} if done.auto else {}),
        dropped_messages=done.dropped_messages,
        dropped_tokens=done.dropped_tokens,
        seed=request.sampling.seed,
        sampling=values_of(request.sampling),
        exact=done.exact,
        **({"complete": done.complete} if request.grammar[0] else {}),
        **_thinking(done.speed, answer),
        **({"failed": done.failed} if done.failed else {}),
        text=done.text,
    )


def _thinking(speed: Speed, answer: str) -> dict[str, object]:
    """The figures of the reasoning part, if there is one."""
    if not speed.thought:
        return {}
    return {"thought_tokens": speed.thought, "thought_ms": _rounded(speed.thought_ms), "answer": answer}


def _choice(choice: Choice) -> dict[str, object]:
    return {
        "drafter": choice.drafter,
        "nodes": choice.nodes,
        "cost": _rounded(choice.cost),
        "expected": _rounded(choice.expected),
        **({"trial": True} if choice.trial else {}),
    }


def _chosen(done: Done) -> dict[str, dict[str, float | None]]:
    """The autopilot's choices: per drafter the expected and actual tokens, and the gain over plain decoding."""
    plain = 1 / done.speed.plain_tok_per_s if done.speed.plain_tok_per_s else None
    return {
        name: {
            "steps": chosen["steps"],
            "expected_tokens": _rounded(chosen["expected"]),
            "tokens": chosen["tokens"],
            "ms": _rounded(chosen["ms"]),
            "gain": _rounded(speedup(chosen["tokens"], chosen["ms"] / 1e3, plain)),
        }
        for name, chosen in done.auto.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _print_json(**values: object) -> None:
    sys.stdout.write(json.dumps(values, ensure_ascii=sys.stdout.isatty()) + "\n")
    sys.stdout.flush()


def read_grammar(schema: str | None, grammar: str | None) -> tuple[str, GrammarKind]:
    """Reads the file of a JSON schema or a grammar; raises ``UsageError`` if it cannot be read, or is not UTF-8."""
    name = schema or grammar
    if not name:
        return "", "json"
    file = Path(name).expanduser()
    try:
        text = read_limited(file, MOST_GRAMMAR).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown_path(file)} is not UTF-8.", "Convert it first.") from error
    except (OSError, ValueError) as error:  # a zero byte in a name is a ValueError
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        hint = f"Name a file with a {'JSON schema' if schema else 'grammar'}."
        raise UsageError(f"cannot read {shown_path(file)}: {reason}.", hint) from error
    if not text.strip():
        raise UsageError(f"{shown_path(file)} is empty.", "Write a JSON schema or a grammar into it.")
    if schema:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = quoted(str(error), 100)
            raise UsageError(f"{shown_path(file)} is no JSON: {reason}.", "Mend it; nothing was written.") from error
    return text, "json" if schema else "gbnf" if "::=" in text else "lark"


def read_stdin(prompted: bool, stdin: BinaryIO) -> str:
    """Reads piped text; nothing from a terminal or /dev/null.

    Args:
        prompted: Whether there is a prompt without it; a silent pipe then causes a hint on standard error.

    Raises:
        UsageError: If it is not UTF-8, or larger than any context.
    """
    try:
        descriptor = stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return ""  # closed
    if stat.S_ISCHR(mode):
        return ""
    if prompted:
        with suppress(OSError, ValueError):
            if not select.select([descriptor], [], [], _PATIENCE)[0]:
                notice("waiting for standard input to end; use </dev/null to go without it.")
    raw = stdin.read(MOST_INPUT + 1)
    if len(raw) > MOST_INPUT:
        raise UsageError(
            f"standard input has more than {MOST_INPUT >> 20} MB, which no context holds.", "Pipe in a part of it."
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start:,}.",
            "Convert it first, for example with iconv -t UTF-8.",
        ) from error
