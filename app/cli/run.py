"""``slipstream run``: prints one reply; its reasoning goes to standard error, if that is a terminal."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from slipstream.app.chats.compaction import asking, compaction
from slipstream.app.chats.images import AttachedImage
from slipstream.app.chats.recording import Event, history, recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.run_output import AnswerPrinter, print_done, print_stats, print_step, text_of
from slipstream.app.cli.streams import notice
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.load_request import tell_check
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import plural
from slipstream.app.protocol.events import Done, Loaded, Stepped, check_reasoning
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.app.settings.presets import suggested
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError, UsageError, reason_of
from slipstream.models.grammar import MOST_BYTES, GrammarKind
from slipstream.models.outside import LONGEST_REASON, quoted, read_limited, shown_path

INTERRUPTED: Final = 130
_SAVING: Final = 60.0  # seconds to save the KV cache of a kept chat


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The arguments of ``slipstream run``."""

    load: Load
    prompt: str  # the prompt, standard input included
    images: list[AttachedImage] = field(default_factory=list)  # placed above the prompt
    system: str = ""  # system message, or empty
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 0  # maximum tokens; 0 for no limit
    stop: list[str] = field(default_factory=list)  # strings that end the reply
    chat: str | None = None  # name of the kept chat to continue, or None
    as_json: bool = False  # whether to print one JSON object per step, then a summary
    stats: bool = False  # whether to print the reply's figures to standard error
    grammar: tuple[str, GrammarKind] = ("", "json")  # see ``Generate``
    given: frozenset[str] = frozenset()  # fields of ``sampling`` that options set; a kept chat may override the others
    # fields of ``sampling`` that options or settings set; the model's recommended values replace the others
    chosen: frozenset[str] = frozenset()
    overflow: str = "drop"  # see ``ReplySettings``


def run(request: RunRequest, engine: Engine, paths: Paths) -> int:
    """Writes one reply to standard output, and closes the engine; returns 130 if it was interrupted, else 0."""
    store = ChatStore(paths.chats, paths.states, paths.heads, paths.index, paths.images) if request.chat else None
    if store:
        store.listen(notice)
    engine.tell_wait(lambda names: notice(f"waiting for {names}; Ctrl-C stops."))
    try:
        loaded = engine.load(replace(request.load, states=str(paths.states)), _loading)
        if loaded.remark:
            notice(loaded.remark)
        if "reasoning" in request.given:
            check_reasoning(request.sampling.reasoning, loaded)
        request = replace(request, sampling=suggested(request.sampling, loaded.sampling, request.chosen))
        printer = ReplyPrinter(engine, loaded)
        if store and request.chat:
            return _in_chat(request, paths, store, request.chat, printer)
        messages = [Message("system", request.system)] if request.system else []
        files = {image.facts.sha256: str(image.path.absolute()) for image in request.images}
        messages.append(Message("user", _asked(request), images=files))
        return printer.reply(request, messages, None)
    finally:
        engine.close(_SAVING if store else 2.0)  # the KV cache of a long chat is large
        if store:
            store.close()


def _loading(share: float | None) -> None:
    """Explains on a terminal why the first load of a file takes longer."""
    if share is None and sys.stderr.isatty():
        tell_check()


def _in_chat(request: RunRequest, paths: Paths, store: ChatStore, name: str, printer: ReplyPrinter) -> int:
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
    try:
        return _asked_in(request, store, chat.id, printer)
    except ContextFullError:
        if request.overflow != "compact" or not _compacted(request, store, chat.id, printer):
            raise
    return _asked_in(request, store, chat.id, printer)


