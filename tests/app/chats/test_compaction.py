"""A summary stands for the older messages where the model reads the chat; they stay stored, and come back."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.soak.strange_chats import export

from slipstream.app.chats.compaction import ASKED, Compaction, compaction
from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.recording import LEAD, history, since_summary
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Message
from slipstream.app.speed import Speed
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError

MOST = 2.0  # seconds of one processor


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.db")
    yield store
    store.close()


def talk(store: ChatStore, chat: str, turns: int, first: int = 1) -> None:
    for number in range(first, first + turns):
        store.add_user(chat, f"question {number}")
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text=f"reply {number}", tokens=[number])


def summarize(store: ChatStore, chat: str, text: str) -> Compaction:
    plan = compaction(store.messages(chat))
    store.add_summary(chat, plan.parent, text, len(plan.kept), "f")
    return plan


def said(store: ChatStore, chat: str) -> list[str]:
    return [message.content for message in history(store.messages(chat), "f")]


def done(text: str, reason: str = "stop") -> Done:
    return Done(1, reason, text, [], 0, 0, 0, 0.0, Speed())  # type: ignore[arg-type]


def test_a_summary_is_read_in_place_of_what_it_stands_for(store: ChatStore, tmp_path: Path) -> None:
    chat = store.create().id
    store.set_system(chat, "Be brief.")
    talk(store, chat, 10)
    before = store.messages(chat)
    plan = summarize(store, chat, "They counted.")
    assert [message.content for message in plan.older] == [m.content for m in before[1:17]]
    newest = ["question 9", "reply 9", "question 10", "reply 10"]
    assert said(store, chat) == ["Be brief.", f"{LEAD}They counted.\n\nquestion 9", *newest[1:]]
    assert history(store.messages(chat), "f")[2].tokens == [9]
    talk(store, chat, 1, first=11)
    assert said(store, chat)[-2:] == ["question 11", "reply 11"]
    store.close()
    again = ChatStore(tmp_path / "chats.db")  # it stands as it stood
    assert said(again, chat)[1] == f"{LEAD}They counted.\n\nquestion 9"
    assert [m.content for m in again.messages(chat) if not m.summary][:21] == [m.content for m in before]
    summary = next(message for message in again.messages(chat) if message.summary)
    again.remove_summary(summary.id)
    assert [m.content for m in again.messages(chat)] == [*(m.content for m in before), "question 11", "reply 11"]
    assert said(again, chat)[1] == "question 1"
    again.close()


def test_a_second_summary_reads_the_first(store: ChatStore) -> None:
    chat = store.create().id
    talk(store, chat, 10)
    summarize(store, chat, "First.")
    talk(store, chat, 10, first=11)
    plan = summarize(store, chat, "Second.")
    assert [message.content for message in plan.kept] == ["question 19", "reply 19", "question 20", "reply 20"]
    read = [message.content for message in since_summary(plan.older)]
    assert read[0] == "First." and read[1] == "question 9" and read[-1] == "reply 18"
    assert said(store, chat)[0] == f"{LEAD}Second.\n\nquestion 19"
    store.remove_summary(next(m for m in reversed(store.messages(chat)) if m.summary).id)
    assert said(store, chat)[0] == f"{LEAD}First.\n\nquestion 9"


def test_a_summary_is_no_prompt_and_travels_with_the_chat(store: ChatStore) -> None:
    chat = store.create().id
    talk(store, chat, 8)
    asked = store.add_user(chat, "refused").id
    store.withdraw(asked)
    summarize(store, chat, "They counted.")
    assert "They counted." not in store.prompts() and store.refused(chat) == "refused"
    assert "## Summary of what is above\n\nThey counted." in exported(store, [chat], "md")
    before, text = said(store, chat), exported(store, [chat], "json")
    store.delete(chat)
    copy = import_chats(store, text.encode(), "x.json")[0].id
    assert copy != chat and said(store, copy) == before


def test_too_little_is_not_summarized(store: ChatStore) -> None:
    chat = store.create().id
    with pytest.raises(UsageError, match="too little"):
        compaction(store.messages(chat))
    talk(store, chat, 1)
    assert len(summarize(store, chat, "They counted.").older) == 2  # one long turn may fill the context
    with pytest.raises(UsageError, match="too little"):
        compaction(store.messages(chat))


def test_parts_are_summarized_where_not_all_of_it_fits(store: ChatStore) -> None:
    chat = store.create().id
    talk(store, chat, 12)
    plan, asked = compaction(store.messages(chat)), list[list[Message]]()

    def ask(messages: list[Message]) -> Done:
        if sum(len(message.content) for message in messages) > len(ASKED) + 140:
            raise ContextFullError("full")
        asked.append(messages)
        return done(f"part {len(asked)}")

    assert plan.summary(ask, "f") == f"part {len(asked)}" and len(asked) > 1
    read = [line for messages in asked for message in messages for line in message.content.splitlines()]
    assert all(read.count(message.content) == 1 for message in plan.older)
    assert all(f"{LEAD}part {n}" in asked[n][0].content for n in range(1, len(asked)))
    assert all(messages[-1].content.endswith(ASKED) for messages in asked)


def test_what_is_stopped_or_empty_is_no_summary(store: ChatStore) -> None:
    chat = store.create().id
    talk(store, chat, 8)
    plan = compaction(store.messages(chat))
    assert plan.summary(lambda _: done("half a", "cancelled"), "f") == ""
    assert plan.summary(lambda _: done("<think>hm</think>They counted."), "f") == "They counted."
    with pytest.raises(SlipstreamError, match="no summary"):
        plan.summary(lambda _: done("<think>hm</think> "), "f")
    with pytest.raises(ContextFullError):
        plan.summary(lambda _: (_ for _ in ()).throw(ContextFullError("full")), "f")


@contextmanager
def soon(what: str) -> Iterator[None]:
    begun = time.process_time()
    yield
    assert (took := time.process_time() - begun) < MOST, f"{what} took {took:.1f} s"


@pytest.mark.parametrize("messages", [1_100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_everything_is_done_soon(tmp_path: Path, messages: int) -> None:
    path = tmp_path / "chats.db"
    with closing(ChatStore(path)) as store:
        (chat,) = import_chats(store, export(1, messages, Random(1)), "export")
        with soon("opening"):
            assert len(store.messages(chat.id)) == messages and store.forks(chat.id) == {}
        with soon("searching"):
            assert len(store.search("foxes", 200)) == 200
        with soon("branching"):
            asked = store.add_user(chat.id, "and now?")
            for number in (asked.id, 1, messages // 2):
                store.add_user(chat.id, "or this?", replaces=number)
            store.show(asked.id)
        assert len(store.messages(chat.id)) == messages + 1
        with soon("Markdown"):
            exported(store, [chat.id], "md")
        with soon("JSON"):
            exported(store, [chat.id], "json")
        with soon("the engine's reading"):
            assert ChatReader(path).newest() and len(ChatReader(path).replies(chat.id, 0, 256)) == 256
        with soon("a system message"):
            store.set_system(chat.id, "Be brief.")
        with soon("deleting"):
            store.delete(chat.id)
            store.erase_deleted(0)
        assert store.database.rows("SELECT count(*) FROM messages") == [(0,)]


def test_many_branches_in_a_line_are_exported_soon(tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        (chat,) = import_chats(store, export(1, 2_000, Random(1)), "export")
        for number in range(1, 400):
            store.add_user(chat.id, f"or {number}?", replaces=number)
        store.add_user(chat.id, "or else?", replaces=1)  # all others are beside the shown branch now
        with soon("Markdown"):
            text = exported(store, [chat.id], "md")
        assert text.count("*Another branch, ") > 300
