"""The index follows the chats: what is finished is found, what is deleted is gone, whatever is killed in between."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.drafters import test_text_index

from slipstream.app.chats.deletion_hooks import switch
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.recording import recorded
from slipstream.app.chats.records import Status
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine import past_chats
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done, Loaded
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.drafters.text_index import FILE, TextIndex
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import SlipstreamError
from slipstream.models.heads.file import HeadsInfo, stale, write_heads
from slipstream.models.types import Token

MINE = "f" * 64
N_VOCAB = 300
ASKED = "Tell me about the sea"
quick_disk = test_text_index.quick_disk


def tokenize(text: str, special: bool, written: object = (), *, joins: bool = False) -> list[Token]:
    return list(text.encode())


def spoken(tokens: list[Token]) -> str:
    return bytes(tokens).decode()


def index_at(home: Path) -> TextIndex:
    return TextIndex(home / "index" / "bytes", "bytes", N_VOCAB)


def past_of(home: Path, index: TextIndex | None = None, fingerprint: str = MINE) -> PastChats:
    prompts = PromptBuilder(ChatTemplate(CHATML), tokenize, [])
    reader = ChatReader(home / "chats.db")
    return PastChats(reader, index or index_at(home), fingerprint, prompts, N_VOCAB)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    kept = ChatStore(tmp_path / "chats.db", index=tmp_path / "index")
    yield kept
    kept.close()


def say(
    store: ChatStore,
    chat: str,
    question: str,
    answer: str,
    status: Status = "done",
    tokens: list[Token] | None = None,
    model: str = MINE,
) -> int:
    asked = store.add_user(chat, question)
    reply = store.begin_reply(chat, model="m", fingerprint=model, drafter="none", seed=1, parent=asked.id)
    if status == "streaming":
        store.append_reply(reply.id, answer, [])
    else:
        store.finish_reply(reply.id, status, text=answer, tokens=tokens)
    return reply.id


def follows(index: TextIndex, words: str) -> set[str]:
    """What the index holds behind some words: up to 16 tokens, to the end of the piece."""
    found = index.search(tokenize(words, False), least=min(len(words), 16))
    rows = [row[::-1] for row in found.ahead]
    return {spoken(list(row[: row.index(-1)] if -1 in row else row)) for row in rows}


def all_of(past: PastChats) -> int:
    slices = 1
    while past.catch_up():
        slices += 1
        assert slices < 1000
    return slices


def test_a_finished_reply_is_found_behind_its_question_and_once(tmp_path: Path, store: ChatStore) -> None:
    chat, index = store.create().id, index_at(tmp_path)
    past = past_of(tmp_path, index)
    say(store, chat, "How tall is it?", "Nine metres.")
    assert not past.catch_up()
    assert follows(index, "Nine m") == {"etres."}
    prompt = past.prompts.build([Message("user", "How tall is it?")], 4096).tokens
    assert follows(index, spoken(prompt)[-16:]) == {"Nine metres."}  # as the model reads it
    size = index.size()
    assert not past.catch_up() and not past_of(tmp_path).catch_up()
    assert index.size() == size
    second = say(store, chat, "And how wide?", "Nine miles.")
    assert not past.catch_up()
    assert follows(index, "Nine m") == {"etres.", "iles."}
    assert {name: found.stamp for name, found in index.documents().items()} == {f"chat:{chat}": second}


def test_branches_and_interrupted_replies_count_and_unfinished_ones_wait(tmp_path: Path, store: ChatStore) -> None:
    chat, other, index = store.create().id, store.create().id, index_at(tmp_path)
    first = say(store, chat, "Say a word.", "alpha one")
    again = store.begin_reply(chat, model="m", fingerprint=MINE, drafter="none", seed=2, parent=first - 1)
    store.finish_reply(again.id, text="alpha two")
    say(store, chat, "More.", "alpha three", "interrupted")
    say(store, chat, "More!", "alpha four", "failed")
    open_reply = say(store, chat, "More?", "alpha five", "streaming")
    say(store, chat, "More??", "alpha six")  # finished before the one above it
    say(store, other, "", "alpha seven")
    past = past_of(tmp_path, index)
    all_of(past)
    assert follows(index, "alpha ") == {"one", "two", "three", "seven"}
    store.finish_reply(open_reply, text="alpha five")
    all_of(past)
    assert follows(index, "alpha ") == {"one", "two", "three", "five", "six", "seven"}


def test_tokens_of_the_same_model_are_taken_as_they_were_drawn(tmp_path: Path, store: ChatStore) -> None:
    chat, index = store.create().id, index_at(tmp_path)
    say(store, chat, "", "mine", tokens=[290, 291, 292])
    say(store, chat, "", "theirs", tokens=[290, 291, 293], model="another")
    say(store, chat, "", "broken", tokens=[290, 291, N_VOCAB])
    say(store, chat, "", "", tokens=[])
    all_of(past_of(tmp_path, index))
    assert [row[-1] for row in index.search([290, 291]).ahead] == [292]
    assert follows(index, "the") == {"irs"} and follows(index, "bro") == {"ken"}


def test_a_deleted_chat_leaves_every_index_at_once(tmp_path: Path, store: ChatStore) -> None:
    chat, other, index = store.create().id, store.create().id, index_at(tmp_path)
    say(store, chat, "A password?", "xyzzy plugh")
    say(store, other, "A word?", "plover")
    all_of(past_of(tmp_path, index))
    theirs = TextIndex(tmp_path / "index" / "other", "other", N_VOCAB)
    all_of(past_of(tmp_path, theirs))
    traces = (b"\0".join(b"\0\0%c" % byte for byte in reversed(b"xyzzy")), chat.encode())

    def traced() -> int:
        raw = [file.read_bytes() for folder in ("bytes", "other") for file in (tmp_path / "index" / folder).iterdir()]
        return sum(trace in file for file in raw for trace in traces)

    assert traced() == 4
    store.delete(chat)
    assert traced() == 0
    found = index_at(tmp_path)
    assert not follows(found, "xyzz") and follows(found, "plo") == {"ver"}
    all_of(past_of(tmp_path, index))
    assert set(index.documents()) == {f"chat:{other}"}


def test_a_deletion_that_cannot_reach_the_index_says_so(tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    heads.mkdir()
    info = HeadsInfo("space", "ab" * 32, "tern", "chats", ("sea",), 1)
    write_heads(heads / "saw.gguf", info, {"masks": np.ones((1, 32), np.float32)})
    index_at(tmp_path)
    (tmp_path / "index" / "bytes" / FILE).write_text("broken")
    with closing(ChatStore(tmp_path / "chats.db", heads=heads, index=tmp_path / "index")) as store:
        store.open_or_create("sea")
        with pytest.raises(SlipstreamError, match="the chat is deleted, but its text is still indexed"):
            store.delete("sea")
        with pytest.raises(SlipstreamError, match="the chat is deleted, but its text is still indexed"):
            store.erase_deleted(0)
        assert not store.list_chats() and stale(heads / "saw.gguf") == ("sea",)


def test_a_chat_that_was_deleted_by_a_killed_process_leaves_at_the_next_look(tmp_path: Path, store: ChatStore) -> None:
    chat, index = store.create().id, index_at(tmp_path)
    say(store, chat, "Hello?", "xyzzy")
    all_of(past_of(tmp_path, index))
    with store.database.write(durable=True):  # the first half of a deletion
        store.database.execute("DELETE FROM chats WHERE id = ?", (chat,))
    assert follows(index, "xyz") == {"zy"}
    all_of(past_of(tmp_path, index))
    assert not index.documents() and index.empty
    (tmp_path / "elsewhere").mkdir()
    assert not past_of(tmp_path / "elsewhere").catch_up()  # no chats at all


def test_a_chat_deleted_amid_indexing_is_gone(
    tmp_path: Path, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, other, index = store.create().id, store.create().id, index_at(tmp_path)
    say(store, other, "Hello?", "plover")
    say(store, chat, "Hello?", "xyzzy")
    past = past_of(tmp_path, index)
    add = index.add

    def deleted_meanwhile(*arguments: object) -> bool:
        monkeypatch.setattr(index, "add", add)
        store.delete(chat)
        return add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "add", deleted_meanwhile)
    assert past.catch_up(), "there is more to do: the other chat"
    assert not index.documents()
    assert not past.catch_up()
    assert set(index.documents()) == {f"chat:{other}"}


def test_two_engines_index_a_reply_once(tmp_path: Path, store: ChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, one, two = store.create().id, index_at(tmp_path), index_at(tmp_path)
    say(store, chat, "Hello?", "plover")
    add = one.add

    def other_is_faster(*arguments: object) -> bool:
        monkeypatch.setattr(one, "add", add)
        assert not past_of(tmp_path, two).catch_up()
        return add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(one, "add", other_is_faster)
    all_of(past_of(tmp_path, one))
    two.refresh()
    assert one.size() == two.size() and len(one.search(tokenize("plo", False)).ahead) == 1


def test_much_is_read_in_slices_added_once(tmp_path: Path, store: ChatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_chats, "_SLICE", 300)
    for number in range(40):
        chat = store.create().id
        for turn in range(number % 3 + 1):
            say(store, chat, f"Question {number}.{turn}", f"Answer {number} " * 20)
    index = index_at(tmp_path)
    past = past_of(tmp_path, index)
    assert past.catch_up() and not index.documents() and all_of(past) > 9
    whole = index_at(tmp_path / "whole")
    monkeypatch.setattr(past_chats, "_SLICE", 10**6)
    reader = ChatReader(tmp_path / "chats.db")
    assert all_of(PastChats(reader, whole, MINE, past.prompts, N_VOCAB)) == 1
    assert whole.documents() == index.documents() and len(whole.documents()) == 40


def test_a_large_index_waits_for_a_twentieth_of_new_text(tmp_path: Path, store: ChatStore) -> None:
    chat, index = store.create().id, index_at(tmp_path)
    say(store, chat, "", "plover " * 400)
    past = past_of(tmp_path, index)
    assert not past.catch_up()
    size = index.size().tokens
    say(store, chat, "", "xyzzy")
    assert not past.catch_up() and not past.catch_up()
    assert index.size().tokens == size
    say(store, chat, "", "plugh " * 30)
    assert not past.catch_up()
    assert follows(index, "xyz") == {"zy"} and index.size().tokens > size


def test_a_chat_that_is_deleted_while_its_replies_wait_does_not_come_back(tmp_path: Path, store: ChatStore) -> None:
    chat, other, index = store.create().id, store.create().id, index_at(tmp_path)
    say(store, other, "", "plover " * 400)
    past = past_of(tmp_path, index)
    assert not past.catch_up()
    say(store, chat, "", "xyzzy")
    assert not past.catch_up()
    store.delete(chat)
    say(store, other, "", "plugh " * 30)
    all_of(past)
    assert set(index.documents()) == {f"chat:{other}"} and follows(index, "plugh plugh ")
    assert not follows(index, "xyz")


def test_chats_that_cannot_be_read_change_nothing(tmp_path: Path, store: ChatStore) -> None:
    chat, index = store.create().id, index_at(tmp_path)
    say(store, chat, "Hello?", "plover")
    all_of(past_of(tmp_path, index))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "chats.db").write_bytes(b"no database" * 99)
    broken = PastChats(ChatReader(tmp_path / "broken" / "chats.db"), index, MINE, past_of(tmp_path).prompts, 9)
    with pytest.raises(SlipstreamError, match="damaged"):
        broken.catch_up()
    assert follows(index, "plo") == {"ver"}


KILLED = """
import sys
from pathlib import Path
from slipstream.app.engine import past_chats
from tests.app.engine.test_past_chats import all_of, past_of
past_chats._SLICE = 200
past = past_of(Path(sys.argv[1]))
print("ready", flush=True)
all_of(past)
"""


def test_killed_at_any_moment_it_goes_on(tmp_path: Path, store: ChatStore) -> None:
    for number in range(60):
        say(store, store.create().id, f"Question {number}", f"Answer {number} " * 9)
    for seed in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        assert process.stdout and process.stdout.readline() == b"ready\n"
        time.sleep(random.Random(seed).uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    index = index_at(tmp_path)
    all_of(past_of(tmp_path, index))
    whole = TextIndex(tmp_path / "whole", "bytes", N_VOCAB)
    all_of(past_of(tmp_path, whole))
    assert index.documents() == whole.documents() and len(whole.documents()) == 60
    for number in range(60):
        tail = tokenize(f"Question {number}", False)[-12:]
        assert len(index.search(tail).ahead) == len(whole.search(tail).ahead)


def indexed(paths: Paths) -> set[str]:
    found = [TextIndex.existing(folder) for folder in paths.index.iterdir() if folder.is_dir()]
    return {name for index in found if index for name in index.documents()}


def reply(engine: Engine, store: ChatStore, loaded: Loaded, chat: str, number: int, drafter: str) -> Done:
    store.add_user(chat, ASKED)
    message = store.begin_reply(chat, model=loaded.name, fingerprint=loaded.fingerprint, drafter=drafter, seed=1)
    ask = Generate(number, [Message("user", ASKED)], Sampling(seed=1), drafter, max_tokens=40)
    (done,) = [event for event in recorded(engine.reply(ask), store, message.id) if isinstance(event, Done)]
    return done


@pytest.mark.program
def test_an_idle_engine_indexes_what_it_wrote_and_drafts_from_it(tmp_path: Path) -> None:
    paths = Paths.default({HOME_VARIABLE: str(tmp_path)})
    with (
        closing(ChatStore(paths.chats, index=paths.index)) as store,
        closing(Engine(paths.logs / "engine.log")) as engine,
    ):
        loaded = engine.load(choose(paths))
        offer = next(offer for offer in loaded.drafters if offer.name == "retrieval")
        assert not offer.usable and "indexed text" in offer.why_not
        chat, again = store.create().id, store.create().id
        first = reply(engine, store, loaded, chat, 1, "none")
        patience = time.monotonic() + 60
        while f"chat:{chat}" not in indexed(paths):
            assert time.monotonic() < patience, "it was never indexed"
            time.sleep(0.1)
        second = reply(engine, store, loaded, again, 2, "retrieval")
        assert second.text == first.text
        assert second.speed.accepted > 20 and second.speed.steps < first.speed.steps / 2
        store.delete(chat)
        assert f"chat:{chat}" not in indexed(paths)
        store.delete(again)
        assert reply(engine, store, loaded, store.create().id, 3, "none").text == first.text
        engine.close()
        assert not {f"chat:{chat}", f"chat:{again}"} & indexed(paths)


@pytest.mark.program
@pytest.mark.slow
def test_one_reply_is_indexed_before_the_command_ends_unless_the_index_is_off(tmp_path: Path) -> None:
    paths = Paths.default({HOME_VARIABLE: str(tmp_path)})

    def run(*more: str) -> None:
        words = ["run", "-p", ASKED, "--max-tokens", "9", *more]
        program = [sys.executable, "-c", "from slipstream.app.cli.main import main; main()", *words]
        environment = {**os.environ, HOME_VARIABLE: str(tmp_path)}
        subprocess.run(program, stdin=subprocess.DEVNULL, check=True, timeout=300, env=environment)

    run()
    assert not indexed(paths)  # it was not kept
    run("--chat", "sea")
    assert indexed(paths) == {"chat:sea"}
    switch(paths.index, on=False)
    run("--chat", "moon")
    assert indexed(paths) == {"chat:sea"}
    switch(paths.index, on=True)
    run()  # takes up what was left
    assert indexed(paths) == {"chat:sea", "chat:moon"}
