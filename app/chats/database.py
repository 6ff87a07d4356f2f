"""One connection to one SQLite file, for all threads of a process."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from slipstream.app.chats.backups import keep_day, verify
from slipstream.app.chats.locking import Writers, hold
from slipstream.app.chats.open_database import QUICK_TO_CHECK, is_damage, open_database, storage_error
from slipstream.app.chats.open_files import Change, HeldChats, OpenFiles
from slipstream.app.chats.records import readable
from slipstream.app.chats.rescue import aside_name, mark, rescue, write_new
from slipstream.app.chats.rows import Rows, read_rows, rows_in
from slipstream.app.chats.schema import transaction
from slipstream.app.platform.paths import private_folder
from slipstream.models.errors import SlipstreamError


class Database:
    """An open file; only one thread of one process writes at a time.

    If another program deletes, replaces or empties the file, the next use writes its chats to a new one.

    Attributes:
        alone: Whether no other process had it open.
        notice: A line for the user if a damaged file was replaced on opening, else "".
        connection: SQLite's connection; a new one after the file was rewritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._tell: Callable[[str], object] = self._note
        self._reported = ""
        self._listened = False
        self._held = HeldChats()
        with ExitStack() as opened:
            self._hold, self.alone = hold(path)
            opened.callback(lambda: self._hold.close())
            self._writers = Writers(path)
            opened.callback(lambda: self._writers.close())
            with self._writers.alone():
                self.connection, self.notice = open_database(path, self.alone)
            self._begin()
            opened.pop_all()

    def execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Runs one statement, within ``read``, ``write`` or ``exclusive``."""
        return self.connection.execute(query, values)

    def listen(self, tell: Callable[[str], object]) -> None:
        """Calls ``tell``, from any thread, with a line for the user whenever the files were rescued or rewritten."""
        self._tell = tell
        if self.notice and not self._listened:
            tell(self.notice)
        self._listened = True

    def hold(self, chat: str) -> None:
        """Keeps a chat in memory as well, so that it survives the loss of the file."""
        with self.read():
            self._held.hold(self.connection, chat)

    def files_changed(self) -> bool:
        """Whether another program deleted, replaced or changed the files; costs microseconds."""
        return not self._hold.closed and self._files.change() is not Change.NONE

    def check_files(self) -> None:
        """Rewrites the files if another program changed them; every use of the database also does this first."""
        with self.read():
            pass

    def check(self) -> None:
        """Writes the chats to a new file if another program deleted, replaced or changed theirs."""
        with self._lock:
            if self._hold.closed or (self._connected and self.connection.in_transaction):
                return
            if not self._connected:
                with self._worded():
                    self._reopen()
            change = self._files.change()
            if change is not Change.NONE:
                words = self._repair(change)
                self._reported = ""
                if words:
                    self._tell(words)

    def close(self) -> None:
        """Closes the file after its daily backup; a second call does nothing."""
        with self._lock, ExitStack() as last:
            last.callback(lambda: self._hold.close())
            last.callback(lambda: self._writers.close())
            ended, reachable = self._hold.closed, False
            if not ended:
                reachable = self._last_check()
                with suppress(SlipstreamError):  # another process keeps writing
                    last.enter_context(self._writers.alone())
            last.callback(lambda: self.connection.close())  # may empty the log, so the writers' lock is held
            if self.alone and not ended and reachable:
                with suppress(SlipstreamError), self.read():  # tried again at the next end
                    if self.execute("SELECT 1 FROM chats LIMIT 1").fetchone():
                        keep_day(self.path)

    @contextmanager
    def read(self) -> Iterator[None]:
        """Locks the connection against other threads; errors of SQLite become ``SlipstreamError``."""
        with self._lock:
            try:
                self.check()
            except SlipstreamError as error:
                if not self._connected:
                    raise
                words = f"{error.title} {error.hint}"  # the open file can still be read
                if words != self._reported:
                    self._reported = words
                    self._tell(words)
            with self._worded():
                yield

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the message may quote the damaged file
            if is_damage(error):
                mark(self.path)
            raise storage_error(self.path, error) from error

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Locks the connection against other threads, and the file against writers of other processes."""
        with self._lock:
            self.check()
            with self._worded(), self._writers.alone():
                try:
                    yield
                finally:
                    self._files.written()

    @contextmanager
    def write(self, durable: bool = False) -> Iterator[None]:
        """One transaction; it is on disk at its end if ``durable``, or if there is no write-ahead log."""
        with self.exclusive():
            self.connection.execute(f"PRAGMA synchronous={'FULL' if durable or not self._logged else 'NORMAL'}")
            with transaction(self.connection):
                yield
            self._held.update(self.connection)

    # --- files changed by other programs --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Starts to watch the files and the changed rows of a new connection."""
        self._connected = True
        self._held.watch(self.connection)
        self._logged = self.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        self._files = OpenFiles(self.path, self._logged)

    def _note(self, words: str) -> None:
        self.notice = words

    def _repair(self, change: Change) -> str:
        """Writes the chats to a sound file of the usual name.

        Returns:
            A report for the user; empty if nothing was lost or replaced.
        """
        private_folder(self.path.parent)
        if self._files.lost_locks():
            locks = hold(self.path)[0], Writers(self.path)
            self._hold.close()
            self._writers.close()
            self._hold, self._writers = locks
        with self._writers.alone():
            self._files.restore_index()
            change = self._files.change(locks=False)  # another process may have repaired it
            try:
                if change is Change.LOG:
                    words = self._without_log()
                elif change is Change.CONTENT:
                    words = self._overwritten()
                elif change is Change.REPLACED:
                    words = self._replaced()
                else:
                    words = "" if change is Change.NONE else self._rewritten(change.value, self._whole())
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise storage_error(self.path, error) from error
            self._files.look()
        return words

    def _without_log(self) -> str:
        """Moves the content of a log that was deleted but is still open into the database file."""
        whole = self._whole()
        busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            return self._rewritten(Change.LOG.value, whole)
        self._files.drop_log()
        self._reopen()
        return f"{self.path.name}-wal was deleted: what was in it is in {self.path.name} now."

    def _overwritten(self) -> str:
        """Handles a write by another program, which may be another slipstream."""
        if not _is_sound(self.path):
            return self._rewritten(Change.CONTENT.value, None)
        self._reopen()
        if not self._is_older():
            self._held.reload(self.connection)
            return ""
        return self._rewritten(Change.CONTENT.value, self._held.rows, read_rows(self.connection))

    def _replaced(self) -> str:
        """Handles another file of the same name: uses it if it holds chats, and sets aside the rows that it lacks."""
        whole = self._whole()
        known = whole or self._held.rows
        aside = aside_name(self.path)
        write_new(aside, known.copy())
        self._files.drop_log()
        others = _read(self.path)
        if others and others.messages:
            with suppress(SlipstreamError, sqlite3.Error):  # for example, the file is of a newer version
                words = ""
                if others.lacks(self._held.rows):
                    words = self._rewritten(Change.REPLACED.value, self._held.rows, others)
                else:  # another slipstream rewrote it
                    self._reopen(self.alone)
                    self._held.reload(self.connection)
                if read_rows(self.connection).lacks(known):
                    return f"{words} What it does not have is kept for a month: {aside.name}."
                aside.unlink()
                return words
        words = self._rewritten(Change.REPLACED.value, whole)
        aside.unlink()
        return words

    def _rewritten(self, why: str, whole: Rows | None, others: Rows | None = None) -> str:
        """Writes a new file and sets aside the present one, see ``rescue``."""
        words = rescue(self.path, why, whole or self._held.rows, whole is not None, others)
        self._reopen()
        self._held.reload(self.connection)
        return words

    def _reopen(self, alone: bool = False) -> None:
        self.connection.close()
        self._connected = False
        self.connection, _ = open_database(self.path, alone)
        self._begin()

    def _whole(self) -> Rows | None:
        """All rows that the open connection can still read, with those in memory; None if it can read none."""
        try:
            rows = read_rows(self.connection)
        except (sqlite3.Error, UnicodeDecodeError):
            return None
        rows.update(self._held.rows)
        return rows

    def _is_older(self) -> bool:
        """Whether the file is an older copy: numbers of messages only grow, even after a chat was deleted."""
        newest = max(self._held.rows.messages, default=0)
        last = self.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchone()
        return (last[0] if last else 0) < newest

    def _last_check(self) -> bool:
        """Checks the files before closing them; writes the chats to the temporary folder if it fails."""
        try:
            self.check()
        except SlipstreamError as error:
            import tempfile  # seldom needed

            stamp = time.strftime("%Y-%m-%d-%H%M%S")
            place = Path(tempfile.gettempdir()) / f"slipstream-chats-{stamp}.db"
            try:
                write_new(place, (self._whole() or self._held.rows).copy())
            except (OSError, sqlite3.Error, SlipstreamError) as second:
                self._tell(f"{error.title} The chats could not be written elsewhere either: {second}.")
            else:
                self._tell(f"{error.title} The chats are in {place}: move it to {self.path}.")
            return False
        return True


def _is_sound(path: Path) -> bool:
    if path.stat().st_size < 512:  # opening an empty database would delete its log
        return False
    try:
        with closing(sqlite3.connect(path)) as db:
            db.text_factory = readable
            if path.stat().st_size < QUICK_TO_CHECK:
                verify(db)
            db.execute("SELECT count(*) FROM messages").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return False
    return True


def _read(path: Path) -> Rows | None:
    try:
        return rows_in(path)
    except (sqlite3.Error, UnicodeDecodeError):
        return None
