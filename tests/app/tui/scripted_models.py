"""A model manager without a hub and without files: it answers from a script, and a test moves its downloads."""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeVar

from slipstream.app.library.manager import ModelManager
from slipstream.app.library.offers import CatalogOffer, QuantOffer, Removal
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import SlipstreamError
from slipstream.models.hub.types import Progress, Quant, QueuedDownload, RemoteFile, RepoSummary, Sort
from slipstream.models.library.catalog import CatalogFile, CatalogPair
from slipstream.models.library.import_model import OnProgress
from slipstream.models.library.pairing import PairOffer
from slipstream.models.library.places import Origin
from slipstream.models.library.records import InstalledModel, RemovedModel, Verification
from slipstream.models.llama.devices import Device
from slipstream.models.llama.remote import Lender
from slipstream.models.memory.fit import Fit, Verdict
from slipstream.models.memory.need import Need
from slipstream.models.memory.speed import Prediction

T = TypeVar("T")
GB = 1_000_000_000
FOLDER = Path("/home/ada/.local/share/slipstream/models")


def model(
    name: str,
    size: int,
    *,
    quant: str = "Q4_K_M",
    origin: Origin = "ours",
    repo: str | None = None,
    params: int = 0,
    context: int = 40960,
    fingerprint: str = "",
    problem: str = "",
    hint: str = "",
) -> InstalledModel:
    path = FOLDER / (repo or "local/models") / f"{name.replace(':', '-')}.gguf"
    return InstalledModel(
        f"{name}:{quant}" if quant else name, path, (path,), size, None, origin, repo, quant, "qwen3", params,
        context, name, fingerprint or name, problem=problem, hint=hint,
    )  # fmt: skip


def fit(verdict: Verdict, total: float, n_ctx: int = 8192, why: str = "") -> Fit:
    layers = {"gpu": -1, "split": 21}.get(verdict, 0)
    weights, kv, buffers = (int(total * share * GB) for share in (0.75, 0.1, 0.05))
    need = Need(weights, kv, buffers, (int(total * GB),), extras=int(total * 0.1 * GB))
    why = why or f"it takes {total:.1f} GB of the 12.4 GB that are free."
    return Fit(verdict, layers, n_ctx, "f16", need, why, room=int(12.4 * GB))


BUNDLED = model("bundled", 9_800_000, quant="", origin="bundled", params=7_100_000, context=1024, fingerprint="f1")
QWEN = model("qwen3-4b", int(2.5 * GB), repo="Qwen/Qwen3-4B-GGUF", params=4_020_000_000)
SMALL = model("qwen3-0.6b", int(0.64 * GB), quant="Q8_0", repo="Qwen/Qwen3-0.6B-GGUF", params=596_000_000)
INSTALLED = [
    BUNDLED,
    QWEN,
    SMALL,
    model(
        "gemma-3-12b-it", int(7.3 * GB), origin="lmstudio", repo="lmstudio-community/gemma-3-12b-it-GGUF",
        params=11_800_000_000, context=131072,
    ),
    model("llama3.1", int(4.9 * GB), origin="ollama", params=8_030_000_000, context=131072),
    model("mistral-small", int(14.3 * GB), problem="the file ends too early.", hint="Remove it and fetch it again."),
]  # fmt: skip
PAIRS = {
    QWEN.name: [
        PairOffer("qwen3-0.6b:Q8_0", "draft", "same vocabulary", SMALL, size=SMALL.size, gain=1.7),
        PairOffer(
            "qwen3-4b eagle3", "eagle3", "catalogue",
            fetch=CatalogFile("Qwen3-4B_eagle3", "AngelSlim/Qwen3-4B_eagle3", "eagle3-q8_0.gguf", 480_000_000),
            size=480_000_000, note="reported by one project; the head reads three layers of the target.",
        ),
        PairOffer(
            "gemma-3-12b-it:Q4_K_M", "draft", "other vocabulary", INSTALLED[3], size=INSTALLED[3].size,
            why_not="it is larger than the model that it would draft for.",
            instead="A drafter of at most 1B parameters pays.",
        ),
    ]
}  # fmt: skip


def file(repo: str, name: str, size: float) -> CatalogFile:
    model = name.removesuffix(".gguf").rpartition("-")[0]
    return CatalogFile(model, repo, name, int(size * GB), "ab" * 32)


