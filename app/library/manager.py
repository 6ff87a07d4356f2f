"""The model manager's actions, shared by the commands and the screen."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.app.library.format import size
from slipstream.app.library.learned_gains import chats_of, reply_speeds
from slipstream.app.library.load_request import make_usual, projector_here, usual
from slipstream.app.library.offers import (
    CatalogOffer,
    QuantOffer,
    Removal,
    catalog_offers,
    first_offers,
    kept_speed,
    machine_speed,
    quant_offers,
)
from slipstream.app.library.pairs import best_pair, checked_header, load_with, offers_for, store_of, that_fits
from slipstream.app.library.references import Reference, chosen, in_catalog, reference
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths, private_folder
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.file import SettingsFile, load
from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.hub.address import offline_by_environment
from slipstream.models.hub.repositories import Hub
from slipstream.models.library.catalog import Catalog, CatalogFile, CatalogPair, catalog
from slipstream.models.library.import_model import How, OnProgress
from slipstream.models.library.pairing import PairOffer
from slipstream.models.library.places import gguf_files
from slipstream.models.library.store import InstalledModel
from slipstream.models.library.trash import freed_by
from slipstream.models.llama.devices import Device, devices, memory
from slipstream.models.llama.remote import Lender, ask, endpoints
from slipstream.models.memory.fit import Fit, FitOptions, fit
from slipstream.models.memory.need import projector_bytes
from slipstream.models.memory.speed import Bandwidth, Prediction, assumed, bytes_read, predict
from slipstream.models.outside import shown_path

if TYPE_CHECKING:  # the hub's library is loaded at the first request
    from slipstream.models.hub.downloads import Downloads
    from slipstream.models.hub.types import Progress, Quant, QueuedDownload, RemoteFile


class ModelManager:
    """All actions on models; calls block, so a screen makes them in a thread, and raise a ``SlipstreamError``."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.store = store = store_of(paths)
        self.installed, self.verify = store.installed, store.verify
        self.remove, self.undo = store.remove, store.undo
        self.hub = hub = Hub(offline=True if load(paths.settings).settings.hub.offline else None)
        self.search, self.card, self.stop_waiting = hub.search, hub.card, hub.stop
        self._downloads: Downloads | None = None
        self._own: list[Device] | None = None  # this machine's devices
        self._rpc, self._lenders = "", list[Lender]()
        self._asked = True  # whether ``_lenders`` is up to date
        self._answered = dict[str, Lender]()  # by endpoint, the last answer of each lender that lent something
        self._in_use = frozenset[str]()  # endpoints of the lenders that serve the chat's model
        self._machine: list[Bandwidth] | None = None
        self._lock = threading.RLock()

    @property
    def downloads(self) -> Downloads:
        """The queue of downloads; unfinished ones of earlier runs are in it, paused."""
        with self._lock:
            if self._downloads is None:
                from slipstream.models.hub.downloads import Downloads

                self._downloads = Downloads(self.hub, on_change=self._on_change, on_verified=self.store.record)
                self._downloads.restore(self.paths.models)
            return self._downloads

    @property
    def offline(self) -> bool:
        return self.hub.offline

    def waiting_for(self) -> str:
        return self.hub.host

    def stay_offline(self, wanted: bool) -> None:
        """Turns offline mode on or off; it stays on if the environment demands it."""
        self.hub.offline = wanted or offline_by_environment(os.environ)

    def borrow(self, rpc: str) -> None:
        """Sets the machines whose devices are used from the next call on, ``HOST:PORT,…``."""
        with self._lock:
            if rpc != self._rpc:
                self._rpc, self._asked = rpc, False

    def look_again(self, in_use: Collection[str]) -> None:
        """Forgets what other machines lend, except those ``in_use``, which answer one program at a time: the chat's."""
        with self._lock:
            self._in_use, self._asked = frozenset(in_use), False

    def lenders(self) -> list[Lender]:
        with self._lock:
            if not self._asked:
                self._lenders = [self._lender(endpoint) for endpoint in endpoints(self._rpc)]
                self._asked = True
            return self._lenders

    def devices(self) -> list[Device]:
        """The devices of this machine, read once, and the devices that other machines lend."""
        with self._lock:
            self._own = self._own or devices()
            return [*self._own, *(device for lender in self.lenders() for device in lender.devices)]

    def _lender(self, endpoint: str) -> Lender:
        if endpoint in self._in_use:
            return self._answered.get(endpoint, Lender(endpoint, problem="it serves this chat"))
        lender = ask(endpoint)
        if lender.devices:
            self._answered[endpoint] = lender
        return lender

    def machine(self) -> list[Bandwidth]:
        """The memory bandwidths of this machine; the first call may measure them."""
        with self._lock:
            self._machine = self._machine or machine_speed(self.paths.derived)
            return self._machine

    def catalog(self) -> Catalog:
        return catalog(self.paths.catalog)

    # --- installed models -----------------------------------------------------------------------------------------

    def fit_of(self, model: InstalledModel, drafter: PairOffer | None = None) -> Fit:
        """The placement of an installed model with its drafter, which is left out where there is no memory for it."""
        options = FitOptions(heads=projector_bytes(projector_here(self.paths, model.path).path))
        header = checked_header(model)
        if drafter and drafter.path:
            draft = read_header(drafter.path) if drafter.drafter else None
            with_it = replace(options, draft=draft, heads=options.heads + (0 if draft else drafter.size))
            if (found := fit(header, self.devices(), with_it)).verdict != "too big":
                return found
        return fit(header, self.devices(), options)

    def speed_of(self, model: InstalledModel) -> Prediction | None:
        """The speed of an installed model's replies, or a prediction; None if it cannot be predicted."""
        header = checked_header(model)
        if measured := reply_speeds(self.paths.chats).get(header.fingerprint):
            return Prediction(measured, "replies")
        return predict(sum(bytes_read(header).values()), fit(header, self.devices()), self.machine())

    def pairs(self, name: str) -> list[PairOffer]:
        """The drafters for a model, best first; unsuitable ones last, with the reason."""
        installed = self.installed()
        return self._pairs(self.store.find(name, installed), installed)

    def load_of(self, model: InstalledModel, pair: PairOffer | None = None) -> Load:
        """The request that loads a model; without ``pair``, with the autopilot and the best installed drafter."""
        header = checked_header(model)
        if model.origin == "bundled" and pair is None:
            return choose(self.paths, model.name)
        drafter = pair.method if pair else None
        pair = pair or that_fits(header, best_pair(self._pairs(model, self.installed())), self.devices)
        return load_with(self.paths, model, pair, drafter=drafter)

    def make_usual(self, model: InstalledModel) -> None:
        make_usual(self.paths, model.name)

    def import_file(
        self,
        path: Path,
        how: How = "link",
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> InstalledModel:
        """Imports a file; rejects a file that is larger than all memory of this machine."""
        weights = read_header(path.expanduser()).weight_bytes
        if weights > memory()[0]:  # then it may still fit with GPUs
            room = [device.total_bytes for device in self.devices()]
            if all(room) and weights > sum(room):
                raise ModelFileError(
                    f"{one_line(path.name)} needs {size(weights)} of memory, and this machine has {size(sum(room))}.",
                    "Import a smaller model or quantization.",
                )
        private_folder(self.paths.models)
        return self.store.import_file(path, how, on_progress, cancelled)

    def import_path(
        self,
        path: Path,
        how: How = "link",
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[InstalledModel]:
        """Imports a file, or the models of a folder: they are copied, or the folder is added to ``model.folders``."""
        folder = path.expanduser().absolute()
        if not folder.is_dir():
            return [self.import_file(path, how, on_progress, cancelled)]
        files = list(gguf_files(folder))
        if not files:
            raise UsageError(f"{shown_path(path)} has no .gguf files.", "Name a model file, or a folder that has some.")
        if how == "copy":
            return [self.import_file(file, how, on_progress, cancelled) for file in files]
        settings = SettingsFile(self.paths.settings)
        before = settings.kept.model.folders
        if str(folder) not in before.split(","):
            settings.change("model.folders", f"{before},{folder}".strip(","))
        return [model for model in self.installed() if model.path in files]

    def removal(self, name: str) -> Removal:
        model = self.store.removable(name)
        chats = chats_of(self.paths.chats, model.fingerprint) if model.fingerprint else ()
        return Removal(model, freed_by(model.files), chats)

    # --- catalogue and hub ----------------------------------------------------------------------------------------

    def offers(self) -> list[CatalogOffer]:
        """The catalogue, best for this machine first; needs no network."""
        return self._rated(self.devices(), self.installed(), self.machine())

    def offers_for_this_machine(self) -> list[CatalogOffer]:
        """The models to suggest on the first screen, see ``first_offers``; none once the user has another one.

        Needs no network, and measures nothing: without measurements it assumes a usual machine.
        """
        installed, devices = self.installed(), self.devices()
        gpu = any(device.kind in ("gpu", "igpu") for device in devices)
        machine = self._machine or kept_speed(self.paths.derived) or assumed(os.cpu_count() or 1, gpu)
        offers = first_offers(self._rated(devices, installed, machine))
        mine = [model for model in installed if model.usable and model.origin != "bundled"]
        if any(all(model.name != offer.installed for offer in offers) for model in mine):
            return []
        used = usual(self.paths)
        chosen = [model.name for model in mine if used in (model.name, str(model.path))]
        return [offer for offer in offers if offer.installed not in chosen]

    def _rated(
        self, devices: list[Device], installed: list[InstalledModel], machine: list[Bandwidth]
    ) -> list[CatalogOffer]:
        replies, bundled = reply_speeds(self.paths.chats), self.paths.bundled
        return catalog_offers(self.catalog().pairs, devices, installed, machine, replies=replies, bundled=bundled)

    def quants(self, repo: str, revision: str | None = None) -> list[QuantOffer]:
        """The quantizations of a repository, each rated for this machine."""
        quants = self.hub.quants(repo, revision)
        known = next((each for each in self.hub.search(repo, limit=1) if each.id.lower() == repo.lower()), None)
        params, context = (known.total_params, known.context) if known else (0, 0)
        return quant_offers(
            quants, params, context, devices=self.devices(), installed=self.installed(), machine=self.machine()
        )

    def wanted(self, text: str) -> QuantOffer:
        """Resolves ``owner/name:Q4_K_M``, an address, or a name of the catalogue."""
        return self._offer(reference(text, self.catalog()))

    def drafter_of(self, offer: PairOffer) -> QuantOffer:
        """The download for a pair whose drafter is not installed."""
        assert offer.fetch is not None  # only for a drafter that is not installed
        return self._offer(in_catalog(offer.fetch))

    # --- downloads ------------------------------------------------------------------------------------------------

    def pull(
        self,
        quant: Quant,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> InstalledModel | None:
        """Downloads, verifies and installs a quantization, its mmproj file first.

        None if ``cancelled``, which is polled, stopped it; the bytes are kept, and the same call resumes later.
        """
        from slipstream.models.hub.downloads import Download

        if not self.pull_projector(quant, on_progress, cancelled):
            return None
        download = Download(self.hub, quant.files, self.paths.models, on_verified=self.store.record)
        path = download.run(on_progress, cancelled)
        return None if path is None else self.store.listed(path)

    def pull_projector(
        self, quant: Quant, on_progress: Callable[[Progress], None], cancelled: Callable[[], bool]
    ) -> bool:
        """Downloads the mmproj file of a quantization if it is missing; returns False if it was stopped."""
        from slipstream.models.hub.downloads import Download

        private_folder(self.paths.models)
        projector = self.lacking(quant)
        if projector is None:
            return True
        return Download(self.hub, (projector,), self.paths.models).run(on_progress, cancelled) is not None

    def fetch(self, quant: Quant) -> QueuedDownload:
        """Queues a download and that of its mmproj file; finished downloads are verified and installed."""
        private_folder(self.paths.models)
        if projector := self.lacking(quant):
            self.downloads.add((projector,), self.paths.models)
        return self.downloads.add(quant.files, self.paths.models)

    def fetch_pair(self, pair: CatalogPair) -> list[QueuedDownload]:
        """Queues the downloads of a target and its drafter, unless they are installed."""
        files = [file for file in (pair.target, pair.drafter) if file and file.repo]
        offers = [self._offer(in_catalog(file)) for file in files]
        return [self.fetch(offer.quant) for offer in offers if not offer.installed]

    def fetch_file(self, file: CatalogFile) -> QueuedDownload:
        return self.fetch(self._offer(in_catalog(file)).quant)

    def jobs(self) -> list[QueuedDownload]:
        return self.downloads.jobs()

    def pause(self, id: str) -> None:
        self.downloads.pause(id)

    def resume(self, id: str) -> None:
        self.downloads.resume(id)

    def cancel(self, id: str) -> int:
        return self.downloads.cancel(id)

    def close(self) -> None:
        """Pauses all downloads; call it before the program ends."""
        if self._downloads is not None:
            self._downloads.close()

    def _pairs(self, model: InstalledModel, installed: list[InstalledModel]) -> list[PairOffer]:
        return offers_for(model, checked_header(model), installed, self.catalog(), self.paths)

    def lacking(self, quant: Quant) -> RemoteFile | None:
        """The mmproj file of a quantization if it has one that is missing here."""
        file = quant.projector
        return file if file and not file.path_in(self.paths.models).exists() else None

    def _offer(self, wanted: Reference) -> QuantOffer:
        offers = self.quants(wanted.repo, wanted.revision)
        least = min((o.quant for o in offers if not o.quant.drafts), key=lambda quant: quant.size, default=None)
        best = next((offer.quant for offer in offers if offer.best), least)  # if all are too big, the smallest
        quant = chosen(wanted, [offer.quant for offer in offers], best)
        sha256 = quant.files[0].sha256
        if wanted.sha256 and sha256 and wanted.sha256 != sha256:
            raise ModelFileError(
                f"{wanted.repo}/{wanted.file} on the hub is not the file of the catalogue.",
                f"It was replaced there; to take it as it is now: slipstream models pull {wanted.repo}:{quant.label}.",
            )
        return next(offer for offer in offers if offer.quant is quant)

    def _on_change(self, job: QueuedDownload) -> None:
        """Installs a finished download; a file that is not a model is listed with its problem."""
        if job.state == "done":
            with suppress(SlipstreamError):
                self.store.listed(job.path)