def _compacted(request: RunRequest, store: ChatStore, chat: str, printer: ReplyPrinter) -> bool:
    try:
        plan = compaction(store.messages(chat))
    except UsageError:
        return False
    notice(f"the context is full: summarizing {plural(plan.count, 'message')}; the chat keeps them.")
    engine, loaded = printer.engine, printer.loaded

    def ask(messages: list[Message]) -> Done:
        like = Generate(0, messages, request.sampling, request.load.drafter)
        *_, last = engine.reply(asking(next(printer.numbers), messages, like, loaded.reasoning))
        assert isinstance(last, Done)  # a failed reply raises
        return last

    text = plan.summary(ask, loaded.fingerprint, store.images.found)
    store.add_summary(chat, plan.parent, text, len(plan.kept), loaded.fingerprint)
    return True


def _asked_in(request: RunRequest, store: ChatStore, chat: str, printer: ReplyPrinter) -> int:
    """Sends the prompt in a kept chat; the user's message is on disk before the engine gets it."""
    loaded = printer.loaded
    asked = store.add_user(chat, _asked(request))
    messages = history(store.messages(chat), loaded.fingerprint, images=store.images.found)
    drafter, seed = request.load.drafter, request.sampling.seed
    reply = store.begin_reply(chat, model=loaded.title, fingerprint=loaded.fingerprint, drafter=drafter, seed=seed)
    try:
        return printer.reply(request, messages, store.state(chat), lambda events: recorded(events, store, reply.id))
    except SlipstreamError as error:
        if not isinstance(error, EngineDiedError):
            store.withdraw(asked.id)  # the engine refused it
        raise


def _asked(request: RunRequest) -> str:
    return "\n".join([*(image.mark for image in request.images), *([request.prompt] if request.prompt else [])])


class ReplyPrinter:
    """Prints the replies of an engine."""

    def __init__(self, engine: Engine, loaded: Loaded) -> None:
        self.engine, self.loaded = engine, loaded
        self.numbers = count(1)  # of the requests

    def reply(
        self,
        request: RunRequest,
        messages: list[Message],
        state: Path | None,
        keep: Callable[[Iterator[Event]], Iterator[Event]] = iter,
    ) -> int:
        """Prints a reply as it streams; the first Ctrl-C stops it cleanly, a second one ends the program at once."""
        generate = Generate(
            request=next(self.numbers),
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
            # in a thread: the main one may be reading a frame
            threading.Thread(target=self.engine.stop, args=(generate.request,)).start()

        signal.signal(signal.SIGINT, interrupted)
        try:
            for event in keep(self.engine.reply(generate)):
                if isinstance(event, Stepped):
                    print_step(event, request.as_json, printer)
                    answer += text_of(event.parts.answer)
                elif isinstance(event, Done):
                    if not request.as_json:
                        printer.finish()
                    done = replace(event, failed=self.loaded.failed | event.failed)
                    print_done(done, answer, self.loaded, generate, request.as_json)
                    if request.stats:
                        print_stats(done, self.loaded, generate)
                    return INTERRUPTED if done.reason == "cancelled" else 0
        finally:
            signal.signal(signal.SIGINT, hard)
        raise AssertionError("a reply ends with Done or an error")


def read_grammar(schema: str | None, grammar: str | None) -> tuple[str, GrammarKind]:
    """Reads the file of a JSON schema or a grammar; raises ``UsageError`` if it cannot be read, or is not UTF-8."""
    name = schema or grammar
    if not name:
        return "", "json"
    file = Path(name).expanduser()
    try:
        text = read_limited(file, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown_path(file)} is not UTF-8.", "Convert it first.") from error
    except (OSError, ValueError) as error:  # a zero byte in a name is a ValueError
        hint = f"Name a file with a {'JSON schema' if schema else 'grammar'}."
        raise UsageError(f"cannot read {shown_path(file)}: {reason_of(error)}.", hint) from error
    if not text.strip():
        raise UsageError(f"{shown_path(file)} is empty.", "Write a JSON schema or a grammar into it.")
    if schema:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = quoted(str(error), LONGEST_REASON)
            raise UsageError(f"{shown_path(file)} is no JSON: {reason}.", "Mend it; nothing was written.") from error
    return text, "json" if schema else "gbnf" if "::=" in text else "lark"
