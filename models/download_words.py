"""Why a download cannot go on, in words."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from slipstream.models.errors import DownloadError, reason_of
from slipstream.models.hub_types import RemoteFile
from slipstream.models.quoting import shown_path

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_KEPT: Final = "What was fetched is kept"


def gigabytes(count: int) -> str:
    """A number of bytes, short."""
    return f"{count / 1e9:.1f} GB" if count >= 100_000_000 else f"{count / 1e6:.1f} MB"


def disk_error(path: Path, error: OSError) -> DownloadError:
    """A file or folder that cannot be written."""
    reason = reason_of(error)
    hint = "Check the folder and its permissions, or choose another."
    if error.errno in _FULL:
        return disk_full(path)
    if error.errno == errno.EFBIG:
        reason, hint = "the disk takes no files that large", "Choose a folder on another disk; FAT32 ends at 4 GiB."
    elif error.errno == errno.ENAMETOOLONG:
        hint = "Choose a folder with a shorter path."
    return DownloadError(f"cannot write {shown_path(path)}: {reason}.", hint)


def disk_full(path: Path) -> DownloadError:
    """The disk filled up on the way."""
    return DownloadError(
        f"the disk with {shown_path(path.parent)} is full.", f"{_KEPT}: free some room there, then resume."
    )


def too_little_room(folder: Path, needed: int, free: int, reserve: int) -> DownloadError:
    """The disk would fill up on the way."""
    short = needed + reserve - free
    return DownloadError(
        f"not enough room in {shown_path(folder)}: {gigabytes(needed)} to fetch, {gigabytes(free)} free.",
        f"Free {gigabytes(short)} there ({gigabytes(reserve)} stay unused), or choose a smaller quantization.",
    )


def held(file: RemoteFile, holder: str) -> DownloadError:
    """Someone else downloads it."""
    return DownloadError(
        f"{shown_path(file.name)} is being downloaded by {holder}.", "Wait until that is done, or stop it there."
    )


def damaged(file: RemoteFile, wanted: str, got: str) -> DownloadError:
    """The bytes are not those that the hub promised."""
    return DownloadError(
        f"{shown_path(file.name)} arrived damaged: its sha256 is {got[:12]}…, not {wanted[:12]}….",
        "It was removed. Download it again; if it happens again, something on the way changes it.",
    )


def changed(file: RemoteFile) -> DownloadError:
    """The file on the hub is not the one that was listed."""
    return DownloadError(
        f"{shown_path(file.name)} on the hub is not the file that was listed: it was changed.",
        "Look up the repository again, then download what it has now.",
    )


def gave_up(file: RemoteFile, why: str, tries: int) -> DownloadError:
    """The network, or the hub, failed too often in a row."""
    return DownloadError(
        f"{shown_path(file.name)}: {why}, {tries} times in a row.", f"{_KEPT}: check the network, then resume."
    )


def told_to_wait(file: RemoteFile, why: str, seconds: int) -> DownloadError:
    """The hub wants to be left alone for longer than a download waits."""
    return DownloadError(f"{shown_path(file.name)}: {why}.", f"{_KEPT}: resume in {-(-seconds // 60)} minutes.")


def keeps_changing(file: RemoteFile) -> DownloadError:
    """Begun anew too often."""
    return DownloadError(
        f"{shown_path(file.name)} changes on the hub while it is fetched.", "Wait until its publisher is done."
    )
