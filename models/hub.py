"""The model hub: finds repositories with GGUF files, and what is in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.models.errors import HubError
from slipstream.models.gguf import Header, read_streams
from slipstream.models.hub_address import (
    checked_endpoint,
    checked_repo,
    endpoint_from,
    file_address,
    is_repo,
    quieten,
    repo_in,
    safe_name,
    told_offline,
)
from slipstream.models.hub_header import RemoteStart
from slipstream.models.hub_quants import quants_of
from slipstream.models.hub_types import Quant, RemoteFile, RepoSummary, Sort
from slipstream.models.hub_words import odd_answer, offline

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

__all__ = ["Hub", "Quant", "RemoteFile", "RepoSummary", "Sort"]

_SORTS: Final[dict[Sort, Any]] = {
    "downloads": "downloads",
    "likes": "likes",
    "trending": "trending_score",
    "updated": "last_modified",
}
_TOLD: Final[list[Any]] = ["downloads", "likes", "gated", "lastModified", "tags", "gguf"]
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CARD: Final = 1 << 20
_METADATA: Final = re.compile(r"\A\ufeff?---\r?\n.*?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


class Hub:
    """Asks the hub; every call blocks, and raises an ``OfflineError`` at once where the network is not to be used.

    Attributes:
        endpoint: The hub's address, from ``HF_ENDPOINT`` or the usual one.
        offline: Whether nothing may be sent; may be changed at any time.
    """

    def __init__(self, endpoint: str | None = None, offline: bool | None = None) -> None:
        """Keeps where the hub is; nothing is loaded or sent yet.

        Args:
            endpoint: The hub's address; None for ``HF_ENDPOINT`` or the usual one.
            offline: Whether to stay off the network; None for what ``HF_HUB_OFFLINE`` says.

        Raises:
            UsageError: If the address is none.
        """
        self.endpoint = checked_endpoint(endpoint or endpoint_from(os.environ))
        self.offline = told_offline(os.environ) if offline is None else offline

    def search(
        self, text: str, sort: Sort = "downloads", limit: int = 30, author: str | None = None
    ) -> list[RepoSummary]:
        """Finds repositories with GGUF files.

        Args:
            text: Words, or ``owner/name``, or the address of a repository's page, which then comes first.
            sort: How they are ordered.
            limit: How many at most.
            author: Only those of this person or organization.

        Raises:
            HubError: If the hub cannot be reached or refuses; says which and what to do.
        """
        named = repo_in(text, self.endpoint)
        with self._asked("a list of models") as api:
            found = api.list_models(
                search=named or text.strip() or None,
                author=author,
                filter="gguf",
                sort=_SORTS[sort],
                limit=limit,
                expand=_TOLD,
            )
            rows = [_summary(info) for info in found if is_repo(info.id)]
        if named and author is None and named not in [row.id for row in rows]:
            try:
                with self._asked("a model's facts") as api:
                    rows.insert(0, _summary(api.model_info(named, expand=_TOLD)))
            except HubError as error:
                if not rows:
                    raise error
        return rows[:limit]

    def files(self, repo: str, revision: str | None = None) -> list[RemoteFile]:
        """Every file of a repository at its newest commit, or at the given one.

        Raises:
            HubError: As above; also if there is no such repository.
            UsageError: If the name is no repository's.
        """
        checked_repo(repo)
        with self._asked("a list of files") as api:
            info = api.model_info(repo, revision=revision, files_metadata=True)
            commit = info.sha or revision or "main"
            siblings = [sibling for sibling in info.siblings or [] if safe_name(sibling.rfilename)]
            return [self._file(repo, commit, sibling) for sibling in siblings]

    def quants(self, repo: str, revision: str | None = None) -> list[Quant]:
        """The quantizations in a repository, smallest first; projectors and importance matrices are left out.

        Raises:
            HubError: As above; also if it has no GGUF file at all.
        """
        files = self.files(repo, revision)
        quants = quants_of(files)
        if not quants:
            what = "its GGUF files are no models" if any(".gguf" in file.name for file in files) else "no GGUF file"
            raise HubError(
                f"{repo} has nothing to chat with: {what}.", "Search for a repository with GGUF in its name."
            )
        return quants

    def card(self, repo: str, revision: str | None = None) -> str:
        """A repository's model card as Markdown, without its metadata; empty if it has none.

        Raises:
            HubError: As above.
        """
        found = [file for file in self.files(repo, revision) if file.name == "README.md"]
        if not found or not found[0].size:
            return ""
        raw = self._bytes(found[0], 0, min(found[0].size, _CARD))
        return _METADATA.sub("", raw.decode(errors="replace"), count=1).strip()

    def header(self, file: RemoteFile, *further: RemoteFile) -> Header:
        """Reads a model's header by fetching only its first bytes, a few megabytes at a time until it is whole.

        Args:
            file: The model, or the first part of a split one.
            further: The other parts, in order; without them the tensors of the first part alone are known.

        Raises:
            HubError: As above.
            ModelFileError: If it is no GGUF file, damaged, or would endanger llama.cpp.
        """
        starts: list[Any] = [
            (RemoteStart(partial(self._bytes, part), part.size), part.size) for part in (file, *further)
        ]
        return read_streams(Path(file.repo, file.name), starts)

    def check_online(self) -> None:
        """Says at once that the network is not to be used.

        Raises:
            OfflineError: If it is not.
        """
        if self.offline:
            raise offline(self.endpoint)

    def _bytes(self, file: RemoteFile, start: int, count: int) -> bytes:
        self.check_online()
        quieten()
        from slipstream.models.hub_client import first_bytes

        return first_bytes(file_address(self.endpoint, file), self.endpoint, start, count, file.size)

    def _file(self, repo: str, commit: str, sibling: RepoSibling) -> RemoteFile:
        size, digest = sibling.size, sibling.lfs.sha256 if sibling.lfs else None
        if not isinstance(size, int) or size < 0:
            raise odd_answer(self.endpoint, "a list of files without their sizes")
        good = isinstance(digest, str) and _SHA256.fullmatch(digest)
        return RemoteFile(repo, commit, sibling.rfilename, size, digest if good else None)

    @contextmanager
    def _asked(self, what: str) -> Iterator[HfApi]:
        """Lends HfApi; an answer that it cannot make sense of becomes words."""
        self.check_online()
        quieten()
        from slipstream.models.hub_client import api

        try:
            yield api(self.endpoint)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise odd_answer(self.endpoint, f"something that is not {what}") from error


def _summary(info: ModelInfo) -> RepoSummary:
    facts = info.gguf if isinstance(info.gguf, dict) else {}
    tags = [tag for tag in info.tags or [] if isinstance(tag, str)]
    return RepoSummary(
        info.id,
        downloads=_count(info.downloads),
        likes=_count(info.likes),
        gated=bool(info.gated),
        license=next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), ""),
        updated=info.last_modified,
        architecture=str(facts.get("architecture") or ""),
        context=_count(facts.get("context_length")),
        total_params=_count(facts.get("total")),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
