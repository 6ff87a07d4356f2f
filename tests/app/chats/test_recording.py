import threading
import time
from collections.abc import Iterator

import pytest

from slipstream.app.chats.recording import Event, history, recorded
from slipstream.app.chats.records import StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done, Piece, Prefilling, Stepped
from slipstream.app.protocol.requests import Message
from slipstream.app.speed import Speed
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError


def begin(store: ChatStore) -> StoredMessage:
    chat = store.create()
    store.add_user(chat.id, "x")
    return store.begin_reply(chat.id, model="m", fingerprint="f", drafter="draft", seed=1)


def step(text: str, token: int, ms: float = 1.0) -> Stepped:
    return Stepped(1, [Piece(text, "plain")], [token], "none", 0, 0, ms, Speed(tokens=token))


def last(store: ChatStore, message: StoredMessage) -> StoredMessage:
    return store.messages(message.chat)[-1]


def test_a_reply_is_kept_to_the_end(store: ChatStore) -> None:
    reply = begin(store)
    counts, depths = {"draft": {"steps": 1}}, {"draft": [[1, 1]]}
    done = Done(1, "stop", "ab", [1, 2], 9, 4, 1, 3.0, Speed(tokens=2), [[1, 1]], counts, depths)
    events: list[Event] = [Prefilling(1, 1, 2), step("a", 1), step("b<end>", 2), done]
    assert list(recorded(events, store, reply.id)) == events
    kept = last(store, reply)
    assert (kept.content, kept.tokens, kept.status, kept.reason) == ("ab", [1, 2], "done", "stop")
    assert kept.figures is not None
    assert (kept.figures.prefilled_tokens, kept.figures.by_depth) == (4, [[1, 1]])
    assert kept.figures.drafter_depths == depths


def until(store: ChatStore, message: StoredMessage, content: str) -> None:
    end = time.monotonic() + 60
    while last(store, message).content != content:
        assert time.monotonic() < end, last(store, message).content
        time.sleep(0.001)


def test_text_is_written_though_the_engine_falls_silent(store: ChatStore) -> None:
    reply = begin(store)

    def events() -> Iterator[Event]:
        yield step("a", 1)
        until(store, reply, "a")
        yield step("b", 2)
        yield step("c", 3)
        until(store, reply, "abc")
        assert (last(store, reply).tokens, last(store, reply).status) == ([1, 2, 3], "streaming")

    assert len(list(recorded(events(), store, reply.id))) == 3
    assert (last(store, reply).content, last(store, reply).status) == ("abc", "interrupted")
    assert "recording" not in {thread.name for thread in threading.enumerate()}


def test_a_write_that_fails_ends_no_reply(store: ChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = begin(store)
    real, failed = store.append_reply, threading.Event()

    def refused(*arguments: object) -> None:
        failed.set()
        raise SlipstreamError("the disk is full.", "Make room.")

    def events() -> Iterator[Event]:
        monkeypatch.setattr(store, "append_reply", refused)
        yield step("a", 1)
        assert failed.wait(20)
        monkeypatch.setattr(store, "append_reply", real)
        yield step("b", 2)
        until(store, reply, "ab")
        yield Done(1, "stop", "ab", [1, 2], 9, 4, 1, 3.0, Speed(tokens=2), [], {})

    assert len(list(recorded(events(), store, reply.id))) == 3
    assert last(store, reply).status == "done"


def test_an_end_that_cannot_be_kept_is_told_after_the_text(store: ChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = begin(store)
    seen: list[Event] = []

    def refused(*arguments: object, **options: object) -> None:
        raise SlipstreamError("the disk is full.", "Make room.")

    monkeypatch.setattr(store, "append_reply", refused)
    monkeypatch.setattr(store, "finish_reply", refused)
    done = Done(1, "stop", "ab", [1, 2], 9, 4, 1, 3.0, Speed(tokens=2), [], {})
    with pytest.raises(SlipstreamError, match="the disk is full") as error:
        for event in recorded([step("a", 1), step("b", 2), done], store, reply.id):
            seen.append(event)
    assert len(seen) == 2
    assert error.value.hint == "The end of this reply is not kept: copy it before you leave. Make room."


@pytest.mark.parametrize(
    ("error", "words", "status", "content"),
    [
        (EngineDiedError("it died"), "some", "interrupted", "some"),
        (EngineDiedError("it died"), "", "interrupted", ""),
        (SlipstreamError("decode failed"), "some", "interrupted", "some"),
        (ContextFullError("too long"), "", "failed", ""),
    ],
)
def test_errors_keep_the_text(store: ChatStore, error: SlipstreamError, words: str, status: str, content: str) -> None:
    reply = begin(store)

    def events() -> Iterator[Event]:
        yield Prefilling(1, 0, 3)
        if words:
            yield step(words, 1)
        raise error

    with pytest.raises(type(error)):
        list(recorded(events(), store, reply.id))
    (row,) = store.database.execute("SELECT status, content FROM messages WHERE id = ?", (reply.id,)).fetchall()
    assert row == (status, content)


def test_a_reader_that_leaves_interrupts(store: ChatStore) -> None:
    reply = begin(store)
    events = recorded([step("a", 1), step("b", 2)], store, reply.id)
    next(events)
    events.close()  # type: ignore[attr-defined]
    kept = last(store, reply)
    assert (kept.content, kept.status) == ("a", "interrupted")


def test_history_gives_tokens_to_the_model_that_wrote_them(store: ChatStore) -> None:
    reply = begin(store)
    store.finish_reply(reply.id, text="answer", tokens=[4, 5])
    kept = store.messages(reply.chat)
    assert history(kept, "f") == [Message("user", "x"), Message("assistant", "answer", [4, 5])]
    turns = [("system", "Be brief."), ("user", "x"), ("assistant", "answer")]
    assert history(kept, "g", system="Be brief.") == [Message(role, text) for role, text in turns]


def test_questions_without_an_answer_become_one(store: ChatStore) -> None:
    reply = begin(store)
    store.finish_reply(reply.id, "interrupted")
    store.add_user(reply.chat, "y")
    assert history(store.messages(reply.chat), "f") == [Message("user", "x\n\ny")]
