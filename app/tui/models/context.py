"""What the model screen needs of a manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from textual.message_pump import MessagePump

from slipstream.app.settings.values import HubSettings
from slipstream.app.tui.parts.run_in_thread import run_in_thread
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # the chat is on the screen before any of this is needed
    from slipstream.app.library.manager import CatalogOffer, QuantOffer, Removal
    from slipstream.app.protocol import Load
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
    """Finds, fetches, pairs and removes models; ``slipstream.app.library.manager.ModelManager`` is one.

    Everything but ``jobs``, ``pause`` and ``resume`` may block, and may be called from several threads; whatever fails
    raises a ``SlipstreamError``.
    """

    @property
    def offline(self) -> bool:
        """Whether the hub is not to be asked; known at once."""

    def borrow(self, rpc: str) -> None:
        """Counts the devices that other machines lend."""

    def lenders(self) -> list[Lender]:
        """The machines that lend their devices."""

    def stay_offline(self, wanted: bool) -> None:
        """Asks the hub no more, or again where the environment allows it; returns at once."""

    def devices(self) -> list[Device]:
        """What this machine computes with."""

    # --- what is here ---------------------------------------------------------------------------------------------

    def installed(self) -> list[Installed]:
        """Every model on this machine."""

    def fit_of(self, model: Installed) -> Fit:
        """How an installed model runs here."""

    def speed_of(self, model: Installed, pair: PairOffer | None) -> Prediction | None:
        """How fast an installed model writes here, alone and with a drafter; None where that cannot be told."""

    def pairs(self, name: str) -> list[PairOffer]:
        """The drafters for a model, best first; those that cannot serve it last, with the reason."""

    def load_of(self, model: Installed, pair: PairOffer | None = None) -> Load:
        """What loads a model as it fits this machine, with this drafter or the best that is here; files are checked."""

    def make_usual(self, model: Installed) -> None:
        """Makes a model the default from now on."""

    def import_file(
        self, path: Path, how: Literal["link", "copy"], on_progress: Callable[[int, int], None]
    ) -> Installed:
        """Makes a file from elsewhere one of ours."""

    def verify(self, name: str, on_progress: Callable[[int, int], None], cancelled: Callable[[], bool]) -> Checked:
        """Reads every byte of a model and says what is wrong; ends with ``KeyboardInterrupt`` where it is cancelled."""

    def removal(self, name: str) -> Removal:
        """What removing a model would do; nothing is done yet."""

    def remove(self, name: str) -> Removed:
        """Puts a model of ours into the trash."""

    def undo(self) -> Removed:
        """Brings back what was removed last."""

    # --- what there is elsewhere ----------------------------------------------------------------------------------

    def offers(self) -> list[CatalogOffer]:
        """The catalogue, best for this machine first; asks no network."""

    def offer_for_this_machine(self) -> CatalogOffer | None:
        """The pair to begin with; None where none fits or a real model is here already. Asks no network."""

    def search(self, text: str, sort: Sort = "downloads") -> list[RepoSummary]:
        """Finds repositories on the hub."""

    def quants(self, repo: str) -> list[QuantOffer]:
        """The quantizations of a repository, each with how it would run here."""

    def card(self, repo: str) -> str:
        """A repository's model card as Markdown."""

    # --- downloads ------------------------------------------------------------------------------------------------

    def fetch(self, quant: Quant) -> Job:
        """Begins a download, which goes on by itself; what has come is checked and installed."""

    def fetch_pair(self, pair: CatalogPair) -> list[Job]:
        """Begins to download a target and its drafter; what is here already is left out."""

    def fetch_file(self, file: CatalogFile) -> Job:
        """Begins to download a file of the catalogue."""

    def jobs(self) -> list[Job]:
        """All downloads, unfinished ones of earlier runs included; returns at once."""

    def pause(self, id: str) -> None:
        """Stops a download and keeps what came; returns at once."""

    def resume(self, id: str) -> None:
        """Goes on with a paused or failed download; returns at once."""

    def cancel(self, id: str) -> Discarded:
        """Stops a download and removes what it fetched."""

    def close(self) -> None:
        """Pauses all downloads; they can go on at the next start."""


class ModelsAccess:
    """The manager, made once, in the thread that first asks for it."""

    def __init__(self, make: Callable[[], Models]) -> None:
        """Keeps how to make it."""
        self._make = make
        self._lock = threading.Lock()
        self._hub: HubSettings | None = None
        self._rpc = ""
        self.made: Models | None = None
        """The manager, once it is there."""

    def open(self) -> Models:
        """The manager; may take a moment."""
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
        """Asks the manager in a thread; ``then`` or ``failed`` gets the answer, see ``run_in_thread``."""
        run_in_thread(node, lambda: what(self.open()), then, failed)

    def apply(self, hub: HubSettings, rpc: str) -> None:
        """Goes on as the settings say."""
        self._hub, self._rpc = hub, rpc
        self._tell()

    @property
    def offers(self) -> bool:
        """Whether a model is offered where only the bundled one is here."""
        return self._hub is None or self._hub.offer

    def _tell(self) -> None:
        if self.made and self._hub:
            self.made.stay_offline(self._hub.offline)
            self.made.borrow(self._rpc)


def manager() -> Models:
    """The manager of this machine's models; it loads much, so it is called in a thread when it is first needed."""
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.platform.paths import Paths

    return ModelManager(Paths.default())
