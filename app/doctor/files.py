"""Whether what Slipstream keeps, and what it brings along, is in order."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from slipstream.app.model_choice import BUNDLED_DRAFT, BUNDLED_TARGET
from slipstream.app.paths import HOME_VARIABLE, Paths
from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.gguf import read_header
from slipstream.models.quoting import shown_path
from slipstream.models.vocabulary import check_vocabulary


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is kept.

    Attributes:
        name: What is kept there.
        path: The folder or file.
        exists: Whether it is there already; it is made when it is needed.
        free_bytes: Bytes that are free on its disk.
        problem: Why nothing can be written there; empty if something can.
    """

    name: str
    path: Path
    exists: bool
    free_bytes: int
    problem: str = ""


def places(paths: Paths) -> list[Place]:
    """Tries to write where each thing is kept, or will be; nothing is left behind."""
    return [_place(name, path) for name, path in paths.rows() if name != "bundled"]


def _place(name: str, path: Path) -> Place:
    folder = path if path.is_dir() else path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = reason_of(error)
        hint = f"Fix its rights, or set {HOME_VARIABLE} to a folder that you can write to."
        return Place(name, path, path.exists(), 0, f"cannot write to {shown_path(folder)}: {reason}. {hint}")
    return Place(name, path, path.exists(), free)


def bundled_problems(folder: Path) -> list[str]:
    """Looks at the models that ship with Slipstream: there, well formed, and the same bytes as in the package."""
    problems = []
    for name in (BUNDLED_TARGET, BUNDLED_DRAFT):
        if not (folder / name).is_file():
            problems.append(f"the bundled model is incomplete: {shown_path(folder / name)} is missing.")
    recorded = _recorded()
    for path in sorted(folder.glob("*.gguf")):
        try:
            header = read_header(path)
            if path.name in (BUNDLED_TARGET, BUNDLED_DRAFT):
                check_vocabulary(header)
        except SlipstreamError as error:
            problems.append(f"the bundled model is damaged: {error.title}")
            continue
        digest = recorded.get(path.resolve())
        if digest and digest != _digest(path):
            problems.append(f"the bundled model is damaged: {shown_path(path)} is not what was installed.")
    return problems


def _recorded() -> dict[Path, str]:
    """Digests of the package's files as the installer wrote them down; none where it runs from its sources."""
    try:
        files = importlib.metadata.files("slipstream") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {
        Path(str(file.locate())).resolve(): file.hash.value
        for file in files
        if file.suffix == ".gguf" and file.hash and file.hash.mode == "sha256"
    }


def _digest(path: Path) -> str:
    """SHA-256 as installers write it: base64 for addresses, no padding."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
