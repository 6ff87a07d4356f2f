"""Files that keep what drafters learn about a target from one run to the next."""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.models.errors import reason_of
from slipstream.models.files import make_folder, replace_file
from slipstream.models.outside import read_limited, shown_path

_MOST_BYTES: Final = 64 << 20  # a table of 262,144 tokens has 10 MB


class DrafterMemory:
    """Files of one model in a shared cache folder: replaced atomically, the last writer wins; deleting costs speed."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder, self._model = folder, model

    def read(self, name: str) -> bytes | None:
        """The content stored for a drafter; None if it is missing, damaged, too large, or of another model."""
        try:
            raw = read_limited(self._path(name), _MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            logging.getLogger(__name__).warning("%s is ignored: %s", shown_path(self._path(name)), reason_of(error))
            return None
        digest, content = raw[:32], raw[32:]
        return content if digest == self._digest(name, content) else None

    def write(self, name: str, content: bytes) -> None:
        """Stores a drafter's content atomically, for its owner only; a full or read-only disk keeps the old content."""
        with suppress(OSError):
            make_folder(self._folder)
            replace_file(self._path(name), (self._digest(name, content), content), sync=False)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._model[:16]}.{name}"

    def _digest(self, name: str, content: bytes) -> bytes:
        return hashlib.sha256(f"{self._model} {name} ".encode() + content).digest()
