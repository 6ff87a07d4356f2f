"""The model manager: one front for the commands and the screen."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import choose, make_usual
from slipstream.app.models.history import ModelHistory
from slipstream.app.models.named import store_of
from slipstream.app.models.offers import CatalogOffer, QuantOffer, Removal, catalog_offers, quant_offers
from slipstream.app.models.pairs import best_pair, checked_header, load_with, offers_for, that_fits
from slipstream.app.models.references import Reference, chosen, in_catalog, reference
from slipstream.app.paths import Paths, private_folder
from slipstream.app.settings.reading import load
from slipstream.models.catalog import Catalog, CatalogFile, CatalogPair, catalog
from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.fit import Fit, fit
from slipstream.models.hub_address import told_offline
from slipstream.models.pairing import PairOffer
from slipstream.models.runtime.devices import Device, devices
from slipstream.models.store import Checked, Installed, ModelStore, Removed
from slipstream.models.store_import import How, OnProgress

if TYPE_CHECKING:  # the hub's library is loaded when the hub is first asked
    from slipstream.models.download import Downloads
    from slipstream.models.download_types import Discarded, Job, Progress
    from slipstream.models.hub import Hub
    from slipstream.models.hub_types import Quant, RepoSummary, Sort

__all__ = ["CatalogOffer", "ModelManager", "QuantOffer", "Removal"]


class ModelManager:
    """Everything that can be done with models; calls block, so an interface makes them in a thread."""

    def __init__(
        self, paths: Paths, hub: Hub | None = None, store: ModelStore | None = None, downloads: Downloads | None = None
    ) -> None:
        """Keeps its parts; the hub's library is loaded only when the hub is first asked."""
        self.paths = paths
        self.store = store or store_of(paths)
        self._hub, self._downloads = hub, downloads
        self._stays_offline = load(paths.settings).settings.hub.offline
        self._devices: list[Device] | None = None
        self._lock = threading.RLock()

    @property
    def hub(self) -> Hub:
        """The hub."""
        with self._lock:
            if self._hub is None:
                from slipstream.models.hub import Hub

                self._hub = Hub(offline=True if self._stays_offline else None)
            return self._hub

    @property
    def downloads(self) -> Downloads:
        """The queue of downloads; what was begun in earlier runs is in it, paused."""
        with self._lock:
            if self._downloads is None:
                from slipstream.models.download import Downloads

                self._downloads = Downloads(self.hub, on_change=self._heard)
                self._downloads.restore(self.paths.models)
            return self._downloads

    @property
    def offline(self) -> bool:
        """Whether the hub is not to be asked."""
        return self.hub.offline

    def stay_offline(self, wanted: bool) -> None:
        """Asks the hub no more, or again where the environment allows it."""
        self._stays_offline = wanted
        if self._hub:
            self._hub.offline = wanted or told_offline(os.environ)

    def devices(self) -> list[Device]:
        """What this machine computes with; asked once, since memory that a model of ours takes is not gone for good."""
        with self._lock:
            self._devices = self._devices or devices()
            return self._devices

    def catalog(self) -> Catalog:
        """The catalogue, with the owner's own entries."""
        return catalog(self.paths.catalog)

    # --- what is here ---------------------------------------------------------------------------------------------

    def installed(self) -> list[Installed]:
        """Every model on this machine."""
        return self.store.installed()

    def fit_of(self, model: Installed) -> Fit:
        """How an installed model runs here; a ``ModelFileError`` says that it cannot be read."""
        return fit(checked_header(model), self.devices())

    def pairs(self, name: str) -> list[PairOffer]:
        """The drafters for a model, best first; those that cannot serve it last, with the reason.

        Raises:
            UsageError: If there is no such model.
            ModelFileError: If it is broken, or only drafts itself.
        """
        installed = self.installed()
        return self._pairs(self.store.find(name, installed), installed)

    def load_of(self, model: Installed, pair: PairOffer | None = None) -> Load:
        """What loads a model; the engine chooses context and layers on the GPU by what fits.

        Args:
            model: The model.
            pair: Who is to draft; None for the autopilot, with the best drafter that is here and fits beside the model.

        Raises:
            ModelFileError: If it is broken, or no model to chat with.
        """
        header = checked_header(model)
        shipped = model.origin == "bundled"
        if shipped and pair is None:
            return choose(self.paths, model.name)
        drafter = pair.method if pair else None
        pair = pair or that_fits(header, best_pair(self._pairs(model, self.installed())), self.devices)
        return load_with(self.paths, model.path, pair, drafter=drafter, same_text=shipped)

    def make_usual(self, model: Installed) -> None:
        """Takes a model from now on where nobody names one."""
        make_usual(self.paths, model.name)

    def import_file(
        self,
        path: Path,
        how: How = "link",
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Installed:
        """Makes a file from elsewhere one of ours."""
        private_folder(self.paths.models)
        return self.store.import_file(path, how, on_progress, cancelled)

    def verify(
        self,
        name: str,
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Checked:
        """Reads every byte of a model and says what is wrong; ends with ``KeyboardInterrupt`` where it is cancelled."""
        return self.store.verify(name, on_progress, cancelled)

    def removal(self, name: str) -> Removal:
        """What removing a model would do; nothing is done yet.

        Raises:
            UsageError: If there is no such model, or it is not ours to remove.
        """
        model = self.store.removable(name)
        chats = ModelHistory(self.paths.chats).chats_of(model.fingerprint) if model.fingerprint else ()
        return Removal(model, self.store.frees(model), chats)

    def remove(self, name: str, now: bool = False) -> Removed:
        """Puts a model of ours into the trash, or deletes it for good now."""
        return self.store.remove(name, now)

    def undo(self) -> Removed:
        """Brings back what was removed last."""
        return self.store.undo()

    # --- what there is elsewhere ----------------------------------------------------------------------------------

    def offers(self) -> list[CatalogOffer]:
        """The catalogue, best for this machine first; asks no network."""
        return catalog_offers(self.catalog().pairs, self.devices(), self.installed())

    def offer_for_this_machine(self) -> CatalogOffer | None:
        """The pair to begin with; None where none fits or a real model is here already. Asks no network."""
        if any(model.usable and model.origin != "bundled" for model in self.installed()):
            return None
        best = next(iter(self.offers()), None)
        return best if best and best.fit and best.fit.verdict != "too big" else None

    def search(self, text: str, sort: Sort = "downloads", limit: int = 30) -> list[RepoSummary]:
        """Finds repositories on the hub."""
        return self.hub.search(text, sort, limit)

    def card(self, repo: str) -> str:
        """A repository's model card as Markdown."""
        return self.hub.card(repo)

    def quants(self, repo: str, revision: str | None = None) -> list[QuantOffer]:
        """The quantizations of a repository, each with how it would run here."""
        quants = self.hub.quants(repo, revision)
        known = next((each for each in self.hub.search(repo, limit=1) if each.id.lower() == repo.lower()), None)
        params, context = (known.total_params, known.context) if known else (0, 0)
        return quant_offers(quants, params, context, self.devices(), self.installed())

    def wanted(self, text: str) -> QuantOffer:
        """What a person means by ``owner/name:Q4_K_M``, an address, or a name of the catalogue.

        Raises:
            UsageError: If it names nothing.
        """
        return self._offer(reference(text, self.catalog()))

    def drafter_of(self, offer: PairOffer) -> QuantOffer:
        """What is to be fetched for a pair whose drafter is not here.

        Raises:
            SlipstreamError: If the repository has changed since the catalogue was written.
        """
        assert offer.fetch is not None  # a drafter that is here is not fetched
        return self._offer(in_catalog(offer.fetch))

    # --- downloads ------------------------------------------------------------------------------------------------

    def pull(
        self,
        quant: Quant,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Installed | None:
        """Downloads a quantization, checks it and takes it in; what came before a stop is kept.

        Args:
            quant: As :meth:`quants` gives it.
            on_progress: Hears how far it is.
            cancelled: Asked often; True stops, and the same call goes on later.

        Returns:
            The model; None if it was stopped.
        """
        from slipstream.models.download import Download

        private_folder(self.paths.models)
        path = Download(self.hub, quant.files, self.paths.models).run(on_progress, cancelled)
        return None if path is None else self.store.adopt(path, quant.files)

    def fetch(self, quant: Quant) -> Job:
        """Begins a download, which goes on by itself; what has come is checked and installed."""
        private_folder(self.paths.models)
        return self.downloads.add(quant.files, self.paths.models)

    def fetch_pair(self, pair: CatalogPair) -> list[Job]:
        """Begins to download a target and its drafter; what is here already is left out."""
        files = [file for file in (pair.target, pair.drafter) if file and file.repo]
        offers = [self._offer(in_catalog(file)) for file in files]
        return [self.fetch(offer.quant) for offer in offers if not offer.installed]

    def fetch_file(self, file: CatalogFile) -> Job:
        """Begins to download a file of the catalogue."""
        return self.fetch(self._offer(in_catalog(file)).quant)

    def jobs(self) -> list[Job]:
        """All downloads, unfinished ones of earlier runs included."""
        return self.downloads.jobs()

    def pause(self, id: str) -> None:
        """Stops a download and keeps what came; returns at once."""
        self.downloads.pause(id)

    def resume(self, id: str) -> None:
        """Goes on with a paused or failed download; returns at once."""
        self.downloads.resume(id)

    def cancel(self, id: str) -> Discarded:
        """Stops a download and removes what it fetched."""
        return self.downloads.cancel(id)

    def close(self) -> None:
        """Pauses all downloads; to be called before the program ends."""
        if self._downloads is not None:
            self._downloads.close()

    def _pairs(self, model: Installed, installed: list[Installed]) -> list[PairOffer]:
        return offers_for(model, checked_header(model), installed, self.catalog(), self.paths)

    def _offer(self, wanted: Reference) -> QuantOffer:
        offers = self.quants(wanted.repo, wanted.revision)
        least = min((o.quant for o in offers if not o.quant.drafts), key=lambda quant: quant.size, default=None)
        best = next((offer.quant for offer in offers if offer.best), least)  # the smallest is the least too big
        quant = chosen(wanted, [offer.quant for offer in offers], best)
        sha256 = quant.files[0].sha256
        if wanted.sha256 and sha256 and wanted.sha256 != sha256:
            raise ModelFileError(
                f"{wanted.repo}/{wanted.file} on the hub is another file than the catalogue knows.",
                f"It was replaced there; to take it as it is now: slipstream models pull {wanted.repo}:{quant.label}.",
            )
        return next(offer for offer in offers if offer.quant is quant)

    def _heard(self, job: Job) -> None:
        """Takes in what a download of the queue has fetched; a file that is no model is listed with what is wrong."""
        if job.state == "done":
            with suppress(SlipstreamError):
                self.store.adopt(job.path, job.files)
