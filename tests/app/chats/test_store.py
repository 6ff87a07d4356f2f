import sqlite3
import stat
from pathlib import Path
from time import process_time

import pytest

from slipstream.app.chats.messages import LENGTH, title_of
from slipstream.app.chats.records import ALPHABET, ID_LENGTH, Figures, StoredMessage
from slipstream.app.chats.schema import MIGRATIONS
from slipstream.app.chats.store import ChatStore
from slipstream.app.speed import Speed
from slipstream.models.errors import SlipstreamError, UsageError


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "home" / "chats.db")


def reply(store: ChatStore, chat: str, parent: int | None = None) -> StoredMessage:
    return store.begin_reply(chat, model="tern", fingerprint="f1", drafter="draft", seed=7, parent=parent)


def test_a_chat_is_read_back_as_it_was_written(store: ChatStore) -> None:
    chat = store.create()
    assert len(chat.id) == ID_LENGTH and set(chat.id) <= set(ALPHABET)
    asked = store.add_user(chat.id, "Tell me about\nthe sea, \x1b[31m and NUL \x00 please, in many many words")
    written = reply(store, chat.id)
    store.append_reply(written.id, "The s", [1, 2])
    store.append_reply(written.id, "ea \x00", [-3, 2**31 - 1])
    speed = Speed(
        tok_per_s=84.5, acceptance=0.71, tokens_per_step=2.4, plain_tok_per_s=50.0, drafted=10, accepted=7, steps=4,
        tokens=4,
    )  # fmt: skip
    figures = Figures(speed, [[4, 3], [3, 2]], {"draft": {"steps": 4, "drafted": 10, "accepted": 7}}, 30, 12, 1, 90.5)
    store.finish_reply(written.id, reason="stop", figures=figures)
    question, answer = store.messages(chat.id)
    assert (question.role, question.content, question.parent, question.status) == ("user", asked.content, None, "done")
    assert question.content.startswith("Tell me about\nthe sea, \x1b[31m and NUL \x00")
    assert (answer.role, answer.content, answer.tokens) == ("assistant", "The sea \x00", [1, 2, -3, 2**31 - 1])
    assert (answer.parent, answer.status, answer.reason) == (asked.id, "done", "stop")
    assert (answer.model, answer.drafter, answer.seed, answer.figures) == ("f1", "draft", 7, figures)
    kept = store.get(chat.id)
    assert kept.title == "About the sea, \x1b[31m and NUL \x00 please…"
    assert (kept.model, kept.updated) == ("tern", answer.created)


def test_a_withdrawn_message_leaves_the_chat_and_stays_in_the_file(store: ChatStore) -> None:
    chat = store.create()
    store.add_user(chat.id, "a")
    store.finish_reply(reply(store, chat.id).id, text="A")
    refused = store.add_user(chat.id, "much too long")
    store.finish_reply(reply(store, chat.id).id, "failed")
    store.withdraw(refused.id)
    assert [m.content for m in store.messages(chat.id)] == ["a", "A"]
    assert "much too long" in store.prompts() and store.refused(chat.id) == "much too long"
    store.add_user(chat.id, "short")
    assert store.refused(chat.id) == "" and store.get(chat.id).title == "A"


def test_a_chat_is_not_named_after_a_message_that_was_refused(store: ChatStore) -> None:
    chat, named = store.create(), store.create("Mine")
    for each in (chat, named):
        store.withdraw(store.add_user(each.id, "000 the quick brown fox").id)
    assert (store.get(chat.id).title, store.get(named.id).title) == ("", "Mine")
    store.add_user(chat.id, "What is this?")
    assert store.get(chat.id).title == "What is this?"


def test_chats_are_listed_newest_first(store: ChatStore) -> None:
    first, second, third = (store.create(title).id for title in "abc")
    store.add_user(first, "again")
    assert [chat.id for chat in store.list_chats()] == [first, third, second]
    assert [chat.id for chat in store.list_chats(limit=1)] == [first]


def test_an_unknown_chat_is_a_wrong_use_and_names_others(store: ChatStore) -> None:
    with pytest.raises(UsageError) as first:
        store.messages("zzzzzz")
    assert "No chat is kept yet" in first.value.hint
    chat = store.create("About the sea").id
    writes = (lambda name: store.add_user(name, "x"), lambda name: reply(store, name))
    for call in (store.get, store.messages, store.delete, *writes):
        with pytest.raises(UsageError) as error:
            call("zzzzzz")
        assert '"zzzzzz"' in error.value.title
        assert f"{chat} (About the sea)" in error.value.hint


