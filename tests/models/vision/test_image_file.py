"""Image files: what headers say, pixels, and one clear error for each damaged one."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.models.tiny_mmproj import write_picture

from slipstream.models.errors import UsageError
from slipstream.models.vision.image_file import MOST_BYTES, facts_of, named_like_image, pixels_of, read_image


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def webp(kind: bytes, width: int, height: int) -> bytes:
    """The header of a WebP file of any claimed size, with nothing behind it."""
    if kind == b"X":
        body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"L":
        body = b"\x2f" + (width - 1 | height - 1 << 14).to_bytes(4, "little") + bytes(5)
    else:
        body = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8" + kind + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("kind", ["JPEG", "MPO", "WEBP"])
def test_a_photo_stands_upright_whatever_file_the_phone_wrote(tmp_path: Path, kind: str, orientation: int) -> None:
    picture, exif = Image.new("RGB", (40, 20), "white"), Image.Exif()
    picture.paste("black", (0, 0, 10, 10))  # at the top left of the stored picture
    exif[0x0112] = orientation
    more = {"save_all": True, "append_images": [picture]} if kind == "MPO" else {}
    picture.save(tmp_path / "photo", kind, exif=exif, quality=95, **more)
    raw = (tmp_path / "photo").read_bytes()
    facts, pixels = facts_of(raw, "photo"), pixels_of(raw, "photo")
    size = (20, 40) if orientation in (6, 8) else (40, 20)
    assert (facts.width, facts.height) == size and pixels.shape[:2] == size[::-1]
    row, column = {1: (2, 2), 3: (-3, -3), 6: (2, -3), 8: (-3, 2)}[orientation]
    assert pixels[row, column].max() < 60 and pixels[-row, -column].min() > 200


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "webp"])
def test_each_format_is_read_with_its_size(tmp_path: Path, suffix: str) -> None:
    path = write_picture(tmp_path / f"it.{suffix}", size=(40, 30))
    raw = read_image(path)
    facts, pixels = facts_of(raw, path.name), pixels_of(raw, path.name)
    assert (facts.width, facts.height, facts.bytes) == (40, 30, path.stat().st_size)
    assert pixels.shape == (30, 40, 3) and pixels.dtype == np.uint8 and pixels.flags.c_contiguous
    assert named_like_image(path.name) and named_like_image("IT.WEBP") and not named_like_image("it.md")


@pytest.mark.parametrize("name", ["it.jpg", "it.webp"])
def test_a_photo_is_turned_upright(tmp_path: Path, name: str) -> None:
    picture = Image.new("RGB", (40, 30), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / name, exif=exif)
    raw = read_image(tmp_path / name)
    facts = facts_of(raw, name)
    assert (facts.width, facts.height) == (30, 40) and pixels_of(raw, name).shape == (40, 30, 3)


@pytest.mark.parametrize("name", ["it.webp", "it.gif"])
def test_of_an_animation_the_first_frame_is_read(tmp_path: Path, name: str) -> None:
    first, *others = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    first.save(tmp_path / name, save_all=True, append_images=others, lossless=True)
    assert (pixels_of(read_image(tmp_path / name), name) == (255, 0, 0)).all()
    raw = (tmp_path / name).read_bytes()
    assert Image.open(tmp_path / name).n_frames == 3  # type: ignore[attr-defined]
    rest = bytearray(raw)
    rest[-8:] = bytes(8)  # in the last frame, which is not decoded
    assert (pixels_of(bytes(rest), name) == (255, 0, 0)).all()


@pytest.mark.parametrize("lossless", [True, False])
def test_a_transparent_webp_lies_on_white(tmp_path: Path, lossless: bool) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "it.webp", lossless=lossless)
    assert pixels_of(read_image(tmp_path / "it.webp"), "it.webp").min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_what_is_transparent_grey_or_deep_becomes_red_green_and_blue(tmp_path: Path, mode: str) -> None:
    source = (
        Image.new("RGBA", (8, 8), (255, 0, 0, 0)).convert(mode) if mode != "I;16" else Image.new(mode, (8, 8), 65535)
    )
    source.save(tmp_path / "it.png")
    pixels = pixels_of((tmp_path / "it.png").read_bytes(), "it.png")
    assert pixels.shape == (8, 8, 3)
    if mode in ("LA", "RGBA", "I;16"):
        assert pixels.min() == 255, "a transparent image is white"


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("empty", b"", "is no PNG"),
        ("video", b"\0\0\0\x18ftypmp42" + bytes(64), "is no PNG"),
        ("riff", b"RIFF\x24\0\0\0WEBPVP9 " + bytes(64), "is no PNG"),
        ("webp", b"RIFF\x24\0\0\0WEBPVP8 " + bytes(64), "damaged"),
        ("webp start", webp(b"X", 64, 64)[:20], "damaged: it ends in its header"),
        ("webp empty", webp(b"X", 64, 64), "damaged"),
        ("webp lossless", webp(b"L", 64, 64), "damaged"),
        ("webp bomb", webp(b"X", 16_000_000, 4), "more than 50 million pixels"),
        ("webp canvas", webp(b"X", 16_384, 16_384), "more than 50 million pixels"),
        ("webp large", webp(b" ", 16_383, 16_383), "more than 50 million pixels"),
        ("webp strip", webp(b"L", 16_000, 2), "16,000 × 2 pixels"),
        ("start", b"\x89PNG\r\n\x1a\n", "damaged"),
        ("cut", png(64, 64, bytes(64 * 193))[:60], "damaged"),
        ("short", png(64, 64, b"\0" * 100), "damaged"),
        ("packed", png(64, 64)[:41] + b"\xff" * 40, "damaged"),
        ("bomb", png(60_000, 60_000), "more than 50 million pixels"),
        ("large", png(9_000, 9_000), "more than 50 million pixels"),
        ("strip", png(30_000, 1), "30,000 × 1 pixels"),
        ("nothing", png(0, 5), "damaged|0 × 5 pixels"),
        ("jpeg", b"\xff\xd8\xff\xe0" + bytes(40), "damaged"),
        ("gif", b"GIF89a" + b"\x40\0\x40\0" + bytes(3), "damaged"),
        ("bmp", b"BM" + b"\xff" * 60, "damaged|pixels"),
    ],
)
def test_a_damaged_image_is_one_clear_error(tmp_path: Path, name: str, raw: bytes, words: str) -> None:
    path = tmp_path / f"{name}.png"
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=words) as caught:
        pixels_of(read_image(path), path.name)
    assert caught.value.hint and "\n" not in str(caught.value)


def test_any_flipped_byte_is_an_error_or_an_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    for suffix in ("png", "jpg", "gif", "bmp", "webp"):
        whole = write_picture(tmp_path / f"it.{suffix}", size=(64, 48)).read_bytes()
        for _ in range(150):
            raw = bytearray(whole)
            for at in rng.integers(0, len(raw), 1 + rng.integers(4)):
                raw[at] = rng.integers(256)
            try:
                facts = facts_of(bytes(raw), "it")
                pixels = pixels_of(bytes(raw), "it")
            except UsageError:
                continue
            assert pixels.shape == (facts.height, facts.width, 3)


def test_what_is_too_large_or_no_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    for path, words in ((large, "more than"), (tmp_path, "directory"), (tmp_path / "none.png", "no such file")):
        with pytest.raises(UsageError, match=words):
            read_image(path)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it is opened"))
    for kind in (b" ", b"L", b"X"):
        with pytest.raises(UsageError, match="million pixels"):
            facts_of(webp(kind, 16_000, 16_000), "it.webp")
