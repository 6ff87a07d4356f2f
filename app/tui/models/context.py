"""The interface of the model manager, and access to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from textual.message_pump import MessagePump

from slipstream.app.settings.values import HubSettings
from slipstream.app.tui.parts.run_in_thread import run_in_thread
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.library.manager import CatalogOffer, QuantOffer, Removal
    from slipstream.app.protocol.requests import Load
    from slipstream.models.hub.progress import Discarded, Job
    from slipstream.models.hub.types import Quant, RepoSummary, Sort
    from slipstream.models.library.catalog import CatalogFile, CatalogPair
    from slipstream.models.library.pairing import PairOffer
    from slipstream.models.library.records import Checked, Installed, Removed
    from slipstream.models.llama.devices import Device
    from slipstream.models.llama.remote import Lender
    from slipstream.models.memory.fit import Fit
    from slipstream.models.memory.speed import Prediction

T = TypeVar("T")


class Models(Protocol):
    """Finds, fetches, pairs and removes models; ``slipstream.app.library.manager.ModelManager`` implements it.

    All but ``offline``, ``stay_offline``, ``jobs``, ``pause`` and ``resume`` may block. Thread-safe; failures raise a
    ``SlipstreamError``.
    """

    @property
    def offline(self) -> bool:
        """Whether requests to the hub are off; does not block."""

    def borrow(self, rpc: str) -> None:
        """Sets the remote machines whose devices are used."""

    def look_again(self, in_use: Collection[str]) -> None:
        """Makes the next call query the lenders again, except those that the chat's model uses; does not block."""

    def lenders(self) -> list[Lender]:
        """The remote machines that lend devices."""

    def stay_offline(self, wanted: bool) -> None:
        """Switches requests to the hub off, or on if the environment allows them; does not block."""

    def devices(self) -> list[Device]:
        """The local and remote compute devices."""

    # --- installed models -----------------------------------------------------------------------------------------

    def installed(self) -> list[Installed]:
        """Every model on this machine."""

    def fit_of(self, model: Installed) -> Fit:
        """Where an installed model fits in memory."""

    def speed_of(self, model: Installed, pair: PairOffer | None) -> Prediction | None:
        """Predicted speed of an installed model, plain and with a drafter; None if it cannot be predicted."""

    def pairs(self, name: str) -> list[PairOffer]:
        """The drafters for a model, best first; unusable ones last, with the reason."""

    def load_of(self, model: Installed, pair: PairOffer | None = None) -> Load:
        """The load request of a model with this drafter or the best installed one; checks the files."""

    def make_usual(self, model: Installed) -> None:
        """Makes a model the default."""

    def import_file(
        self, path: Path, how: Literal["link", "copy"], on_progress: Callable[[int, int], None]
    ) -> Installed:
        """Adds a model file to the library."""

    def verify(self, name: str, on_progress: Callable[[int, int], None], cancelled: Callable[[], bool]) -> Checked:
        """Hashes the files of a model; raises ``KeyboardInterrupt`` if it is cancelled."""

    def removal(self, name: str) -> Removal:
        """The effects of removing a model, without removing it."""

    def remove(self, name: str) -> Removed:
        """Moves a model of the library into the trash."""

    def undo(self) -> Removed:
        """Restores the model that was removed last."""

    # --- catalogue and hub ----------------------------------------------------------------------------------------

    def offers(self) -> list[CatalogOffer]:
        """The catalogue, best for this machine first; uses no network."""

    def offer_for_this_machine(self) -> CatalogOffer | None:
        """The pair to suggest to a new user; None if none fits or a model is installed. Uses no network."""

    def search(self, text: str, sort: Sort = "downloads") -> list[RepoSummary]:
        """Finds repositories on the hub."""

    def quants(self, repo: str) -> list[QuantOffer]:
        """The quantizations of a repository, each with its memory fit and predicted speed."""

    def card(self, repo: str) -> str:
        """A repository's model card as Markdown."""

    # --- downloads ------------------------------------------------------------------------------------------------

    def fetch(self, quant: Quant) -> Job:
        """Starts a download in the background; at its end, the model is verified and installed."""

    def fetch_pair(self, pair: CatalogPair) -> list[Job]:
        """Starts to download a target and its drafter; skips each that is installed."""

    def fetch_file(self, file: CatalogFile) -> Job:
        """Starts to download a file of the catalogue."""

    def jobs(self) -> list[Job]:
        """All downloads, including unfinished ones of earlier runs; does not block."""

    def pause(self, id: str) -> None:
        """Pauses a download and keeps its data; does not block."""

    def resume(self, id: str) -> None:
        """Resumes a paused or failed download; does not block."""

    def cancel(self, id: str) -> Discarded:
        """Stops a download and deletes its data."""

    def close(self) -> None:
        """Pauses all downloads; they can be resumed after a restart."""


class ModelsAccess:
    """Creates the manager on first use, in the calling thread."""

    def __init__(self, make: Callable[[], Models]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._hub: HubSettings | None = None
        self._rpc = ""
        self.made: Models | None = None
        """The manager; None before its first use."""

    def open(self) -> Models:
        """Returns the manager; may block."""
        with self._lock:
            if self.made is None:
                self.made = self._make()
                self._tell()
            return self.made

    def ask(
        self,
        node: MessagePump,
        what: Callable[[Models], T],
        then: Callable[[T], object],
        failed: Callable[[SlipstreamError], object],
    ) -> None:
        """Calls ``what`` with the manager in a thread, see ``run_in_thread``."""
        run_in_thread(node, lambda: what(self.open()), then, failed)

    def apply(self, hub: HubSettings, rpc: str) -> None:
        self._hub, self._rpc = hub, rpc
        self._tell()

    @property
    def offers(self) -> bool:
        """Whether to suggest a model if only the bundled one is installed."""
        return self._hub is None or self._hub.offer

    def _tell(self) -> None:
        if self.made and self._hub:
            self.made.stay_offline(self._hub.offline)
            self.made.borrow(self._rpc)


def manager() -> Models:
    """Creates the manager; call it in a thread, since its imports are slow."""
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.platform.paths import Paths

    return ModelManager(Paths.default())
