"""Files that earlier versions made: the tables by their own code, one chat with branches in each."""

import gzip
from pathlib import Path
from typing import Final

from slipstream.app.chats.schema import MIGRATIONS

OLDER: Final = tuple(range(1, len(MIGRATIONS)))  # all versions before this one


def older(path: Path, version: int = 1) -> None:
    """Copies a file that has had so many migrations."""
    path.touch(mode=0o600)
    frozen = Path(__file__).with_name("versions") / f"version-{version}.db.gz"
    path.write_bytes(gzip.decompress(frozen.read_bytes()))
