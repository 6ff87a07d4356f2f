"""Searches the model hub, and lists the files and quantizations of a repository."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from slipstream.models.errors import HubError, OfflineError
from slipstream.models.gguf.reader import Header, read_streams
from slipstream.models.hub.address import (
    checked_endpoint,
    checked_repo,
    disable_telemetry,
    file_address,
    is_repo,
    is_web_address,
    offline_by_environment,
    origin,
    repo_in,
    safe_name,
)
from slipstream.models.hub.types import Quant, RemoteFile, RepoSummary, Sort, is_projector, projector_rank
from slipstream.models.hub.words import host_of, odd_answer
from slipstream.models.outside import count_of, is_sha256, quoted

if TYPE_CHECKING:
    from slipstream.models.hub.client import Connection

_LABEL: Final = re.compile(
    r"""(?<![A-Za-z0-9])
    (?: (?:UD-)? (?:
            IQ\d_(?:XXS|XS|NL|S|M|L|K[A-Z]*) | Q\d_K(?:_(?:XXS|XS|XL|S|M|L|P))? | Q\d_[01](?:_\d_\d)?
          | TQ\d_0 | MXFP\d(?:_MOE)? | NVFP\d )
      | BF16 | FP?16 | FP?32 | Q\d )
    (?![A-Za-z0-9])""",
    re.IGNORECASE | re.VERBOSE,
)
_SPLIT: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NO_MODEL: Final = re.compile(
    # a model that was quantized with an importance matrix may have the word beside its quantization
    r"mmproj|^(?!.*(?<![a-z0-9])(?:i?q[1-9]_|b?f16)).*imatrix|(?<![a-z])lora(?![a-z])",
    re.IGNORECASE,
)
_DRAFTS: Final = re.compile(r"(?:^|/)mtp[-_/]|(?<![a-z0-9])(?:dflash|eagle-?3|dspark)(?![a-z])", re.IGNORECASE)
_SORTS: Final[dict[Sort, str]] = {
    "downloads": "downloads",
    "likes": "likes",
    "trending": "trendingScore",
    "updated": "lastModified",
}
_FACTS: Final = [("expand", name) for name in ("downloads", "likes", "gated", "lastModified", "tags", "gguf")]
_COMMIT: Final = re.compile(r"[A-Za-z0-9._/-]{1,100}")
_CARD: Final = 1 << 20
_METADATA: Final = re.compile(r"\A\ufeff?---\r?\n.*?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_PAGES: Final = 10
_LONGEST_TEXT: Final = 100
_FIRST: Final = 1 << 20  # bytes of the first request for a header: enough for models with small vocabularies


def label_of(name: str) -> str:
    """The quantization in a file's name or else in its folder's name, such as ``Q4_K_M``; empty if there is none."""
    folder, _, base = name.rpartition("/")
    for text in (base, folder):
        found = _LABEL.findall(text)
        if found:
            label = str(found[-1]).upper()
            return {"FP16": "F16", "FP32": "F32"}.get(label, label)
    return ""


def quants_of(files: Iterable[RemoteFile]) -> list[Quant]:
    """Groups files into quantizations, smallest first.

    Incomplete split models, importance matrices and LoRA adapters are left out. Every model gets the best projector
    (``mmproj``) of the top folder.
    """
    files = list(files)
    projectors = [file for file in files if is_projector(file.name) and "/" not in file.name]
    projector = min(projectors, key=lambda file: projector_rank(file.name), default=None)
    groups: dict[tuple[str, int], dict[int, RemoteFile]] = {}
    for file in files:
        if not file.name.lower().endswith(".gguf") or _NO_MODEL.search(file.name.rpartition("/")[2]):
            continue
        match = _SPLIT.fullmatch(file.name)
        key = (match["stem"], int(match["count"])) if match else (file.name[: -len(".gguf")], 1)
        groups.setdefault(key, {})[int(match["number"]) if match else 1] = file
    whole = [
        (stem, tuple(parts[number] for number in range(1, count + 1)))
        for (stem, count), parts in groups.items()
        if sorted(parts) == list(range(1, count + 1))
    ]
    whole.sort(key=lambda group: (group[0].count("/"), len(group[0]), group[0]))
    taken: set[str] = set()
    quants = [_quant(stem, parts, taken, projector) for stem, parts in whole]
    return sorted(quants, key=lambda quant: (quant.drafts, quant.size, quant.label))


def _quant(stem: str, parts: tuple[RemoteFile, ...], taken: set[str], projector: RemoteFile | None) -> Quant:
    drafts = bool(_DRAFTS.search(stem))
    label, base = label_of(stem), stem.rpartition("/")[2]
    for choice in ("" if drafts else label, base, stem):  # the shortest label that is not taken
        if choice and choice not in taken:
            break
    taken.add(choice)
    return Quant(choice, parts, sum(file.size for file in parts), drafts, None if drafts else projector)


class Hub:
    """Reads from the hub; calls block, and raise a ``HubError`` if the hub fails, is slow or offline mode is on."""

    def __init__(self, endpoint: str | None = None, offline: bool | None = None) -> None:
        """Takes from ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` what is None."""
        # whether offline mode is on; may be changed at any time. Nothing else of the program keeps it
        self.offline = offline_by_environment(os.environ) if offline is None else offline
        self._address = endpoint or os.environ.get("HF_ENDPOINT", "")
        self._connections: set[Connection] = set()

    @property
    def endpoint(self) -> str:
        return checked_endpoint(self._address)

    @property
    def host(self) -> str:
        return host_of(self.endpoint)

    def stop(self) -> bool:
        """Ends requests that other threads wait for, not downloads, with a ``HubError``; whether there were any."""
        waiting = list(self._connections)
        for connection in waiting:
            connection.stop()
        return bool(waiting)

    def search(self, text: str, sort: Sort = "downloads", limit: int = 30) -> list[RepoSummary]:
        """Finds repositories with GGUF files; one that is named, also by the address of a page, comes first."""
        self.check_online()
        named = repo_in(text, self.endpoint)
        asked = [("filter", "gguf"), ("sort", _SORTS[sort]), ("limit", str(limit)), *_FACTS]
        asked += [("search", named or text.strip())] if named or text.strip() else []
        with self._connected() as connection, self._understood("a list of models"):
            rows = self._listed(connection, f"{self.endpoint}/api/models?{urlencode(asked)}", limit)
        if named and named not in [row.id for row in rows]:
            try:
                with self._connected() as connection, self._understood("a model's facts"):
                    row = connection.json(f"{self.endpoint}/api/models/{named}?{urlencode(_FACTS)}")[0]
                    rows.insert(0, _summary(row))
            except HubError as error:
                if not rows:
                    raise error
        return rows[:limit]

    def files(self, repo: str, revision: str | None = None) -> list[RemoteFile]:
        """The files of a repository at its newest commit, or at ``revision``, without unsafe names (``safe_name``)."""
        checked_repo(repo)
        at = f"/revision/{quote(revision, safe='')}" if revision else ""
        with self._connected() as connection, self._understood("a list of files"):
            info = connection.json(f"{self.endpoint}/api/models/{repo}{at}?blobs=true")[0]
            commit = info.get("sha") or revision or "main"
            if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
                raise odd_answer(self.endpoint, "a list of files of no commit")
            siblings = info["siblings"] or []
            files = [self._file(repo, commit, each) for each in siblings if safe_name(each["rfilename"])]
        if siblings and not files:
            name = quoted(str(siblings[0]["rfilename"] or "nothing"))
            raise odd_answer(self.endpoint, f"names of files that no folder can hold, such as {name}")
        return files

    def quants(self, repo: str, revision: str | None = None) -> list[Quant]:
        files = self.files(repo, revision)
        quants = quants_of(files)
        if not quants:
            what = "its GGUF files are no models" if any(".gguf" in file.name for file in files) else "no GGUF file"
            raise HubError(
                f"{repo} has nothing to chat with: {what}.", "Search for a repository with GGUF in its name."
            )
        return quants

    def card(self, repo: str) -> str:
        """The model card as Markdown without its metadata; empty if there is none."""
        found = [file for file in self.files(repo) if file.name == "README.md"]
        if not found or not found[0].size:
            return ""
        with self._connected() as connection:
            count = min(found[0].size, _CARD)
            raw = connection.part(file_address(self.endpoint, found[0]), 0, count, found[0].size)
        return _METADATA.sub("", raw.decode(errors="replace"), count=1).strip()

    def header(self, file: RemoteFile, *further: RemoteFile) -> Header:
        """Reads a model's header from the first bytes of its files, a few megabytes at a time.

        Without the further parts, in order, it has the tensors of the first part only.
        """
        parts = (file, *further)
        with self._connected() as connection:
            starts = [_RemoteStart(connection, file_address(self.endpoint, part), part.size) for part in parts]
            streams: list[tuple[Any, int]] = [(start, part.size) for start, part in zip(starts, parts, strict=True)]
            return read_streams(Path(file.repo, file.name), streams)

    def check_online(self) -> None:
        if self.offline:
            raise OfflineError(
                "the model hub was not contacted: offline mode is on.",
                "Installed models work without the network. To go online, turn offline mode off or unset "
                "HF_HUB_OFFLINE.",
            )

    def _listed(self, connection: Connection, address: str, limit: int) -> list[RepoSummary]:
        rows: list[RepoSummary] = []
        for _ in range(_PAGES):
            found, following = connection.json(address)
            if not isinstance(found, list):
                raise ValueError
            rows += [_summary(row) for row in found if is_repo(row["id"])]
            if len(rows) >= limit or not found or not following:
                break
            if not is_web_address(following) or origin(following) != origin(self.endpoint):
                raise odd_answer(self.endpoint, "a list that goes on elsewhere")
            address = following
        return rows

    def _file(self, repo: str, commit: str, sibling: dict[str, Any]) -> RemoteFile:
        size, digest = count_of(sibling.get("size")), (sibling.get("lfs") or {}).get("sha256")
        if size is None:
            raise odd_answer(self.endpoint, "a list of files without their sizes")
        good = is_sha256(digest)
        return RemoteFile(repo, commit, sibling["rfilename"], size, digest if good else None)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        self.check_online()
        disable_telemetry()
        from slipstream.models.hub.client import Connection

        with Connection(self.endpoint) as connection:
            self._connections.add(connection)
            try:
                yield connection
            finally:
                self._connections.discard(connection)

    @contextmanager
    def _understood(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise odd_answer(self.endpoint, f"something that is not {what}") from error


class _RemoteStart(io.RawIOBase):
    def __init__(self, connection: Connection, address: str, size: int) -> None:
        self._connection, self._address, self._size = connection, address, size
        self._bytes = bytearray()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset < 0:
            raise OSError("a remote file is read from its start")
        self._position = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Reads up to ``size`` bytes, fetching the missing ones."""
        if size < 0:
            raise OSError("a remote file is not read whole")
        end = min(self._size, self._position + size)
        have = len(self._bytes)
        if end > have:
            count = min(self._size, max(end, have + _FIRST)) - have
            self._bytes += self._connection.part(self._address, have, count, self._size)
        out = bytes(self._bytes[self._position : end])
        self._position += len(out)
        return out


def _summary(row: dict[str, Any]) -> RepoSummary:
    facts, tags = row.get("gguf"), row.get("tags")
    facts = facts if isinstance(facts, dict) else {}
    licenses = [str(tag) for tag in tags if str(tag).startswith("license:")] if isinstance(tags, list) else []
    updated = None
    with suppress(ValueError):
        updated = datetime.fromisoformat(_text(row.get("lastModified")))
    return RepoSummary(
        row["id"],
        downloads=count_of(row.get("downloads")) or 0,
        likes=count_of(row.get("likes")) or 0,
        gated=bool(row.get("gated")),
        license=_text(licenses[0].removeprefix("license:")) if licenses else "",
        updated=updated,
        architecture=_text(facts.get("architecture")),
        context=count_of(facts.get("context_length")) or 0,
        total_params=count_of(facts.get("total")) or 0,
    )


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
