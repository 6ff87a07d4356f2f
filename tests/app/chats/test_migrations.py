"""Older files become newer ones, whole or not at all, with backups; and a backup a day."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.app.chats.damaged import OLDER, older

from slipstream.app.chats.backups import DAYS, backups, of_days, of_versions
from slipstream.app.chats.reading import ChatReader
from slipstream.app.chats.schema import MIGRATIONS, migrate
from slipstream.app.chats.store import ChatStore
from slipstream.app.library.drafter_status import standing
from slipstream.app.library.heads_files import file_in
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header

OLD_HOME = Path(__file__).with_name("old_home.tar.xz")
"""The release with the bundled weights before made it: three replies in two chats, one of which has its KV cache; SPACE
masks by ``slipstream drafters train space -m bundled --tokens 20000``; a file by ``slipstream drafters index``."""
BUNDLED = Paths.default({"SLIPSTREAM_HOME": "/"}).bundled
TARGET = BUNDLED / "slipstream-mini-q8_0.gguf"


def say(store: ChatStore, chat: str, question: str, answer: str) -> None:
    store.add_user(chat, question)
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="lookup", seed=7)
    store.finish_reply(reply.id, text=answer, tokens=[1, 2], reason="stop")


def everything(folder: Path) -> bytes:
    return everything_of(list(folder.iterdir()))


def test_a_file_of_the_version_before_opens_and_is_backed_up(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    older(path)
    with pytest.raises(SlipstreamError, match="another version"):
        ChatReader(path).newest()
    with closing(ChatStore(path)) as store:
        assert [m.content for m in store.messages("aaaaaa")] == ["about sandpipers", "second", "more", "half"]
        assert store.messages("aaaaaa")[-1].status == "interrupted"
        assert [m.writer for m in store.messages("aaaaaa")] == ["", "tern", "", "tern"]
        assert store.forks("aaaaaa") == {3: [2, 3]}
        assert [hit.message for hit in store.search("sandpiper")] == [1]
        assert [hit.message for hit in store.search("half")] == [6]
        assert [hit.message for hit in store.search("old")] == [None]
        assert not store.search("refused")
        (backup,) = of_versions(path)
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        with closing(sqlite3.connect(backup)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1,)
            assert db.execute("SELECT count(*) FROM messages").fetchone() == (6,)
        store.delete("aaaaaa")
    assert b"sandpiper" not in everything(tmp_path), "a backup forgets what is deleted"
    with closing(ChatStore(path)) as store:
        assert of_versions(path) == [backup]


def test_a_file_of_every_version_opens(tmp_path: Path) -> None:
    for version in (*OLDER, len(MIGRATIONS)):
        path = tmp_path / str(version) / "chats.db"
        path.parent.mkdir()
        older(path, version)
        with closing(ChatStore(path)) as store:
            assert store.notice == ""
            assert [m.content for m in store.messages("aaaaaa")] == ["about sandpipers", "second", "more", "half"]
            assert [m.tokens for m in store.messages("aaaaaa")] == [[1]] * 4
            assert [hit.message for hit in store.search("sandpiper")] == [1]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.db"
    older(path)
    whole = MIGRATIONS
    for count in range(1, len(whole[1]) + 1):
        broken = (whole[0], (*whole[1][:count], "SELECT nothing"))
        monkeypatch.setattr("slipstream.app.chats.schema.MIGRATIONS", broken)
        with pytest.raises(SlipstreamError, match="cannot write to"):
            ChatStore(path)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1,)
            assert not db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%words%'").fetchall()
    monkeypatch.setattr("slipstream.app.chats.schema.MIGRATIONS", whole)
    with closing(ChatStore(path)) as store:
        assert len(store.messages("aaaaaa")) == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("version", [0, *OLDER])
def test_a_kill_between_any_two_statements_leaves_the_old_or_the_new(tmp_path: Path, version: int) -> None:
    statements, ended = 0, False
    while not ended:
        path = tmp_path / str(statements) / "chats.db"
        path.parent.mkdir()
        if version:
            older(path, version)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                with closing(sqlite3.connect(path, isolation_level=None, factory=Killed)) as db:
                    db.left = statements
                    db.execute("PRAGMA journal_mode=WAL")
                    migrate(db)
                os._exit(0)
            os._exit(1)
        status = os.waitpid(child, 0)[1]
        ended = os.WIFEXITED(status)
        assert os.WEXITSTATUS(status) == 0 if ended else os.WTERMSIG(status) == signal.SIGKILL
        with closing(sqlite3.connect(path)) as db:
            (there,) = db.execute("PRAGMA user_version").fetchone()
            assert version <= there <= len(MIGRATIONS)
            assert tables(db) == tables_of(there)
        with closing(ChatStore(path)) as store:
            assert store.notice == ""
            assert not version or [m.content for m in store.messages("aaaaaa")][-1] == "half"
            assert len(of_versions(path)) == min(version, 1) or there > version
        statements += 1
    assert statements > sum(map(len, MIGRATIONS[version:]))


class Killed(sqlite3.Connection):
    left = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        return super().execute(*arguments)


def tables(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()


def tables_of(version: int) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        for migration in MIGRATIONS[:version]:
            for statement in migration:
                db.execute(statement)
        return tables(db)


def test_only_a_few_backups_stay(tmp_path: Path) -> None:
    for version in (2, 10, 9):
        (tmp_path / f"chats-version-{version}.db").touch()
    older(tmp_path / "chats.db")
    ChatStore(tmp_path / "chats.db").close()
    assert [path.stem[-2:] for path in of_versions(tmp_path / "chats.db")] == ["-2", "-9", "10"]


def test_a_backup_is_made_at_every_clean_end_with_changes_and_seven_days_stay(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    ChatStore(path).close()
    assert not backups(path), "there is nothing to back up"
    for words in ("plover", "dunlin"):
        with closing(ChatStore(path)) as store:
            chat = store.create().id
            say(store, chat, f"the {words} nests", "avocet")
        (first,) = of_days(path)
        assert words.encode() in first.read_bytes() and stat.S_IMODE(first.stat().st_mode) == 0o600
    before = first.stat().st_mtime_ns
    ChatStore(path).close()
    assert first.stat().st_mtime_ns == before, "nothing was changed"
    for day in range(1, 9):
        first.rename(first.with_name(f"chats-day-2020-01-0{day}.db"))
        os.utime(first.with_name(f"chats-day-2020-01-0{day}.db"), (1.0, 1.0))
        (tmp_path / ".chats-day-2019-12-31.db.12").write_bytes(b"cut short")
        ChatStore(path).close()
        assert b"dunlin" in first.read_bytes()
    assert len(of_days(path)) == DAYS and first in of_days(path)
    assert not list(tmp_path.glob(".chats-*"))
    with closing(ChatStore(path)) as store:
        store.delete(chat)
    assert b"dunlin" not in everything(tmp_path)


def test_a_program_that_keeps_running_makes_a_backup_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.db"
    now = time.time()
    with closing(ChatStore(path)) as store:
        chat = store.create().id
        for days, words in enumerate(("plover", "dunlin", "godwit")):
            monkeypatch.setattr("slipstream.app.chats.database.time.time", lambda days=days: now + days * 86_500)
            say(store, chat, f"the {words} nests", "avocet")
            found = [
                words for words in ("plover", "dunlin", "godwit") if words.encode() in everything_of(of_days(path))
            ]
            assert found == [[], ["plover", "dunlin"], ["plover", "dunlin", "godwit"]][days]


def everything_of(files: list[Path]) -> bytes:
    return b"".join(file.read_bytes() for file in files)


def test_a_file_with_faults_makes_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with closing(ChatStore(path)) as store:
        say(store, store.create().id, "the plover nests", "avocet")
        store.database.execute("PRAGMA writable_schema = ON")
        store.database.execute("UPDATE sqlite_master SET rootpage = 3 WHERE name = 'messages_of_parent'")
    assert not backups(path)
    with closing(ChatStore(path)) as store:
        assert "2 messages in 1 chat were rescued" in store.notice


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(OLD_HOME) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "oldhome"


def slipstream(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.app.cli.main", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
        timeout=120, env={**os.environ, "SLIPSTREAM_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def reply(home: Path, chat: str) -> dict[str, Any]:
    asked = ("run", "--json", "--chat", chat, "--seed", "5", "--temp", "0.8", "--max-tokens", "24", "-p", "And then?")
    summary: dict[str, Any] = json.loads(slipstream(home, *asked).splitlines()[-1])
    return summary


def said(home: Path) -> dict[str, list[str]]:
    with closing(ChatStore(home / "chats.db")) as store:
        return {chat.id: [message.content for message in store.messages(chat.id)] for chat in store.list_chats()}


@pytest.mark.program
def test_a_chat_goes_on_with_the_new_weights_and_without_the_old_cache(home: Path) -> None:
    (state,) = (home / "states").glob("*.state")
    before, kept = said(home), state.read_bytes()
    assert {chat: len(texts) for chat, texts in before.items()} == {"trip": 4, "dinner": 2}
    first = reply(home, "dinner")
    assert first["text"] and first["prefilled_tokens"] == first["prompt_tokens"]
    assert state.read_bytes() != kept  # made anew
    after = said(home)
    assert after["dinner"] == [*before["dinner"], "And then?", first["text"]] and after["trip"] == before["trip"]
    second = reply(home, "dinner")
    assert second["text"] and second["prefilled_tokens"] < second["prompt_tokens"]


def test_heads_of_the_old_weights_are_named_and_the_bundled_ones_serve(home: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(home)})
    own, bundled = (
        [file for file in standing(TARGET, paths).of("space") if file.path.is_relative_to(folder)]
        for folder in (paths.heads, paths.bundled)
    )
    assert [file.why_not for file in own] == ["trained for another version of it"]
    assert any(not file.why_not for file in bundled)
    assert standing(TARGET, paths).tokens == 0  # an index of an earlier version is not read


def test_training_again_sets_the_old_heads_aside(home: Path) -> None:
    paths, said = Paths.default({"SLIPSTREAM_HOME": str(home)}), list[str]()
    (old,) = paths.heads.glob("*.gguf")
    held = old.read_bytes()
    out = file_in(paths.heads, read_header(TARGET), "space", said.append)
    assert out == old and not out.exists()
    (aside,) = paths.heads.glob("*.gguf")
    assert aside.read_bytes() == held and aside.name in said[0] and "another" in said[0]