def offer(
    family: str, target: CatalogFile, drafter: CatalogFile | None, method: str, fit: Fit, installed: str = ""
) -> CatalogOffer:
    pair = CatalogPair(f"{family}+{method}", method, target, drafter, family, "apache-2.0", "documentation")
    both = target.size + (drafter.size if drafter else 0)
    speed = Prediction(300 / (target.size / GB))
    return CatalogOffer(pair, fit, {8192: both + GB // 2}, installed, None if fit.verdict == "too big" else speed)


Q06 = file("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 0.64)
OFFERS = [
    offer(
        "Qwen3 8B", file("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", 5.03), Q06, "draft",
        fit("gpu", 6.4, 32768, "with its drafter it needs 6.4 GB of the 12.4 GB that are free on the GPU."),
    ),
    offer(
        "Qwen3 4B", file("Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", 2.5), Q06, "draft", fit("gpu", 3.9, 40960),
        installed=QWEN.name,
    ),
    offer(
        "Gemma 4 E4B", file("unsloth/gemma-4-E4B-it-GGUF", "gemma-4-E4B-it-Q4_K_M.gguf", 4.9), None, "mtp",
        fit("gpu", 5.6, 32768),
    ),
    offer(
        "Qwen3 14B", file("Qwen/Qwen3-14B-GGUF", "Qwen3-14B-Q4_K_M.gguf", 9.0), Q06, "draft", fit("split", 11.2, 8192)
    ),
    offer(
        "Llama 3.3 70B", file("bartowski/Llama-3.3-70B-Instruct-GGUF", "Llama-3.3-70B-Instruct-Q4_K_M.gguf", 42.5),
        file("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q8_0.gguf", 1.3), "draft",
        fit("too big", 46.1, 4096, "it needs 46.1 GB and 28.0 GB are free; Q2_K at 4,096 tokens would fit."),
    ),
]  # fmt: skip
NOW = datetime.now(UTC)
FOUND = [
    RepoSummary(
        "Qwen/Qwen3-8B-GGUF", 412_345, 231, False, "apache-2.0", NOW - timedelta(days=21), "qwen3", 40960, int(8.2 * GB)
    ),
    RepoSummary(
        "unsloth/Qwen3-8B-GGUF", 98_120, 154, False, "apache-2.0", NOW - timedelta(days=3), "qwen3", 40960,
        int(8.2 * GB),
    ),
    RepoSummary(
        "meta-llama/Llama-3.1-8B-GGUF", 51_220, 820, True, "llama3.1", NOW - timedelta(days=200), "llama", 131072,
        int(8.03 * GB),
    ),
    RepoSummary("somebody/[bold red]Qwen[/]\x1b[2J-evil", 7, 0, False, "", None, "", 0, 0),
]  # fmt: skip
CARD = """# Qwen3-8B-GGUF

Qwen3 is the latest generation of large language models in the **Qwen** series.

| property | value |
|---|---|
| parameters | 8.2B |
| context | 32,768, and 131,072 with YaRN |

[The paper](https://example.org/paper) says more. \x1b[31mred\x1b[0m [bold]not bold[/bold]

```sh
llama-cli -hf Qwen/Qwen3-8B-GGUF:Q8_0
```
"""


def quant(repo: str, label: str, size: float, parts: int = 1, drafts: bool = False) -> Quant:
    each = int(size * GB / parts)
    stem = repo.split("/")[1].removesuffix("-GGUF")
    names = (
        [f"{stem}-{label}.gguf"]
        if parts == 1
        else [f"{stem}-{label}-{n:05}-of-{parts:05}.gguf" for n in range(1, parts + 1)]
    )
    return Quant(
        label, tuple(RemoteFile(repo, "c0ffee", name, each, "ab" * 32) for name in names), each * parts, drafts
    )


def quants(repo: str) -> list[QuantOffer]:
    return [
        QuantOffer(quant(repo, "Q2_K", 3.3), fit("gpu", 4.2, 40960), False, ""),
        QuantOffer(quant(repo, "Q4_K_M", 5.03), fit("gpu", 6.1, 40960), True, ""),
        QuantOffer(quant(repo, "Q6_K", 6.7), fit("gpu", 8.0, 32768), False, ""),
        QuantOffer(quant(repo, "Q8_0", 8.7), fit("split", 10.1, 16384), False, ""),
        QuantOffer(quant(repo, "BF16", 16.4, parts=2), fit("memory", 18.0), False, ""),
        QuantOffer(
            quant(repo, "F32", 32.8, parts=4),
            fit("too big", 35.2, why="it needs 35.2 GB and 28.0 GB are free; Q8_0 would fit."),
            False,
            "",
        ),
    ]


HUB_CALLS = {"search", "quants", "card", "fetch", "fetch_pair", "fetch_file"}


@dataclass
class ScriptedModels(ModelManager):
    """Answers at once, unless a name is in ``holds``: then it waits for ``go``; what is in ``fails`` is raised once."""

    here: list[InstalledModel] = field(default_factory=lambda: list(INSTALLED))
    catalogue: list[CatalogOffer] = field(default_factory=lambda: list(OFFERS))
    first: CatalogOffer | None = None
    offline: bool = False
    stays_offline: list[bool] = field(default_factory=list)
    others: dict[str, bool] = field(default_factory=dict)  # machines that lend, to whether they answer
    borrows: str = ""
    fails: dict[str, SlipstreamError] = field(default_factory=dict)
    holds: set[str] = field(default_factory=set)
    calls: list[tuple[str, object]] = field(default_factory=list)
    queue: dict[str, QueuedDownload] = field(default_factory=dict)
    trash: list[InstalledModel] = field(default_factory=list)
    _go: dict[str, threading.Event] = field(default_factory=dict)

    def go(self, name: str) -> None:
        self._go.setdefault(name, threading.Event()).set()

    def _answer(self, name: str, argument: object, result: Callable[[], T]) -> T:
        self.calls.append((name, argument))
        if name in self.holds:
            assert self._go.setdefault(name, threading.Event()).wait(20)
        if name in self.fails:
            raise self.fails.pop(name)
        return result()

    def called(self, name: str) -> list[object]:
        return [argument for call, argument in self.calls if call == name]

    def _online(self, name: str, argument: object, result: Callable[[], T]) -> T:
        if self.offline:
            raise SlipstreamError("slipstream is offline.", "Unset HF_HUB_OFFLINE to ask the hub.")
        return self._answer(name, argument, result)

    def waiting_for(self) -> str:
        return "hub.example"

    def stop_waiting(self) -> bool:
        held = [name for name in self.holds & HUB_CALLS if not self._go.setdefault(name, threading.Event()).is_set()]
        for name in held:
            self.fails[name] = SlipstreamError("stopped waiting for hub.example.", "Try again.")
            self.go(name)
        return bool(held)

    def stay_offline(self, wanted: bool) -> None:
        self.stays_offline.append(wanted)

    def borrow(self, rpc: str) -> None:
        self.borrows = rpc

    def look_again(self, in_use: Collection[str]) -> None:
        self.calls.append(("look_again", tuple(in_use)))

    def lenders(self) -> list[Lender]:
        found = []
        for name, here in self.others.items():
            lent = Device("RPC0", "gpu", "Apple M4", 24 * GB, 21 * GB, f"{name}:50052")
            found.append(Lender(f"{name}:50052", (lent,) if here else ()))
        return found

    def devices(self) -> list[Device]:
        return [
            Device("CUDA0", "gpu", "NVIDIA RTX 4070", int(12.9 * GB), int(12.4 * GB)),
            Device("CPU", "cpu", "AMD Ryzen 7", int(33.6 * GB), int(28.0 * GB)),
            *(device for lender in self.lenders() for device in lender.devices),
        ]

    def installed(self) -> list[InstalledModel]:
        return self._answer("installed", None, lambda: list(self.here))

    def fit_of(self, model: InstalledModel, drafter: PairOffer | None = None) -> Fit:
        return self._answer("fit_of", model.name, lambda: fit("gpu", model.size / GB + 1.2, 32768))

    def speed_of(self, model: InstalledModel) -> Prediction | None:
        return self._answer("speed_of", model.name, lambda: Prediction(300 * GB / model.size))

    def pairs(self, name: str) -> list[PairOffer]:
        return self._answer("pairs", name, lambda: PAIRS.get(name, []))

    def load_of(self, model: InstalledModel, pair: PairOffer | None = None) -> Load:
        return self._answer(
            "load_of", (model.name, pair.name if pair else None), lambda: Load(str(model.path), drafter="lookup")
        )

    def make_usual(self, model: InstalledModel) -> None:
        self._answer("make_usual", model.name, lambda: None)

    def import_path(
        self,
        path: Path,
        how: Literal["link", "copy"] = "link",
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[InstalledModel]:
        def do() -> list[InstalledModel]:
            taken = model(path.stem, GB)
            self.here.append(taken)
            return [taken]

        on_progress(1, 2)
        return self._answer("import", (path, how), do)

    def verify(
        self,
        name: str,
        on_progress: OnProgress = lambda done, size: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Verification:
        def do() -> Verification:
            if cancelled():
                raise KeyboardInterrupt
            return Verification(self._find(name), ("ab" * 32,), ("ab" * 32,))

        on_progress(1, 4)
        return self._answer("verify", name, do)

    def _find(self, name: str) -> InstalledModel:
        return next(model for model in self.here if model.name == name)

    def removal(self, name: str) -> Removal:
        found = self._find(name)
        return self._answer("removal", name, lambda: Removal(found, found.size, ("On the sea", "A fox")))

    def remove(self, name: str, now: bool = False) -> RemovedModel:
        def do() -> RemovedModel:
            found = self._find(name)
            self.here.remove(found)
            self.trash.append(found)
            return RemovedModel(name, found.size, found.files)

        return self._answer("remove", name, do)

    def undo(self) -> RemovedModel:
        def do() -> RemovedModel:
            if not self.trash:
                raise SlipstreamError("nothing was removed.", "")
            found = self.trash.pop()
            self.here.append(found)
            return RemovedModel(found.name, found.size, found.files)

        return self._answer("undo", None, do)

    def offers(self) -> list[CatalogOffer]:
        return self._answer("offers", None, lambda: list(self.catalogue))

    def offers_for_this_machine(self) -> list[CatalogOffer]:
        return self._answer("offer", None, lambda: [self.first] if self.first else [])

    def search(self, text: str, sort: Sort = "downloads", limit: int = 30) -> list[RepoSummary]:
        return self._online("search", (text, sort), lambda: [] if text == "nothing" else list(FOUND))

    def quants(self, repo: str, revision: str | None = None) -> list[QuantOffer]:
        return self._online("quants", repo, lambda: quants(repo))

    def card(self, repo: str) -> str:
        return self._online("card", repo, lambda: CARD)

    def fetch(self, quant: Quant) -> QueuedDownload:
        return self._online("fetch", quant.label, lambda: self.job(quant.repo, quant.files[0].name, quant.size))

    def fetch_pair(self, pair: CatalogPair) -> list[QueuedDownload]:
        files = [each for each in (pair.target, pair.drafter) if each]
        return self._online(
            "fetch_pair", pair.id, lambda: [self.job(file.repo, file.file, file.size) for file in files]
        )

    def fetch_file(self, file: CatalogFile) -> QueuedDownload:
        return self._online("fetch_file", file.repo, lambda: self.job(file.repo, file.file, file.size))

    def job(self, repo: str, name: str, size: int) -> QueuedDownload:
        remote = RemoteFile(repo, "c0ffee", name, size)
        job = QueuedDownload(f"j{len(self.queue)}", (remote,), FOLDER, Progress(0, size), state="running")
        self.queue[job.id] = job
        return job

    def move(self, id: str, share: float, speed: float = 41e6) -> None:
        """Lets a download come so far; at 1 it is done, and installed."""
        job = self.queue[id]
        total = job.progress.total
        done = share >= 1
        progress = Progress(int(share * total), total, 0.0 if done else speed)
        self.queue[id] = replace(job, state="done" if done else "running", progress=progress)
        if done:
            file = job.files[0]
            stem, _, label = Path(file.name).stem.rpartition("-")
            taken = model(stem.lower(), total, quant=label, repo=file.repo)
            self.here.append(replace(taken, path=job.path, files=(job.path,)))

    def set_state(self, id: str, **change: object) -> None:
        self.queue[id] = replace(self.queue[id], **change)  # type: ignore[arg-type]

    def jobs(self) -> list[QueuedDownload]:
        return list(self.queue.values())

    def pause(self, id: str) -> None:
        self.calls.append(("pause", id))
        self.set_state(id, state="paused")

    def resume(self, id: str) -> None:
        self.calls.append(("resume", id))
        self.set_state(id, state="running", error=None)

    def cancel(self, id: str) -> int:
        def do() -> int:
            self.set_state(id, state="cancelled")
            return self.queue[id].progress.done

        return self._answer("cancel", id, do)

    def close(self) -> None:
        self.calls.append(("close", None))