def test_a_place_that_cannot_be_written_and_a_newer_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SlipstreamError) as error:
        ChatStore(tmp_path / "file" / "chats.db")
    assert error.value.title.startswith("cannot write to ") and "SLIPSTREAM_HOME" in error.value.hint
    path = tmp_path / "chats.db"
    ChatStore(path).close()
    path.chmod(0o644)
    ChatStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(SlipstreamError, match="newer slipstream"):
        ChatStore(path)
    assert not list(tmp_path.glob("*damaged*"))


def test_two_stores_share_a_file(tmp_path: Path) -> None:
    one = ChatStore(tmp_path / "chats.db")
    chat = one.create().id
    one.add_user(chat, "x")
    growing = reply(one, chat)
    one.append_reply(growing.id, "half", [1])
    two = ChatStore(tmp_path / "chats.db")
    assert two.messages(chat)[-1].status == "streaming"  # it is alive, only in another process
    two.close()
    one.finish_reply(growing.id, text="whole")
    assert one.messages(chat)[-1].content == "whole"


def test_a_reply_left_streaming_is_interrupted_at_the_next_start(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.db")
    chat = store.create().id
    store.add_user(chat, "x")
    store.append_reply(reply(store, chat).id, "half", [1])
    store.close()
    kept = ChatStore(tmp_path / "chats.db").messages(chat)[-1]
    assert (kept.content, kept.status, kept.figures) == ("half", "interrupted", None)


def test_figures_of_a_reply_that_went_on_add_up() -> None:
    assert Figures.unpacked("") is None
    assert Figures.unpacked('{"speed":{"tok_per_s":2.0,"new":1},"newer":[1]}') == Figures(Speed(tok_per_s=2.0))
    first = Figures(by_depth=[[3, 2]], drafter_depths={"draft": [[2, 1]], "lookup": [[1, 1]]})
    whole = first.followed_by(Figures(by_depth=[[2, 2], [1, 0]], drafter_depths={"draft": [[2, 2], [1, 0]]}))
    assert whole.by_depth == [[5, 4], [1, 0]]
    assert whole.drafter_depths == {"draft": [[4, 3], [1, 0]], "lookup": [[1, 1]]}
    first = Figures(Speed(tok_per_s=20.0, plain_tok_per_s=10.0, tokens=140, earlier=100, steps=20))
    speed = first.followed_by(Figures(Speed(tok_per_s=60.0, plain_tok_per_s=20.0, tokens=120, steps=60))).speed
    assert (speed.tokens, speed.earlier, speed.tokens_per_step) == (260, 100, 2.0)
    assert speed.tok_per_s == 160 / 4 and speed.plain_tok_per_s == 160 / 10 and speed.saved_seconds == 10 - 4


def test_a_chat_may_be_named(store: ChatStore) -> None:
    chat = store.open_or_create("my-notes_2")
    assert store.open_or_create("my-notes_2") == chat
    for name in ("", "a b", "../x", "x" * 65, "\x1b[31m"):
        with pytest.raises(UsageError, match="cannot be the name of a chat"):
            store.open_or_create(name)
    assert store.get("my-notes_2").title == "my-notes_2"
    store.add_user("my-notes_2", "About foxes")
    assert store.get("my-notes_2").title == "my-notes_2"


def test_a_name_goes_on_with_the_chat_of_this_title_and_begins_no_other(store: ChatStore) -> None:
    garden = store.create("Garden plans").id
    sea = store.create("Sea").id
    assert store.open_or_create("sEA").id == sea
    assert store.open_or_create("garden p").id == garden  # no new chat may be called so
    assert store.open_or_create("garden").id == "garden"  # a new one, though a title begins so
    store.rename(garden, "sea")
    with pytest.raises(UsageError, match="matches 2 chats") as error:
        store.open_or_create("Sea")
    assert garden in error.value.hint and sea in error.value.hint
    store.rename(garden, "garden")
    assert store.open_or_create("garden").id == "garden"  # an id counts above a title
    assert store.find("garden").id == "garden" and len(store.list_chats()) == 3


def test_a_system_message_comes_first(store: ChatStore) -> None:
    chat = store.create().id
    store.set_system(chat, "Be brief.")
    store.add_user(chat, "x")
    store.set_system(chat, "Be kind.")
    assert [(m.role, m.content) for m in store.messages(chat)] == [("system", "Be kind."), ("user", "x")]
    other = store.create().id
    store.add_user(other, "x")
    store.set_system(other, "")
    store.add_user(other, "y", replaces=store.messages(other)[0].id)
    store.set_system(other, "Be brief.")
    assert [(m.role, m.content) for m in store.messages(other)] == [("system", "Be brief."), ("user", "y")]
    assert [len(branches) for branches in store.forks(other).values()] == [2]
    assert [m.content for m, _ in store.all_messages(other)] == ["Be brief.", "x", "y"]
    store.set_system(other, "")
    assert [m.content for m in store.messages(other)] == ["y"]
    assert [m.content for m, _ in store.all_messages(other)] == ["x", "y"]


def test_a_chat_keeps_how_its_tokens_are_drawn(store: ChatStore) -> None:
    chat = store.create().id
    assert store.sampling(chat) == {}
    store.keep_sampling(chat, {"temperature": 0.25, "top_k": 7})
    assert store.sampling(chat) == {"temperature": 0.25, "top_k": 7}
    store.keep_sampling(chat, {})
    assert store.sampling(chat) == {}
    with pytest.raises(UsageError, match="there is no chat"):
        store.keep_sampling("nobody", {})


@pytest.mark.parametrize("at", range(5))
def test_a_message_is_removed_alone_and_comes_back_as_it_was(store: ChatStore, at: int) -> None:
    chat = store.create().id
    for text in ("sandpiper", "heron", "tern"):
        store.add_user(chat, f"a {text}?")
        store.finish_reply(reply(store, chat).id, text=f"the {text}!")
    before, said = store.all_messages(chat), store.messages(chat)
    removed = store.remove(said[at].id)
    assert [m.id for m in store.messages(chat)] == [m.id for m in said if m.id != said[at].id]
    assert not [hit for hit in store.search(said[at].content) if hit.message == said[at].id]
    files = [path.read_bytes() for path in store.path.parent.iterdir() if path.is_file()]
    assert not any(said[at].content.encode() in file for file in files)
    store.put_back(removed)
    assert store.all_messages(chat) == before and store.messages(chat) == said


def test_of_several_versions_the_whole_is_removed_and_the_other_one_is_shown(store: ChatStore) -> None:
    chat = store.create().id
    asked = store.add_user(chat, "one?")
    store.finish_reply(reply(store, chat).id, text="one!")
    second = reply(store, chat, parent=asked.id)
    store.finish_reply(second.id, text="uno!")
    store.add_user(chat, "more?")
    before = store.all_messages(chat)
    removed = store.remove(second.id)
    assert [m.content for m in store.messages(chat)] == ["one?", "one!"]
    store.put_back(removed)
    assert store.all_messages(chat) == before
    with pytest.raises(UsageError, match="not there any more"):
        store.remove(999)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("What is a fox?", "What is a fox?"), ("Hi there! Can you please help me to sort a list?", "Sort a list"),
        ("hello", "Hello"), ("  One \n two ", "One two"), ("Good morning, what is 3.14 * 2?", "What is 3.14 * 2?"),
        ("**Explain** the `GIL` in Python. And then some more.", "Explain the GIL in Python"),
        ("# A heading\nand its text", "A heading and its text"),
        ("How do __init__ and snake_case work", "How do __init__ and snake_case work"),
        ("Look at [this page](https://example.com/a?b=c) now", "Look at this page now"),
        ("https://www.example.com/a/b?c is down, why", "Example.com is down, why"),
        ("```python\ndef f(x):\n  return x\n```\nWhy does this fail?", "Why does this fail?"),
        ("```python\ndef f(x):\n  return x\n```", "def f(x):"),
        ("你好。请告诉我关于海的故事。", "你好。请告诉我关于海的故事"),
        ("Write a function that sorts a list of dictionaries by two keys", "Write a function that sorts a list…"),
        ("Explain the tides, the moon and everything that moves the sea", "Explain the tides…"),
        ("x" * 100, "X" + "x" * (LENGTH - 2) + "…"), ("", ""),
    ],
)  # fmt: skip
def test_titles(text: str, title: str) -> None:
    assert title_of(text) == title
    assert len(title) <= LENGTH


def test_a_message_of_megabytes_is_not_read_whole() -> None:
    begun = process_time()
    assert title_of("Describe the sea to me. " + "wide and blue " * 300_000) == "Describe the sea to me"
    assert process_time() - begun < 0.1
