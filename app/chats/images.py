"""Images in messages: the marks that name them, and the folder of their files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.app.platform.paths import private_folder, worded
from slipstream.app.platform.safe_text import one_line
from slipstream.models.files import replace_file

if TYPE_CHECKING:
    from slipstream.models.vision.image_file import ImageFacts

MARK: Final = re.compile(r"!\[([^\[\]\n]*)\]\(image:([0-9a-f]{64})\)")
"""An image in a message, in Markdown's form: its label, and the SHA-256 of its file."""
_UNFINISHED: Final = ".*.image.*"


@dataclass(frozen=True, slots=True)
class AttachedImage:
    path: Path
    raw: bytes
    facts: ImageFacts

    @property
    def label(self) -> str:
        name = one_line(self.path.name).replace("[", "(").replace("]", ")")
        kilobytes = max(1, round(self.facts.bytes / 1000))
        return f"{name}, {self.facts.width:,} × {self.facts.height:,} pixels, {kilobytes:,} kB"

    @property
    def mark(self) -> str:
        return f"![{self.label}](image:{self.facts.sha256})"


def read_attached(path: Path) -> AttachedImage:
    """Reads an image to be sent, of which only the header is decoded; raises ``UsageError`` if it cannot be sent."""
    from slipstream.models.vision.image_file import facts_of, read_image  # loads Pillow

    raw = read_image(path.expanduser())
    return AttachedImage(path.expanduser(), raw, facts_of(raw, path.name))


def image_label(text: str) -> str:
    return MARK.sub(lambda mark: f"[{mark[1]}]", text)


def images_of(text: str) -> list[str]:
    return list(dict.fromkeys(mark[2] for mark in MARK.finditer(text)))


class ImageFolder:
    """The files of the images in chats, named by their hash, so that each image is stored once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, raw: bytes, sha256: str) -> Path:
        """Stores an image, readable only by its owner; raises ``SlipstreamError`` if it cannot be written."""
        path = self._path(sha256)
        if not path.exists():
            private_folder(self._folder)
            with worded(path):
                replace_file(path, [raw])
        return path

    def found(self, text: str) -> dict[str, str]:
        places = ((sha256, self._path(sha256)) for sha256 in images_of(text))
        return {sha256: str(path) for sha256, path in places if path.is_file()}

    def forget(self, images: Iterable[str], texts: Callable[[], Iterable[str]]) -> None:
        """Deletes each of ``images`` that no message contains any more; ``texts`` lists the messages with images."""
        places = {sha256: path for sha256 in images if (path := self._path(sha256)).exists()}
        known = {sha256 for text in texts() for sha256 in images_of(text)} if places else set[str]()
        for sha256 in places.keys() - known:
            with suppress(OSError):  # the next start tries again
                places[sha256].unlink()

    def forget_orphans(self, texts: Callable[[], Iterable[str]]) -> None:
        """Deletes images that no message contains, and unfinished files; no other process may be writing images."""
        self.forget([path.stem for path in self._folder.glob("*.image")], texts)
        for path in self._folder.glob(_UNFINISHED):
            with suppress(OSError):
                path.unlink()

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.image"
