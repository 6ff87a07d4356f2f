"""Searching, and deleting for good."""

import os
import re
import sqlite3
import time
import unicodedata
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.app.chats.test_elsewhere import say

from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.store import ChatStore
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import UsageError
from slipstream.models.heads.file import HeadsInfo, stale, write_heads


def words_in(path: Path) -> set[str]:
    """All words of the full-text indexes, deleted ones that still take up room included."""
    with closing(sqlite3.connect(path)) as db:
        found: set[str] = set()
        for table in ("message_words", "title_words"):
            db.execute(f"CREATE VIRTUAL TABLE temp.{table}_terms USING fts5vocab('main', '{table}', 'row')")
            found |= {str(row[0]) for row in db.execute(f"SELECT term FROM {table}_terms")}
        return found


def everything(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def test_words_are_found_with_their_place(store: ChatStore) -> None:
    chat = store.create().id
    asked, reply = say(store, chat, "Where does the red fox sleep?", "It sleeps in a den.\nCAFÉS are too loud.")
    other = store.create("Foxes at night").id
    found = [(hit.chat, hit.message, hit.role) for hit in store.search("fox")]
    assert found == [(other, None, ""), (chat, None, ""), (chat, asked, "user")]
    (hit,) = [hit for hit in store.search("cafe den") if hit.message]
    assert (hit.message, hit.role) == (reply, "assistant")
    assert [hit.snippet[start:end] for start, end in hit.spans] == ["den", "CAFÉS"]
    assert "\n" not in hit.snippet
    assert store.search("fox den") == store.search("") == store.search('"*(') == store.search("' OR NEAR(") == []
    assert [hit.message for hit in store.search("FOX slee", 2)] == [None, asked]
    store.withdraw(asked)
    assert asked not in [hit.message for hit in store.search("fox")]


def bare(text: str) -> str:
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text)).casefold()


@pytest.mark.parametrize(
    ("text", "found", "not_found"),
    [
        (
            "请用Python写一个函数，调用OpenAI的API",
            ["Python", "pyth", "OpenAI", "api", "python openai"],
            ["ython", "nAI"],
        ),
        ("日本語でdockerを使う", ["docker", "Docker"], ["ocker"]),
        ("한국어docker사용법", ["docker", "한국어"], ["ocker"]),
        ("ภาษาpythonไทย", ["python"], ["thon"]),
        ("Pythonのdockerを", ["docker", "python"], ["ocker"]),
        ("на Python3или", ["python", "Python3"], ["ython"]),
        ("smart words", ["smart", "wor"], ["art", "ords"]),
        ("用Привет写", ["привет", "ПРИВЕТ"], ["ивет"]),
        ("用Café写", ["cafe", "CAFÉ"], ["afe"]),
        ("请用ＰＹＴＨＯＮ写", ["python", "ｐｙｔｈｏｎ"], ["ython"]),
        ("plain python", ["ｐｙｔｈｏｎ"], ["ｙｔｈｏｎ"]),
        ("ﾊﾟｿｺﾝを買う", ["パソコン", "ﾊﾟｿｺﾝ"], ["ハソコン"]),
        ("か\u3099き\u3099く\u3099日本", ["がぎぐ"], ["かき"]),
        ("がぎぐ日本", ["か\u3099き\u3099く\u3099"], ["かき"]),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8어 공부", ["한국어", "공부"], ["하", "국어"]),
        ("한국어 공부", ["\u1112\u1161\u11ab\u1100\u116e\u11a8"], ["하"]),
        ("Ελλάδα Ёлка", ["ελλαδα", "елка", "ΕΛΛΆΔΑ ёлка"], ["λλαδα"]),
        ("ﬁle of docker的", ["file", "ﬁle", "docker"], ["ile"]),
        ("日x²本", ["x²"], ["y²"]),
    ],
)
def test_a_word_behind_another_script_is_found(
    store: ChatStore, text: str, found: list[str], not_found: list[str]
) -> None:
    message = store.add_user(store.create().id, text).id
    store.add_user(store.create().id, "語 alone")
    for words in found:
        hits = [hit for hit in store.search(words) if hit.message]
        assert [hit.message for hit in hits] == [message], words
        marked = " ".join(hits[0].snippet[start:end] for start, end in hits[0].spans)
        assert bare(words.split()[0]) in bare(marked)
    for words in not_found:
        assert not store.search(words), words


def test_words_without_spaces_between_are_found_inside(store: ChatStore) -> None:
    chat = store.create("百%").id
    asked, _ = say(store, chat, "x" * 100 + "昔々あるところにおじいさんがいました" + "y" * 200, "ok")
    (hit,) = store.search("ところ おじい")
    assert hit.message == asked
    assert [hit.snippet[start:end] for start, end in hit.spans] == ["ところ", "おじい"]
    assert hit.snippet.startswith("…x") and hit.snippet.endswith("y…")
    assert store.search("百_") == []
    assert [hit.message for hit in store.search("百%")] == [None]


def test_a_large_message_is_found_at_once(store: ChatStore) -> None:
    chat = store.create("t").id
    asked = store.add_user(chat, "the sea is wide and blue foxes " * 50_000)
    begun = time.process_time()
    (hit,) = store.search("foxes")
    assert hit.message == asked.id and hit.snippet[slice(*hit.spans[0])] == "foxes" and len(hit.snippet) < 200
    assert time.process_time() - begun < 2, "seconds for 1.5 MB"


