"""The manager as the screen uses it: a queue that installs, offers for this machine, what loads a model."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.app.tui.scripted_commands import result
from tests.drafters.changed_file import changed
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer
from tests.models.kinds import write_kind
from tests.models.other_servers import LOOPBACK, free_port, lending, serving
from tests.models.tiny_mmproj import write_mmproj

from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.models_tables import catalog_table
from slipstream.app.library import offers as offering
from slipstream.app.library.drafter_status import quant_advice
from slipstream.app.library.heads_files import heads_for
from slipstream.app.library.learned_gains import gains_of
from slipstream.app.library.load_request import (
    BUNDLED_TARGET,
    TUNED_TARGET,
    head_files,
    remember_file,
    used_files,
    usual,
)
from slipstream.app.library.manager import ModelManager
from slipstream.app.library.offers import READING, CatalogOffer, is_quick, machine_speed, recommended
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.settings.file import SettingsFile, load
from slipstream.app.speed import Speed
from slipstream.app.tui.models.pairs import offered
from slipstream.drafters.autopilot.arm import ArmRecord
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.profile import learned_gains
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.errors import ModelFileError, UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.matching_heads import matching_heads
from slipstream.models.hub.types import Quant, QueuedDownload, RemoteFile
from slipstream.models.library.catalog import CatalogFile, CatalogPair
from slipstream.models.library.places import projector_beside
from slipstream.models.llama.devices import Device
from slipstream.models.memory.row_cost import ROWS
from slipstream.models.memory.speed import Bandwidth, Basis, Prediction, assumed

GB = 1 << 30
ROOMY = Device("CPU", "cpu", "Roomy", 64 * GB, 60 * GB)
SMALL = Device("CPU", "cpu", "Small", 8 * GB, 7 * GB)
GPU = Device("CUDA0", "gpu", "Fast", 24 * GB, 23 * GB)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.default({"SLIPSTREAM_HOME": str(tmp_path / "home")})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as hub:
        hub.add("acme/Large-GGUF", {"Large-Q8_0.gguf": larger(tmp_path)})
        hub.add("acme/Small-GGUF", {"Small-Q8_0.gguf": tiny_gguf(seed=2, q8_0=True)})
        hub.adopt(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def manager(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelManager]:
    with closing(on(monkeypatch, ModelManager(paths), ROOMY)) as made:
        yield made


def on(monkeypatch: pytest.MonkeyPatch, manager: ModelManager, *devices: Device) -> ModelManager:
    monkeypatch.setattr(manager, "devices", lambda: list(devices))
    return manager


def larger(folder: Path) -> bytes:
    source = write_kind(folder / "source.gguf", "llama")
    more = {f"blk.9.pad{n}.weight": np.zeros((64, 1024), np.float32) for n in range(2)}
    return changed(source, folder / "larger.gguf", {"general.name": "Large"}, more).read_bytes()


def put(paths: Paths, name: str, content: bytes) -> Path:
    path = paths.models / "acme" / "Models" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


PAIR = CatalogPair(
    "x",
    "draft",
    CatalogFile("Large", "acme/Large-GGUF", "Large-Q8_0.gguf"),
    CatalogFile("Small", "acme/Small-GGUF", "Small-Q8_0.gguf"),
)


def test_a_pair_is_fetched_in_the_queue_and_installed(server: HubServer, manager: ModelManager) -> None:
    jobs = manager.fetch_pair(PAIR)
    assert [manager.downloads.wait(job.id).state for job in jobs] == ["done", "done"]
    manager.close()  # the last word of a job is its installation
    installed = {model.name: model for model in manager.installed()}
    assert installed["large:Q8_0"].sha256 and installed["small:Q8_0"].repo == "acme/Small-GGUF"
    assert manager.fetch_pair(PAIR) == [] and not manager.verify("large").problem


@pytest.mark.parametrize("queued", [True, False])
def test_a_model_that_sees_comes_with_its_mmproj_file(
    server: HubServer, manager: ModelManager, tmp_path: Path, queued: bool
) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj-Eye-f16.gguf", "mlp", 32)
    server.add("acme/Eye-GGUF", {"Eye-F32.gguf": tiny_gguf(), mmproj.name: mmproj.read_bytes()})
    quant = manager.quants("acme/Eye-GGUF")[0].quant
    if queued:
        manager.fetch(quant)
        assert {manager.downloads.wait(job.id).state for job in manager.jobs()} == {"done"}
        manager.close()
    else:
        assert manager.pull(quant)
    (eye,) = [model for model in manager.installed() if model.role == "chat" and model.origin == "ours"]
    beside = projector_beside(eye.path)
    assert beside and beside.read_bytes() == mmproj.read_bytes() and manager.lacking(quant) is None
    assert manager.load_of(eye).mmproj == str(beside)
    assert manager.fit_of(eye).need.total > mmproj.stat().st_size + eye.size


def test_what_an_earlier_run_began_is_in_the_queue_and_goes_on(
    server: HubServer, manager: ModelManager, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hold_after(300_000)
    came = threading.Event()
    quant = manager.quants("acme/Large-GGUF")[0].quant

    def stop() -> bool:
        return came.is_set()

    assert manager.pull(quant, lambda progress: came.set() if progress.done else None, stop) is None
    server.hold_after(None)
    with closing(on(monkeypatch, ModelManager(paths), ROOMY)) as later:
        (job,) = later.jobs()
        assert isinstance(job, QueuedDownload) and job.state == "paused"
        later.resume(job.id)
        assert later.downloads.wait(job.id).state == "done"
    assert [model.name for model in manager.installed() if model.origin == "ours"] == ["large:Q8_0"]


def test_a_file_replaced_on_the_hub_is_not_taken_for_the_catalogues(server: HubServer, manager: ModelManager) -> None:
    known = CatalogFile("Small", "acme/Small-GGUF", "Small-Q8_0.gguf", sha256="a" * 64)
    with pytest.raises(ModelFileError, match="not the file of the catalogue") as stop:
        manager.fetch_file(known)
    assert "models pull acme/Small-GGUF:Q8_0" in stop.value.hint


def measured(reads: float, gpu: float = 0.0, basis: Basis = "measured") -> list[Bandwidth]:
    found = [Bandwidth("cpu", reads, basis)]
    return [*found, Bandwidth("gpu", gpu, basis)] if gpu else found


def test_the_catalogue_begins_with_what_runs_best_here(manager: ModelManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)

    def best(*devices: Device, machine: list[Bandwidth]) -> CatalogOffer:
        on(monkeypatch, manager, *devices)
        monkeypatch.setattr(manager, "machine", lambda: machine)
        return manager.offers()[0]

    laptop = best(ROOMY, machine=measured(20e9))
    assert laptop.runs and laptop.pair.evidence == "documentation" and laptop.speed
    assert laptop.speed.tok_per_s >= READING and "32B" not in laptop.pair.target.model  # though memory holds it
    quick = sum(is_quick(offer.speed) for offer in manager.offers())
    assert set(laptop.memory) == set(offering.CONTEXTS)
    desk = best(ROOMY, machine=measured(90e9))
    assert sum(is_quick(offer.speed) for offer in manager.offers()) > quick and is_quick(desk.speed)
    graphics = best(GPU, ROOMY, machine=measured(20e9, gpu=900e9))
    assert graphics.fit and graphics.fit.verdict == "gpu" and graphics.pair.target.about > desk.pair.target.about
    on(monkeypatch, manager, SMALL)
    runs = [offer.runs for offer in manager.offers()]
    assert runs == sorted(runs, reverse=True) and not all(runs)
    shown = recommended(manager.offers())
    assert all(offer.runs and offer.speed for offer in shown)
    names = [offer.pair.target.model for offer in shown]
    assert len(set(names)) == len(names)


def test_a_machine_is_measured_until_it_settles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = [5e9, 20e9, 10e9, 99e9]
    monkeypatch.setattr("slipstream.app.library.offers.bandwidth", lambda: measured(speeds.pop(0)))
    assert offering.kept_speed(tmp_path) == []
    assert [machine_speed(tmp_path) for _ in range(4)] == [
        measured(5e9),
        *[measured(20e9)] * 3,
    ]  # the busy one is mended
    assert len(speeds) == 1 and offering.kept_speed(tmp_path) == measured(20e9)
    (tmp_path / "machine_speed.json").write_text("another machine\n3\n{}\n")
    assert offering.kept_speed(tmp_path) == []
    monkeypatch.setattr("slipstream.app.library.offers.bandwidth", lambda: [])
    assert machine_speed(tmp_path) == []  # llama.cpp does not answer


def with_rows(reads: float = 90e9) -> list[Bandwidth]:
    """A processor that multiplies Q4_0 and Q8_0 by four rows at once, and Q4_1 row by row."""
    times = {"Q4_0": (0.01, 0.01, 0.015, 0.03, 0.06), "Q4_1": (0.01, 0.02, 0.04, 0.08, 0.16)}
    times["Q8_0"] = times["Q4_0"]
    return [Bandwidth("cpu", reads, rows={name: dict(zip(ROWS, ns, strict=True)) for name, ns in times.items()})]


@pytest.mark.parametrize(
    ("labels", "best"),
    [({"Q4_0": 4.7, "Q4_1": 5.1}, "Q4_0"), ({"Q4_0": 4.0, "Q4_1": 5.1}, "Q4_1"), ({"Q4_1": 5.1, "Q8_0": 8.5}, "Q8_0"),
     ({"Q4_0": 4.7, "IQ3_M": 5.0}, "IQ3_M")],
)  # fmt: skip
def test_of_two_quantizations_of_a_size_the_one_drafting_serves_is_best(labels: dict[str, float], best: str) -> None:
    quants = [Quant(label, (RemoteFile("a/b", "", label, 9),), int(GB * size)) for label, size in labels.items()]
    offers = offering.quant_offers(quants, 8 * 10**9, 8192, devices=[ROOMY], installed=[], machine=with_rows())
    assert [offer.quant.label for offer in offers if offer.best] == [best]


def test_a_file_that_gains_nothing_from_drafting_here_names_those_that_would(
    tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = read_header(write_kind(tmp_path / "m.gguf", "llama", q8_0=True))
    assert quant_advice(header, paths) == ""  # nothing is measured
    monkeypatch.setattr("slipstream.app.library.offers.bandwidth", with_rows)
    machine_speed(paths.derived)
    assert quant_advice(header, paths) == ""  # it gains
    rows = with_rows()[0].rows
    by_row = Bandwidth("cpu", 90e9, rows={**rows, "Q8_0": rows["Q4_1"]})
    monkeypatch.setattr("slipstream.app.library.offers.bandwidth", lambda: [by_row])
    (paths.derived / "machine_speed.json").unlink()
    machine_speed(paths.derived)
    assert "Q4_0" in quant_advice(header, paths)


def test_a_machine_that_was_busy_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = assumed(os.cpu_count() or 1, gpu=False)
    low = [measured(5e9, basis="busy")] * 2
    found: list[list[Bandwidth]] = [*low, *[measured(90e9, basis="busy")] * 2, *[measured(20e9)] * 4]
    monkeypatch.setattr("slipstream.app.library.offers.bandwidth", lambda: found.pop(0))
    assert [machine_speed(tmp_path) for _ in range(2)] == [usual] * 2 == [offering.kept_speed(tmp_path)] * 2
    assert [machine_speed(tmp_path) for _ in range(2)] == [measured(90e9, basis="busy")] * 2  # it is the best one
    (tmp_path / "machine_speed.json").unlink()
    assert machine_speed(tmp_path) == measured(20e9) == offering.kept_speed(tmp_path)
    assert [machine_speed(tmp_path) for _ in range(4)] == [measured(20e9)] * 4 and len(found) == 1


def test_the_first_offer_is_what_is_recommended(manager: ModelManager, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, manager, ROOMY)
    for cores, speed in product((2, 16), (0.6e9, 1.5e9, 3e9, 6e9, 20e9, 60e9)):
        monkeypatch.setattr(manager, "_machine", measured(speed))
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        offers = manager.offers()
        best = offering.best_offer(offers)
        small, *others = manager.offers_for_this_machine()
        assert small.pair.first and others == [best] * bool(best) and best == offering.best_offer(recommended(offers))
        assert small != best and (not best or recommended(offers)[0] == best)
        if best:
            assert is_quick(best.speed) and best.runs and not best.pair.untested
            assert best.pair.target.about <= cores * GB
        else:
            good = [offer for offer in recommended(offers) if is_quick(offer.speed) and offer.modest]
            assert all(offer.pair.untested or offer.pair.first for offer in good)
    tiny = next(offer for offer in manager.offers() if "SmolLM2-360M" in offer.pair.target.model)
    assert tiny.pair.untested and offering.best_offer([tiny]) is None  # its note: for tests


def test_the_table_of_the_catalogue_fits_a_terminal(manager: ModelManager, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, manager, ROOMY)
    monkeypatch.setattr(manager, "_machine", measured(20e9, basis="busy"))
    offers = manager.offers()
    whole = catalog_table(offers)
    assert max(map(len, whole.splitlines())) > 110 and "GB AT " in whole
    assert whole.endswith("measured while the machine was busy.") and "…" not in whole
    for width in (120, 80, 60):
        lines = catalog_table(offers, width).splitlines()
        assert max(map(len, lines)) <= width and len(lines) == len(whole.splitlines())
        assert lines[0].startswith("TARGET") and "DRAFTER" in lines[0] and lines[0].endswith("TOK/S")
    monkeypatch.setattr(manager, "_machine", measured(20e9))
    assert "busy" not in catalog_table(manager.offers())


def test_what_other_machines_lend_counts_once_they_are_named(paths: Paths) -> None:
    there, gone = serving(lending((20 * GB, 24 * GB))), f"{LOOPBACK}:{free_port()}"
    with closing(ModelManager(paths)) as manager:
        assert manager.lenders() == [] and not any(device.machine for device in manager.devices())
        manager.borrow(f"{there},{gone}")
        assert [bool(lender.problem) for lender in manager.lenders()] == [False, True]
        lent = [device for device in manager.devices() if device.machine]
        assert [(device.machine, device.free_bytes) for device in lent] == [(there, 20 * GB)]
        manager.borrow("")
        assert manager.lenders() == [] and not any(device.machine for device in manager.devices())


def test_a_machine_that_serves_the_chat_is_not_asked_and_its_last_answer_holds(paths: Paths) -> None:
    answer, asked = lending((20 * GB, 24 * GB)), list[str]()

    def counted(connection: socket.socket) -> None:
        asked.append("once more")
        answer(connection)

    there = serving(counted)
    with closing(ModelManager(paths)) as manager:
        manager.borrow(there)
        manager.look_again([there])
        assert manager.lenders()[0].problem == "it serves this chat" and not asked
        for in_use, times in (([], 1), ([there], 1), ([], 2)):
            manager.look_again(in_use)
            assert [device.free_bytes for device in manager.devices() if device.machine] == [20 * GB]
            assert [lender.problem for lender in manager.lenders()] == [""] and len(asked) == times


def test_pairs_are_offered_until_one_is_here(
    manager: ModelManager, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)

    def offered() -> list[str]:
        return [offer.pair.target.model for offer in manager.offers_for_this_machine()]

    monkeypatch.setattr("slipstream.app.library.manager.assumed", lambda *_: measured(1e8))
    assert offered() == ["SmolLM2-135M-Instruct"]  # nothing else would be quick enough
    monkeypatch.setattr("slipstream.app.library.manager.assumed", lambda *_: measured(30e9))
    small, better = manager.offers_for_this_machine()
    assert better.pair.drafter and better.fit and better.speed and not small.installed
    put(paths, "broken.gguf", b"")
    assert len(offered()) == 2
    path = put(paths, "SmolLM2-135M-Instruct.Q4_1.gguf", tiny_gguf())
    assert manager.offers_for_this_machine()[0].installed == "smollm2-135m-instruct:Q4_1"
    manager.make_usual(next(model for model in manager.installed() if model.path == path))
    assert offered() == [better.pair.target.model]  # the small one is in use
    put(paths, "Tiny-Q8_0.gguf", tiny_gguf(seed=2))
    assert offered() == []


def test_a_models_replies_replace_predictions(
    manager: ModelManager, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_machine", measured(30e9))
    put(paths, "SmolLM2-135M-Instruct.Q4_1.gguf", tiny_gguf())
    model = next(model for model in manager.installed() if model.repo == "acme/Models")

    with closing(ChatStore(paths.chats)) as store:
        for slower in (2.0, 0.5):
            replied(store, model.fingerprint, "none", 50, slower, busy=True)
        assert manager.speed_of(model) == Prediction(20, "replies")  # other programs only make replies slower
        for slower in (0.25, 1.0, 0.01):
            replied(store, model.fingerprint, "none", 50, slower)
    assert manager.speed_of(model) == Prediction(40, "replies")
    small = next(offer for offer in manager.offers() if offer.pair.first)
    assert small.speed == Prediction(40, "replies") and small.installed == model.name


def test_heads_that_ship_in_a_models_folder_serve_that_model_alone(
    manager: ModelManager, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundled" / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    for method in ("medusa", "space"):
        shutil.copy(paths.bundled / f"slipstream-mini-{method}.gguf", folder)
    theirs, other = read_header(paths.bundled / BUNDLED_TARGET), read_header(paths.bundled / TUNED_TARGET)
    manager.paths = paths = replace(paths, bundled=tmp_path / "bundled")
    found = heads_for(paths, theirs)
    assert [(file.method, file.trained_for, file.why_not) for file in found] == [
        ("medusa", "Slipstream mini", ""),
        ("space", "Slipstream mini", ""),
    ]
    assert heads_for(paths, other) == []
    assert set(matching_heads(theirs, head_files(paths))) == {"medusa", "space"}
    monkeypatch.setattr(manager, "_machine", measured(30e9))
    small, better = manager.offers_for_this_machine()
    words = offered([small, better], here=False).plain
    assert "SmolLM2-135M-Instruct with its 2 drafters, 98 MB\nBetter answers: " in words
    assert better.pair.target.model in words and "2 that ship" in catalog_table([small])


def test_a_folder_is_taken_in_as_it_is_or_copied(manager: ModelManager, paths: Paths, tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    (folder / "deep").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"has no \.gguf files"):
        manager.import_path(folder)
    for seed, name in enumerate(("A-Q8_0.gguf", "deep/B-Q8_0.gguf")):
        (folder / name).write_bytes(tiny_gguf(seed=seed))
    for _ in range(2):
        assert [model.name for model in manager.import_path(folder)] == ["a:Q8_0", "b:Q8_0"]
    assert load(paths.settings).settings.model.folders == str(folder)
    assert choose(paths, "a").model == str(folder / "A-Q8_0.gguf")
    assert {model.origin for model in manager.import_path(folder, "copy")} == {"ours"}
    (folder / "A-Q8_0.gguf").unlink()
    assert choose(paths, "a").model.startswith(str(paths.models))


def test_a_model_that_was_named_by_its_path_is_listed_and_comes_back(paths: Paths, tmp_path: Path) -> None:
    path = tmp_path / "Tiny-Q8_0.gguf"
    path.write_bytes(tiny_gguf())
    for given in ({}, {"model.name": "bundled"}, {"model.name": "tiny"}):
        remember_file(paths, SettingsFile(paths.settings, given), str(path))
        assert used_files(paths) == [] and usual(paths) == "bundled"
    for name in ("Other-Q8_0.gguf", path.name, path.name):
        remember_file(paths, SettingsFile(paths.settings, {"model.name": str(path)}), str(tmp_path / name))
    assert used_files(paths) == [path, tmp_path / "Other-Q8_0.gguf"] and choose(paths, None).model == str(path)
    with closing(ModelManager(paths)) as manager:
        (model,) = [model for model in manager.installed() if model.origin == "folder"]
        assert (model.name, model.title, model.path) == ("tiny:Q8_0", "Tiny", path)


def test_a_model_is_loaded_with_its_best_or_chosen_drafter(manager: ModelManager, paths: Paths, tmp_path: Path) -> None:
    large, small = put(paths, "Large.gguf", larger(tmp_path)), put(paths, "Small.gguf", tiny_gguf(seed=2))
    model = manager.store.find("large")
    load = manager.load_of(model)
    assert (load.model, load.draft_model, load.drafter) == (str(large), str(small), "auto")
    assert load.n_ctx == 0 and load.gpu_layers == -1 and load.wants_exact == "auto"  # the engine sees what fits
    alone = manager.load_of(manager.store.find("small"))
    assert alone.draft_model is None and alone.drafter == "auto"
    bundled = manager.store.find("bundled")
    assert manager.load_of(bundled).wants_exact == "always" and manager.load_of(bundled).drafter == "auto"
    medusa = next(pair for pair in manager.pairs("bundled") if pair.method == "medusa")
    chosen = manager.load_of(bundled, medusa)
    assert chosen.drafter == "medusa" and chosen.draft_model is None and chosen.wants_exact == "always"


def replied(
    store: ChatStore, fingerprint: str, drafter: str, tokens: int, speedup: float | None, busy: bool = False,
    noise: float = 0.0,
) -> None:  # fmt: skip
    chat = store.open_or_create("sea")
    store.add_user(chat.id, "About the sea")
    reply = store.begin_reply(chat.id, model="Large", fingerprint=fingerprint, drafter=drafter, seed=1)
    speed = Speed(10.0, tokens=tokens, plain_tok_per_s=speedup and 10.0 / speedup, busy=busy, noise=noise)
    figures = Figures(speed, by_drafter={"eagle3": {"drafted": 9}})
    store.finish_reply(reply.id, text="It is wet.", reason="stop", figures=figures)


def test_gains_are_those_that_the_chats_measured(manager: ModelManager, paths: Paths, tmp_path: Path) -> None:
    path = put(paths, "Large.gguf", larger(tmp_path))
    put(paths, "Small.gguf", tiny_gguf(seed=2))
    own = read_header(path).fingerprint
    with closing(ChatStore(paths.chats)) as store:
        for fingerprint, drafter, tokens, speedup in (
            (own, "draft", 300, 2.0),
            (own, "draft", 100, 1.0),
            (own, "lookup", 10, 5.0),  # too few to tell
            (own, "medusa", 500, None),
            ("another", "draft", 900, 9.0),
        ):
            replied(store, fingerprint, drafter, tokens, speedup)
        gains = gains_of(paths, read_header(path))
        assert not gains.tried and gains.uncompared == {"medusa"}  # "auto" alone is the autopilot
        replied(store, own, "auto", 10, None)
        assert gains_of(paths, read_header(path)).tried == {"eagle3"}
    (pair,) = [pair for pair in manager.pairs("large") if pair.ready]
    assert pair.gain == pytest.approx(400 / (300 / 2 + 100))
    assert manager.removal("large").chats == ("sea",) and manager.removal("small").chats == ()


def test_figures_of_a_busy_machine_are_told_apart(manager: ModelManager, paths: Paths, tmp_path: Path) -> None:
    header = read_header(put(paths, "Large.gguf", larger(tmp_path)))
    with closing(ChatStore(paths.chats)) as store:
        for drafter, tokens, busy in (("draft", 300, True), ("draft", 100, False), ("lookup", 200, False)):
            replied(store, header.fingerprint, drafter, tokens, 2.0, busy)
    gains = gains_of(paths, header)
    assert gains.busy_chats == {"draft"} and not gains.busy_benchmark
    assert gains.sources == {"draft": "chats, busy", "lookup": "chats"} and gains.proven == gains.known
    with closing(ChatStore(paths.chats)) as store:
        replied(store, header.fingerprint, "medusa", 100, 0.9, noise=0.06)
    assert "medusa" in gains_of(paths, header).known.keys() - gains_of(paths, header).proven
    assert gains_of(paths, header).sources["medusa"] == "chats, chance"
    kept = result(paths.benches / "2026-03-04 05.06.07.json")
    found = json.loads(kept.read_text())
    found["drafters"] |= {"model": header.name, "noise": {"spread": 1.0, "busy": 0.5}}
    kept.write_text(json.dumps(found))
    gains = gains_of(paths, header)
    assert gains.busy_benchmark and gains.sources["recycle"] == "bench, busy" and gains.sources["lookup"] == "chats"
    assert not gains.chance and gains.known.keys() - gains.proven == {"medusa"}
    for row in found["drafters"]["rows"]:
        row["speedup"] |= {"low": 0.5, "high": 2.0} if row["drafter"] == "recycle" else {}
    found["drafters"]["noise"]["busy"] = 0.0
    kept.write_text(json.dumps(found))
    gains = gains_of(paths, header)
    assert gains.chance == {"recycle"} and gains.known.keys() - gains.proven == {"recycle", "medusa"}
    assert gains.sources["lookup"] == "bench" and gains.advice == "Use lookup: it is 1.9x faster here, auto 1.7x."


def test_what_the_autopilot_learnt_counts_where_no_chat_tells(manager: ModelManager, paths: Paths) -> None:
    own = manager.store.find("bundled").fingerprint
    memory = DrafterMemory(paths.derived, own)
    assert learned_gains(memory) == {}
    costs = CostModel({1: 10.0, 2: 11.0, 4: 13.0, 8: 17.0}, {}, 0, 8)
    arms = {
        "medusa": ArmRecord(judged=40, tokens=3.0, rows=4.5, draft_ms=1.0, observe_ms=0.5, slower=1.1),
        "kangaroo": ArmRecord(judged=40, tokens=1.0, rows=8.0, draft_ms=4.0),
        "space": ArmRecord(judged=3, tokens=9.0),  # too few to tell
    }
    memory.write("costs", costs.dump("here"))
    memory.write("auto", json.dumps({"key": "here", "arms": {n: asdict(each) for n, each in arms.items()}}).encode())
    gains = learned_gains(memory)
    assert gains == {"medusa": pytest.approx(30 / (1.1 * 13.5 + 1.5)), "kangaroo": pytest.approx(10 / 21)}
    offers = manager.pairs("bundled")
    assert offers[0].method == "medusa" and offers[0].gain == gains["medusa"]
    kangaroo = next(offer for offer in offers if offer.method == "kangaroo")
    assert not kangaroo.sound and kangaroo.ready  # it was slower here
    for name, damage in (("auto", b"[]"), ("auto", b'{"key": "there", "arms": {}}'), ("costs", b"{")):
        memory.write(name, damage)
        assert learned_gains(memory) == {}


def test_chats_that_cannot_be_read_tell_nothing(manager: ModelManager, paths: Paths) -> None:
    put(paths, "Small.gguf", tiny_gguf(seed=2))
    paths.chats.write_bytes(b"no database at all" * 100)
    assert manager.removal("small").chats == () and manager.pairs("small")
