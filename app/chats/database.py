"""One connection to one SQLite file, for all threads of a process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from slipstream.app.chats.backups import keep_day
from slipstream.app.chats.opening import hold, is_damage, open_database, storage_error
from slipstream.app.chats.place import Writers
from slipstream.app.chats.rescue import mark
from slipstream.models.errors import SlipstreamError


class Database:
    """A file that is open; one thread of one process at a time writes.

    Attributes:
        path: The file.
        alone: Whether no other process had it open.
        notice: A line for the user if a damaged file had to be replaced on opening, else "".
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            SlipstreamError: If the place cannot be written to, or a newer slipstream made the file.
        """
        self.path = path
        self._lock = threading.RLock()
        with ExitStack() as opened:
            self._hold, self.alone = hold(path)
            opened.callback(self._hold.close)
            self._writers = Writers(path)
            opened.callback(self._writers.close)
            with self._writers.alone():
                self._db, self.notice = open_database(path, self.alone)
            opened.pop_all()
        self._logged = self._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    def close(self) -> None:
        """Closes the file, and backs it up once a day; calling it again does nothing."""
        with self._lock, ExitStack() as last:
            last.callback(self._hold.close)
            last.callback(self._writers.close)
            ended = self._hold.closed
            if not ended:
                with suppress(SlipstreamError):  # another process writes on and on
                    last.enter_context(self._writers.alone())
            last.callback(self._db.close)  # it may empty the log
            if self.alone and not ended:
                with suppress(SlipstreamError), self._read():  # tried again at the next end
                    if self._db.execute("SELECT 1 FROM chats LIMIT 1").fetchone():
                        keep_day(self.path)

    @contextmanager
    def _read(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:  # an error's own words may come from the file
                if is_damage(error):
                    mark(self.path)
                raise storage_error(self.path, error) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No thread and no other process writes meanwhile."""
        with self._read(), self._writers.alone():
            yield

    @contextmanager
    def _write(self, durable: bool = False) -> Iterator[None]:
        """One transaction; ``durable`` ones have reached the disk when it ends, without a log all have."""
        with self._alone():
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable or not self._logged else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled back already
                    self._db.execute("ROLLBACK")
                raise
