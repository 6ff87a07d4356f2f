"""Values in the file that no version of Slipstream writes: a bad one costs only itself."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from tests.app.chats.damaged import filled

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.main import main

DEEP: Final = "[" * 100_000
FIGURES: Final = '{"speed": {}, "by_depth": %s}'
ODD: Final[dict[str, tuple[object, ...]]] = {
    "chats.title": (b"\xff\x00blob", 3, "x" * 10_000, "a\x00b", 1e400),
    "chats.created": (float("inf"), float("-inf"), 9.4e12, "soon", b"\x00", -1e300, 2**62),
    "chats.updated": (float("inf"), 9.4e12, "soon", b"\xff", -5),
    "chats.model": (b"\xff", 5, 2.5),
    "chats.pinned": ("yes", b"1", 2**62, 1e300),
    "chats.sampling": ("{", "[]", DEEP, '{"temperature": "hot", "top_k": 1e99}', '{"temperature": NaN}', b"\xff", 7),
    "messages.content": (b"\xff\x00blob", 3, 2.5),
    "messages.tokens": ("text", 3, b"\x01", b"\xff" * 4096, 1.5),
    "messages.model": (b"\xff", 3),
    "messages.drafter": (b"\xff", 3),
    "messages.seed": ("x", b"\xff", "9" * 5000, -3, "٣", 2.5),
    "messages.speed": (
        "{", DEEP, "[1]", b"\xff", 5, '{"speed": 3}', '{"speed": {"tok_per_s": "fast"}}',
        '{"speed": {"tokens": 1e400}}',
        FIGURES % "3", FIGURES % "[[1]]", FIGURES % '[["a", "b"]]', '{"speed": {}, "origins": [[1, "plain"]]}',
        '{"speed": {}, "by_drafter": {"a": 1}}', '{"speed": {}, "drafter_depths": []}', '{"speed": {}, "ttft_ms": NaN}',
    ),
    "messages.reason": (b"\xff", 3, "summary " + "9" * 5000, "summary -1", "summary x"),
    "messages.created": (float("inf"), 9.4e12, "soon", b"\x00", -1e300),
    "messages.picked": ("first", b"\xff", 1e300, 2**62, 2**63 - 1, -1),
    "messages.parent": ("x", b"\xff", 2.5),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "chats.db"
    filled(path, 3)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("column", "number"), [(column, number) for column, values in ODD.items() for number in range(len(values))]
)
def test_a_bad_value_costs_only_itself(
    tmp_path: Path,
    sound: bytes,
    column: str,
    number: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, (table, name) = tmp_path / "chats.db", column.split(".")
    path.write_bytes(sound)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE {table} SET {name} = ? WHERE rowid IN (2, 6)", (ODD[column][number],))
        db.commit()
    with closing(ChatStore(path)) as store:
        chats = store.list_chats()
        assert len(chats) == 3
        for chat in chats:
            store.sampling(chat.id), store.forks(chat.id), store.refused(chat.id)
            shown, everything = store.messages(chat.id), store.all_messages(chat.id)
            assert shown and everything and (name == "parent" or len(shown) == 4)
            for message, _ in everything:
                store.show(message.id)
        store.prompts(), store.search("message"), store.search("blob"), store.search("日本")
        for form in ("md", "json"):
            text = exported(store, [chat.id for chat in chats], "md" if form == "md" else "json")
        with closing(ChatStore(tmp_path / "other.db")) as other:
            assert len(import_chats(other, text.encode(), "file")) == 3
        for chat in chats:
            store.add_user(chat.id, "goes on")
            reply = store.begin_reply(chat.id, model="m", fingerprint="f", drafter="none", seed=1)
            store.finish_reply(reply.id, text="yes")
            assert [message.content for message in store.messages(chat.id)][-2:] == ["goes on", "yes"]
        reader = ChatReader(path)
        assert sum(len(reader.replies(chat, 0)) for chat in reader.newest()) >= 6
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    for words in (["list"], ["list", "--json"], ["search", "message"], ["export"], ["delete", *(c.id for c in chats)]):
        with pytest.raises(SystemExit) as ended:
            main(["chats", *words])
        assert ended.value.code == 0, capsys.readouterr().err
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"id"')]


@pytest.mark.parametrize("circle", ["parent = id", "parent = id + 2", "parent = 99"])
def test_messages_in_a_circle_or_without_a_beginning_end_nothing(tmp_path: Path, sound: bytes, circle: str) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(sound)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE messages SET {circle}")
        db.commit()
    with closing(ChatStore(path)) as store:
        for chat in store.list_chats():
            store.messages(chat.id), store.all_messages(chat.id), store.forks(chat.id)
            store.show(5)
            exported(store, [chat.id], "md")
            store.add_user(chat.id, "goes on")
            assert store.messages(chat.id)[-1].content == "goes on"
            store.delete(chat.id)
        store.erase_deleted(0)
        assert store.list_chats() == []


def test_a_chat_whose_id_is_no_name_is_not_listed(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(sound)
    with closing(sqlite3.connect(path)) as db:
        for row, name in ((1, b"blob"), (2, "../up")):
            db.execute("UPDATE chats SET id = ? WHERE rowid = ?", (name, row))
        db.commit()
    with closing(ChatStore(path, tmp_path / "states")) as store:
        assert len(store.list_chats()) == 1
