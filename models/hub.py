"""The model hub: finds repositories with GGUF files, and what is in them."""

from __future__ import annotations

from slipstream.models.gguf import Header
from slipstream.models.hub_types import Quant, RemoteFile, RepoSummary, Sort

__all__ = ["Hub", "Quant", "RemoteFile", "RepoSummary", "Sort"]


class Hub:
    """Asks the hub; every call blocks, and raises an ``OfflineError`` at once where the network is not to be used.

    Attributes:
        endpoint: The hub's address, from ``HF_ENDPOINT`` or the usual one.
        offline: Whether nothing may be sent; may be changed at any time.
    """

    endpoint: str
    offline: bool

    def __init__(self, endpoint: str | None = None, offline: bool | None = None) -> None:
        """Keeps where the hub is; nothing is loaded or sent yet.

        Args:
            endpoint: The hub's address; None for ``HF_ENDPOINT`` or the usual one.
            offline: Whether to stay off the network; None for what ``HF_HUB_OFFLINE`` says.

        Raises:
            UsageError: If the address is none.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def files(self, repo: str, revision: str | None = None) -> list[RemoteFile]:
        """Every file of a repository at its newest commit, or at the given one.

        Raises:
            HubError: As above; also if there is no such repository, or its licence was not accepted yet.
        """
        raise NotImplementedError

    def quants(self, repo: str, revision: str | None = None) -> list[Quant]:
        """The quantizations in a repository, smallest first; projectors and importance matrices are left out.

        Raises:
            HubError: As above.
        """
        raise NotImplementedError

    def card(self, repo: str, revision: str | None = None) -> str:
        """A repository's model card as Markdown, without its metadata; empty if it has none.

        Raises:
            HubError: As above.
        """
        raise NotImplementedError

    def header(self, file: RemoteFile, *further: RemoteFile) -> Header:
        """Reads a model's header by fetching only its first bytes, a few megabytes at a time until it is whole.

        Args:
            file: The model, or the first part of a split one.
            further: The other parts, in order; without them the tensors of the first part alone are known.

        Raises:
            HubError: As above.
            ModelFileError: If it is no GGUF file, damaged, or would endanger llama.cpp.
        """
        raise NotImplementedError
