"""Reads the headers and the pixels of image files; refuses damaged and too large images.

The interface reads headers only; pixels are decoded in the engine's process. Pillow decodes them, since llama.cpp's
decoder passes files that it cannot read to a video program.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.models.errors import UsageError, reason_of
from slipstream.models.outside import LONGEST_REASON, quoted, read_limited, shown_path

if TYPE_CHECKING:  # imported where they are needed: the interface starts faster without them
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

MOST_BYTES: Final = 20 << 20
MOST_PIXELS: Final = 50_000_000
_FORMATS: Final = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
_KINDS: Final = "PNG, JPEG, GIF, BMP or WebP"
_STARTS: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")
_WEBP: Final = re.compile(rb"RIFF.{4}WEBPVP8[ LX]", re.DOTALL)
_WEBP_HEAD: Final = 30  # bytes of a header that contain the size, in all three kinds of WebP
_SUFFIXES: Final = frozenset(
    {
        *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib"),
        *(".webp", ".avif", ".heic", ".heif", ".tif", ".tiff"),
    }
)
_ORIENTATION: Final = 0x0112
_TURNED: Final = frozenset({5, 6, 7, 8})  # values of the EXIF orientation that swap width and height
_EDGE: Final = 200  # maximum ratio of the longest side to the shortest: encoders split longer strips badly


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The size and hash of an image, without its pixels."""

    sha256: str  # hash of the file
    bytes: int
    width: int
    height: int


def named_like_image(name: str) -> bool:
    """Whether a file's name has the ending of an image, even of a kind that cannot be read."""
    return Path(name).suffix.lower() in _SUFFIXES


def read_image(path: Path) -> bytes:
    try:
        raw = read_limited(path, MOST_BYTES)
    except (OSError, ValueError) as error:  # a zero byte in a name is a ValueError
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"cannot read the image {shown_path(path)}: {reason}.", f"Name an image of at most {MOST_BYTES >> 20} MB."
        ) from error
    if not (raw.startswith(_STARTS) or _WEBP.match(raw)):
        raise UsageError(f"{shown_path(path)} is no {_KINDS} image.", "Convert it to PNG or JPEG.")
    return raw


def facts_of(raw: bytes, name: str) -> ImageFacts:
    with _opened(raw, name) as image:
        width, height = image.size
        if _turns(image) and image.getexif().get(_ORIENTATION) in _TURNED:
            width, height = height, width
    return ImageFacts(hashlib.sha256(raw).hexdigest(), len(raw), width, height)


def _turns(image: Image) -> bool:
    """Whether viewers apply the EXIF orientation to an image of its format."""
    from PIL.JpegImagePlugin import JpegImageFile

    return isinstance(image, JpegImageFile) or image.format == "WEBP"  # phones write kinds of JPEG with other names


def pixels_of(raw: bytes, name: str) -> NDArray[np.uint8]:
    """Decodes an image, or the first frame, to [height, width, 3] RGB, turned upright, with transparency on white."""
    import numpy as np
    from PIL import ImageOps

    with _opened(raw, name) as image:
        picture: Image = image
        if _turns(image):
            picture = ImageOps.exif_transpose(image)
        return np.asarray(_flat(picture), np.uint8).copy()


def _flat(image: Image) -> Image:
    from PIL import Image as Pillow

    if image.mode.startswith("I"):  # 16 bits a pixel
        return image.convert("I").point(lambda value: value * (1 / 257)).convert("L").convert("RGB")
    if image.mode not in ("LA", "PA", "RGBA") and "transparency" not in image.info:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", clear.size, "white"), clear).convert("RGB")


@contextmanager
def _opened(raw: bytes, name: str) -> Iterator[Image]:
    from PIL import Image as Pillow  # imported late: many chats have no images
    from PIL import UnidentifiedImageError

    shown = shown_path(name)
    if _WEBP.match(raw):  # its decoder takes memory for the pixels as soon as it is opened
        _check_size(*_webp_size(raw, shown), shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Pillow.DecompressionBombWarning)
            with Pillow.open(io.BytesIO(raw), formats=_FORMATS) as image:
                _check_size(*image.size, shown)
                yield image
    except UsageError:
        raise
    except (Pillow.DecompressionBombWarning, Pillow.DecompressionBombError):
        raise _too_large(shown) from None
    except Exception as error:  # the edge to foreign code, which may raise anything
        reason = quoted(str(error).rstrip(". ") or type(error).__name__, LONGEST_REASON)
        if isinstance(error, UnidentifiedImageError):
            reason = f"its header is no {_KINDS} header"
        raise _damaged(shown, reason) from None


def _webp_size(raw: bytes, shown: str) -> tuple[int, int]:
    """Width and height from the header of a WebP file; for an animation, those of its canvas."""
    if len(raw) < _WEBP_HEAD:
        raise _damaged(shown, "it ends in its header")
    kind = raw[15:16]
    if kind == b"X":
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if kind == b"L":
        both = int.from_bytes(raw[21:25], "little")
        return 1 + (both & 0x3FFF), 1 + (both >> 14 & 0x3FFF)
    return int.from_bytes(raw[26:28], "little") & 0x3FFF, int.from_bytes(raw[28:30], "little") & 0x3FFF


def _check_size(width: int, height: int, shown: str) -> None:
    if width * height > MOST_PIXELS:
        raise _too_large(shown)
    if min(width, height) < 1:
        raise _damaged(shown, f"it has {width:,} × {height:,} pixels")
    if max(width, height) > _EDGE * min(width, height):
        raise UsageError(f"the image {shown} has {width:,} × {height:,} pixels.", "Cut out a part that is less narrow.")


def _damaged(shown: str, reason: str) -> UsageError:
    return UsageError(f"the image {shown} is damaged: {reason}.", "Open it elsewhere and save it again.")


def _too_large(shown: str) -> UsageError:
    return UsageError(
        f"the image {shown} has more than {MOST_PIXELS // 1_000_000} million pixels.", "Make it smaller first."
    )
