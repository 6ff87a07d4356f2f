"""The model manager: one front for the commands and the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from slipstream.app.paths import Paths
from slipstream.models.catalog import CatalogPair
from slipstream.models.fit import Fit
from slipstream.models.pairing import PairOffer
from slipstream.models.store import Checked, Installed, ModelStore, Removed

if TYPE_CHECKING:
    from slipstream.models.download import Downloads
    from slipstream.models.hub import Hub, Quant, RepoSummary


@dataclass(frozen=True, slots=True)
class QuantOffer:
    """A quantization in a repository.

    Attributes:
        quant: What the hub says.
        fit: How it would run here.
        best: Whether it is the one to take on this machine.
        installed: What it is called here, if it is here already; else empty.
    """

    quant: Quant
    fit: Fit
    best: bool
    installed: str


@dataclass(frozen=True, slots=True)
class CatalogOffer:
    """A pair of the catalogue, judged for this machine.

    Attributes:
        pair: The pair.
        fit: How the target and its drafter would run here; None where the catalogue does not know the size.
        memory: Bytes that both need at 4k, 8k and 32k tokens of context; empty where the size is not known.
        installed: What the target is called here, if it is here already; else empty.
    """

    pair: CatalogPair
    fit: Fit | None
    memory: dict[int, int]
    installed: str


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model would do.

    Attributes:
        model: The model.
        frees: Bytes that the disk would get back; a link holds none.
        chats: Titles of the chats that it replied in last, the newest first.
    """

    model: Installed
    frees: int
    chats: tuple[str, ...]


class ModelManager:
    """Everything that can be done with models; calls block, so an interface makes them in a thread."""

    def __init__(
        self,
        paths: Paths,
        hub: Hub | None = None,
        store: ModelStore | None = None,
        downloads: Downloads | None = None,
    ) -> None:
        """Keeps its parts; the hub's library is loaded only when the hub is first asked."""

    @property
    def store(self) -> ModelStore:
        """What is installed."""
        raise NotImplementedError

    @property
    def hub(self) -> Hub:
        """The hub."""
        raise NotImplementedError

    @property
    def downloads(self) -> Downloads:
        """The queue of downloads."""
        raise NotImplementedError

    def installed(self) -> list[Installed]:
        """Every model on this machine."""
        raise NotImplementedError

    def fit_of(self, model: Installed) -> Fit:
        """How an installed model runs here.

        Raises:
            ModelFileError: If it cannot be read.
        """
        raise NotImplementedError

    def search(self, text: str, sort: str = "downloads", limit: int = 30) -> list[RepoSummary]:
        """Finds repositories with GGUF files."""
        raise NotImplementedError

    def quants(self, repo: str, revision: str | None = None) -> list[QuantOffer]:
        """The quantizations of a repository, each with how it would run here."""
        raise NotImplementedError

    def offers(self) -> list[CatalogOffer]:
        """The catalogue, best for this machine first."""
        raise NotImplementedError

    def pull(
        self,
        quant: Quant,
        on_progress: Callable[[int, int], None],
        cancelled: Callable[[], bool],
    ) -> Installed:
        """Downloads a quantization, checks it and takes it in; what was fetched before a stop is kept.

        Args:
            quant: As :meth:`quants` gives it.
            on_progress: Hears verified bytes on disk and bytes in all.
            cancelled: Asked often; True stops, and the same call goes on later.
        """
        raise NotImplementedError

    def import_file(self, path: Path, how: Literal["link", "copy"] = "link") -> Installed:
        """Makes a file from elsewhere one of ours."""
        raise NotImplementedError

    def verify(
        self,
        name: str,
        on_progress: Callable[[int, int], None] = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Checked:
        """Reads every byte of a model and says what is wrong."""
        raise NotImplementedError

    def removal(self, name: str) -> Removal:
        """What removing a model would do; nothing is done yet."""
        raise NotImplementedError

    def remove(self, name: str) -> Removed:
        """Puts a model of ours into the trash."""
        raise NotImplementedError

    def undo(self) -> Removed:
        """Brings back what was removed last."""
        raise NotImplementedError

    def pairs(self, name: str) -> list[PairOffer]:
        """The drafters for a model, best first; those that cannot serve it last, with the reason."""
        raise NotImplementedError
