"""One connection to the SQLite file of chats, for all threads of a process."""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from slipstream.app.chats import backups
from slipstream.app.chats.backups import DAY, SIDE_FILES
from slipstream.app.chats.locking import Writers, hold, is_remote
from slipstream.app.chats.records import readable
from slipstream.app.chats.schema import is_damage, migrate, storage_error, transaction
from slipstream.app.platform.paths import private_folder, unwritable, worded
from slipstream.models.errors import SlipstreamError

SETTINGS: Final = (
    "busy_timeout=5000",  # another program may be reading
    "synchronous=FULL",
    "temp_store=MEMORY",
    "fullfsync=ON",  # macOS: fsync alone may leave data in the drive's cache
    "foreign_keys=ON",
    "mmap_size=0",
    "cell_size_check=ON",
    "secure_delete=ON",
)
QUICK_TO_CHECK: Final = 8 << 20
"""A database of fewer bytes is checked at every start; a larger one is checked after a crash."""


class Database:
    """An open file; only one thread of one process writes at a time.

    If another program deletes or replaces the file, the next write puts all chats into a new one and connects to it.
    ``alone`` says whether no other process had it open; ``notice`` is a line for the user if files were restored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._tell: Callable[[str], object] = self._note
        self._listened = False
        with ExitStack() as opened:
            self._hold, self.alone = hold(path)
            opened.callback(lambda: self._hold.close())
            self._writers = Writers(path)
            opened.callback(lambda: self._writers.close())
            with self._writers.alone():
                self.connection, self.notice = _open(path, self.alone)
            self._begin()
            opened.pop_all()
        self._backup_due = time.time() + DAY  # for a program that keeps running

    def execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Runs one statement, within ``read``, ``write`` or ``exclusive``."""
        return self.connection.execute(query, values)

    def listen(self, tell: Callable[[str], object]) -> None:
        """Calls ``tell``, from any thread, with a line for the user whenever files were restored or written anew."""
        self._tell = tell
        if self.notice and not self._listened:
            tell(self.notice)
        self._listened = True

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.read():
            return self.execute(query, values).fetchall()

    def change(self, query: str, *values: object) -> int:
        """Runs one statement as a durable ``write``; returns the number of rows that it changed."""
        with self.write(durable=True):
            return self.execute(query, values).rowcount

    @contextmanager
    def read(self) -> Iterator[None]:
        """Locks the connection against other threads; errors of SQLite become ``SlipstreamError``."""
        with self._lock, self._worded():
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._lock:
            self._follow_file()
            with self._worded(), self._writers.alone():
                yield

    @contextmanager
    def write(self, durable: bool = False) -> Iterator[None]:
        """One transaction; it is on disk at its end if ``durable``, or if there is no write-ahead log."""
        with self.exclusive():
            self.connection.execute(f"PRAGMA synchronous={'FULL' if durable or not self._logged else 'NORMAL'}")
            with transaction(self.connection):
                yield
            if time.time() > self._backup_due:
                self._backup_due = time.time() + DAY
                with suppress(SlipstreamError, sqlite3.Error):  # the clean end tries again
                    backups.keep_day(self.connection, self.path)

    def close(self) -> None:
        """Closes the file after a backup of what changed; a second call does nothing."""
        with self._lock, ExitStack() as last:
            if self._hold.closed:
                return
            last.callback(lambda: self._hold.close())
            last.callback(lambda: self._writers.close())
            last.callback(lambda: self.connection.close())  # may empty the log, so the writers' lock is held
            try:
                self._follow_file()
            except SlipstreamError as error:
                self._tell(f"{error.title} {error.hint}")
            with suppress(SlipstreamError):  # another process keeps writing, or the disk is full: the next end tries
                last.enter_context(self._writers.alone())
                changed = self.connection.total_changes != self._changes
                with self._worded():
                    if (changed or backups.age(self.path) > DAY) and self.execute("SELECT 1 FROM chats").fetchone():
                        backups.keep_day(self.connection, self.path)

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the message may quote the damaged file
            if is_damage(error):
                with suppress(OSError):
                    backups.marked(self.path).touch(0o600)
            raise storage_error(self.path, error) from error

    def _begin(self) -> None:
        self._logged = self.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        self._file = _identity(self.path)
        self._changes = self.connection.total_changes

    def _note(self, words: str) -> None:
        self.notice = words

    def _follow_file(self) -> None:
        """Writes the chats, which the connection still holds, to a new file if another program took theirs away."""
        if _identity(self.path) == self._file or self.connection.in_transaction:
            return
        private_folder(self.path.parent)
        locks = hold(self.path)[0], Writers(self.path)  # the lock files may be others now
        self._hold.close()
        self._writers.close()
        self._hold, self._writers = locks
        words = ""
        with self._writers.alone(), self._worded():
            now = _identity(self.path)
            if now is None or self._writers.written != now:  # otherwise another slipstream has done it
                backups.write_copy(self.connection, backups.ready(self.path))
                aside = backups.set_aside(self.path)
                backups.finish(self.path)
                self._writers.written = _identity(self.path)
                other = f" The other file is kept for a month: {aside.name}." if aside and aside.is_file() else ""
                why = "replaced" if other else "deleted or moved"
                words = f"{self.path.name} was {why} by another program: all chats were written to a new one.{other}"
            old, self.connection = self.connection, _connect(self.path, check=False)
            old.close()
            self._begin()
        if words:
            self._tell(words)


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells one file of this name from another; None if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _open(path: Path, alone: bool) -> tuple[sqlite3.Connection, str]:
    """Opens a database; creates it if it is missing, and restores it if it is damaged and no other process has it open.

    Returns the connection, and a line for the user if the file was restored, else "".
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would block
        raise SlipstreamError(f"{path} is no file.", "Move it elsewhere and start again.")
    why = ""
    if alone:
        backups.finish(path)
        backups.drop_leftovers(path)
        why = _damage(path)
    elif not path.exists() and _damage(path):
        raise SlipstreamError(
            f"{path} was deleted, but another slipstream still has it open.",
            "Send a message there, which writes it anew, or close it; then try again.",
        )
    try:
        if not why:
            unclean = any(path.with_name(path.name + side).exists() for side in SIDE_FILES)  # a clean end deletes them
            _create(path)
            return _connect(path, check=alone and (unclean or path.stat().st_size < QUICK_TO_CHECK)), ""
    except sqlite3.DatabaseError as error:
        # a damaged schema makes statements fail with the generic error
        generic = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_ERROR
        if not is_damage(error) and not generic:
            raise storage_error(path, error) from error
        if not alone:
            raise SlipstreamError(
                f"the chats in {path} are damaged.",
                "Close every other slipstream and start again: what can be read is rescued then.",
            ) from error
        why = "was damaged"
    try:
        notice = backups.restore(path, why)
        return _connect(path, check=False), notice
    except sqlite3.Error as error:
        raise storage_error(path, error) from error


def _damage(path: Path) -> str:
    if path.is_dir():
        return "was a folder"
    if backups.marked(path).exists():
        return "was damaged"
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        header = b""
    except OSError as error:
        raise unwritable(path, error) from error
    if not header and (path.with_name(path.name + "-wal").exists() or backups.backups(path)):
        return "was empty" if path.exists() else "was missing"
    # SQLite would overwrite such a file, or refuse it
    return "was damaged" if header and (len(header) < 100 or not {*header[18:20]} <= {1, 2}) else ""


def _create(path: Path) -> None:
    """Creates the file before SQLite does, so that only its owner can read it and its side files."""
    with worded(path):
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if sys.platform != "win32":
                os.fchmod(handle, 0o600)
        finally:
            os.close(handle)


def _connect(path: Path, check: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.text_factory = readable
    try:
        # a write-ahead log needs memory that all readers share, so it cannot work on a network file system
        for setting in (*SETTINGS, f"journal_mode={'TRUNCATE' if is_remote(path.parent) else 'WAL'}"):
            db.execute(f"PRAGMA {setting}").fetchall()
        if check:
            backups.check(db)
        migrate(db, partial(backups.keep_version, path))
        db.execute("SELECT 1 FROM message_words, title_words LIMIT 0")  # fails if the schema of an index is damaged
    except UnicodeDecodeError as error:  # the message quotes the damaged file
        db.close()
        raise sqlite3.DatabaseError("database corruption: garbled words") from error
    except BaseException:
        db.close()
        raise
    return db
