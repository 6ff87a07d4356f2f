"""One connection to one SQLite file, for all threads of a process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.app.chats.opening import hold, open_database, storage_error


class Database:
    """A file that is open; one thread at a time reads or writes.

    Attributes:
        path: The file.
        alone: Whether no other process had it open.
        notice: A line for the user if a damaged file had to be set aside on opening, else "".
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            SlipstreamError: If the place cannot be written to, or a newer slipstream made the file.
        """
        self.path = path
        self._lock = threading.RLock()
        self._hold, self.alone = hold(path)
        try:
            self._db, self.notice = open_database(path, self.alone)
        except BaseException:
            self._hold.close()
            raise

    def close(self) -> None:
        """Closes the file; calling it again does nothing."""
        with self._lock:
            self._db.close()
            self._hold.close()

    @contextmanager
    def _read(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise storage_error(self.path, error) from error

    @contextmanager
    def _write(self, durable: bool = False) -> Iterator[None]:
        """One transaction; ``durable`` ones have reached the disk when it ends."""
        with self._read():
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled back already
                    self._db.execute("ROLLBACK")
                raise