def test_what_is_being_written_is_found_once_it_is_over(store: ChatStore) -> None:
    chat = store.create("t").id
    store.add_user(chat, "x")
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
    store.append_reply(reply.id, "an otter", [1])
    assert not store.search("otter")
    store.finish_reply(reply.id)
    assert [hit.message for hit in store.search("otter")] == [reply.id]
    before = store.go_on(store.messages(chat)[-1], model="m", fingerprint="g", drafter="none")
    assert (before.tokens, before.model) == ([], "g"), "tokens of another model are of no use"
    assert not store.search("otter")
    store.finish_reply(reply.id, text="an owl")
    assert not store.search("otter")
    assert [hit.message for hit in store.search("owl")] == [reply.id]


def test_a_deleted_chat_is_gone_until_it_is_brought_back(store: ChatStore) -> None:
    chat = store.create().id
    say(store, chat, "about the zebra", "striped")
    reader = ChatReader(store.path)
    assert reader.has([chat])
    store.delete(chat)
    assert not store.search("zebra") and not store.prompts() and not store.list_chats()
    assert not reader.has([chat]) and not reader.newest()
    with pytest.raises(UsageError, match="there is no chat"):
        store.messages(chat)
    with pytest.raises(UsageError, match="deleted just now"):
        store.open_or_create(chat)
    store.erase_deleted()  # it is not a minute ago
    assert store.restore(chat)
    assert len(store.messages(chat)) == len(store.search("striped")) + 1 == 2
    assert reader.has([chat])
    store.delete(chat)
    store.erase_deleted(0)
    assert not store.restore(chat)


def test_nothing_of_an_erased_chat_is_left_in_the_files(tmp_path: Path, store: ChatStore) -> None:
    for number in range(30):
        say(store, store.create().id, f"keep{number} these words", f"kept{number}")
    gone, kept = store.create().id, store.create("sandpiper").id
    asked, _ = say(store, gone, "the plover nests", "avocet")
    say(store, gone, "the dunlin nests", "godwit", beside=asked)
    store.rename(gone, "curlew")
    traces = {"plover", "dunlin", "avocet", "godwit", "curlew"}
    assert traces <= words_in(store.path)
    store.delete(gone)
    store.erase_deleted(0)
    assert (tmp_path / "chats.db-wal").stat().st_size == 0
    assert not traces & words_in(store.path)
    assert not any(word[1:].encode() in everything(tmp_path) for word in traces)  # an index leaves shared letters out
    assert {"keep7", "sandpiper"} <= words_in(store.path)
    assert [hit.chat for hit in store.search("sandpiper")] == [kept]
    assert len(store.search("these words", 99)) == 60  # questions and titles


def test_the_next_start_erases_what_was_deleted(tmp_path: Path) -> None:
    if not (child := os.fork()):
        store = ChatStore(tmp_path / "chats.db")
        say(store, store.open_or_create("gone").id, "the plover nests", "avocet")
        store.delete("gone")
        os._exit(0)  # nothing is closed, as by a kill
    assert os.waitpid(child, 0)[1] == 0
    assert b"lover" in everything(tmp_path)
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        assert not store.restore("gone")
        assert b"lover" not in everything(tmp_path)


def test_states_go_with_their_chats_even_those_that_came_after(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()

    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    with closing(ChatStore(tmp_path / "chats.db", folder)) as store:
        stays, leaves = store.create().id, store.create().id
        for name in (f"{stays}.state", f"{leaves}.state", "+0123.state", f".{stays}.state.99"):
            (folder / name).write_bytes(b"x")
        store.delete(leaves)
        assert f"{leaves}.state" in names()  # it can be brought back
        store.erase_deleted(0.0)
        assert names() == [f".{stays}.state.99", f"{stays}.state"]  # the system prompt may have been its own
        (folder / f"{leaves}.state").write_bytes(b"x")  # an engine that was just closing
        (folder / "notes.txt").write_bytes(b"x")
    assert {path.name for path in folder.iterdir()} == {f"{stays}.state", "notes.txt"}
    (folder / f"{leaves}.state").write_bytes(b"x")  # an engine that outlived the interface
    ChatStore(tmp_path / "chats.db", folder).close()
    assert {path.name for path in folder.iterdir()} == {f"{stays}.state", "notes.txt"}


def test_bench_and_other_commands_keep_no_states() -> None:
    assert choose(Paths.default({})).states is None
    assert Load("m.gguf").states is None


def test_heads_that_saw_a_deleted_chat_are_marked(tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    with closing(ChatStore(tmp_path / "chats.db", heads=heads)) as store:
        chat, other = store.create().id, store.create().id
        store.delete(store.create().id)  # nothing is trained yet
        heads.mkdir()
        for name, chats in (("saw", (other, chat)), ("saw-not", (other,)), ("z-saw", (chat,))):
            info = HeadsInfo("space", "ab" * 32, "tern", "chats", chats, 1)
            write_heads(heads / f"{name}.gguf", info, {"masks": np.ones((1, 32), np.float32)})
        (heads / "damaged.gguf").write_bytes((heads / "saw.gguf").read_bytes()[:60])
        (heads / "text.gguf").write_text("no heads")
        (heads / "folder.gguf").mkdir()
        store.delete(chat)
        assert [kept.id for kept in store.list_chats()] == [other]
    # closing erases what was deleted
    marked = {path.stem: stale(path) for path in heads.glob("*.gguf")}
    none: tuple[str, ...] = ()
    assert marked.pop("saw") == marked.pop("z-saw") == (chat,)
    assert set(marked.values()) == {none}
