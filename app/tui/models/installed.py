"""The tabs of the installed models and of the downloads."""

from dataclasses import dataclass

from textual.content import Content

from slipstream.app.library.format import context, left, parameters, size
from slipstream.app.platform.safe_text import clean, sentence
from slipstream.app.speed import compared, judged, times
from slipstream.app.tui.models.machine import IN_USE, NO_MARK, expected, fit_block, tok_per_s
from slipstream.app.tui.parts.browser import Column, TableView, View, below, heading, text
from slipstream.app.tui.parts.format import STYLES, bar, percent
from slipstream.models.hub.types import QueuedDownload
from slipstream.models.library.pairing import PairOffer
from slipstream.models.library.records import InstalledModel
from slipstream.models.memory.fit import Fit
from slipstream.models.memory.speed import Prediction

FROM = {
    "ours": "imported",
    "bundled": "slipstream itself",
    "folder": "your folders",
    "package": "a Python package",
    "hf-cache": "the hub's cache",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "llama.cpp": "llama.cpp",
}
BAR_WIDTH = 24
DOING = {
    "checking": "checking what is here",
    "connecting": "asking the hub",
    "waiting": "waiting before another try",
    "finishing": "finishing",
}
COLOURS = {"done": "$success", "failed": "$error", "paused": "$warning"}
QUIET = 5.0  # seconds without data after which the row shows how long there was none


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about an installed model that are slow to compute."""

    fit: Fit | None  # where it fits in memory; None if unknown
    pairs: list[PairOffer]  # its drafters, best first
    speed: Prediction | None = None  # its predicted speed; None if unknown

    @property
    def drafter(self) -> PairOffer | None:
        """The drafter that the model is loaded with: the best installed one."""
        return next((pair for pair in self.pairs if pair.sound), None)


class InstalledView(TableView["InstalledModel"]):
    """One row per model; the loaded one is marked."""

    waiting = "Looking at what is here …"
    nothing = "No models are here. The tab “Recommended” has some that fit this machine."

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, ModelFacts] = {}
        self.in_use = ""  # fingerprint of the loaded model
        self.verifying: dict[str, float] = {}  # verified share by name
        self.columns = (
            Column("  Model", self._name),
            Column("Quant", lambda model: text(model.quant), rank=2),
            Column("Size", lambda model: Content(size(model.size)), right=True),
            Column("tok/s", self._speed, rank=1, right=True),
            Column("Context", lambda model: Content(context(model.context)), rank=4, right=True),
            Column("Drafter", self._drafter, rank=2),
            Column("From", lambda model: text(_from(model)), rank=3, style="$foreground 60%"),
        )

    def key(self, model: InstalledModel) -> str:
        return model.name

    def lines(self, width: int) -> list[Content]:
        heading, *lines = super().lines(width)
        rows = zip(self.rows, lines, strict=True)
        return [heading, *(line if model.usable else line.stylize("$foreground 50%", 2) for model, line in rows)]

    def _name(self, model: InstalledModel) -> Content:
        used = self._used(model)
        mark = ("✗ ", "$error") if model.problem else (IN_USE if used else NO_MARK, "$primary")
        name = text(model.title or model.name.removesuffix(f":{model.quant}"), "bold" if used else "")
        return Content.styled(*mark).append(name)

    def _used(self, model: InstalledModel) -> bool:
        return bool(model.fingerprint) and model.fingerprint == self.in_use

    def _speed(self, model: InstalledModel) -> Content:
        facts = self.facts.get(model.name)
        return tok_per_s(facts.speed) if facts and facts.speed else Content("")

    def _drafter(self, model: InstalledModel) -> Content:
        if model.role == "drafter":
            return Content("drafts only")
        facts = self.facts.get(model.name)
        if facts is None or model.problem:
            return Content("")
        if (drafter := facts.drafter) is None:
            return Content("–").stylize("$foreground 50%")
        short = drafter.name.partition(":")[0] if drafter.drafter else drafter.method
        name = text(short).truncate(18, ellipsis=True)
        gain = drafter.gain
        return name.append(Content(f" {times(gain)}").stylize(STYLES[judged(gain)])) if gain else name

    def details(self, model: InstalledModel) -> list[Content]:
        facts = self.facts.get(model.name)
        size_words = f"{parameters(model.params)} parameters" if model.params else ""
        typed = f"-m {model.name}" if model.usable else model.name
        blocks = [heading(model.title or model.name, typed, model.architecture, size_words), self._verified(model.name)]
        if model.problem:
            problem = Content(f"✗ {sentence(model.problem)}").stylize("$error")
            blocks.append(below(problem, Content(clean(model.hint))))
        elif facts and facts.fit:
            blocks += [expected(facts.speed), self._placed(model, facts.fit)]
        if facts and model.usable:
            blocks.append(self._drafting(facts))
        parts = f" · {len(model.files)} files" if len(model.files) > 1 else ""
        path = Content(clean(str(model.path))).stylize("$foreground 60%")
        return [*blocks, below(Content(f"From {clean(_from(model))}{parts}"), path)]

    def _placed(self, model: InstalledModel, fit: Fit) -> Content:
        if fit.verdict == "too big" and self._used(model):
            words = Content("The memory that it uses is not counted as free.").stylize("$foreground 70%")
            return below(Content("● runs now").stylize("bold").stylize("$success", 0, 1), words)
        return fit_block(fit)

    def _verified(self, name: str) -> Content:
        if name not in self.verifying:
            return Content("")
        done, rest = bar(self.verifying[name], BAR_WIDTH)
        words = f"{done}{rest} {percent(self.verifying[name])} verified, v stops"
        return Content(words).stylize("$primary", 0, len(done))

    def _drafting(self, facts: ModelFacts) -> Content:
        best = facts.drafter
        if best is None and any(pair.ready and pair.gain for pair in facts.pairs):
            return Content("No heads and no draft model gained when they were measured here; d: all")
        if best is None:
            ready = sum(1 for pair in facts.pairs if pair.ready)
            others = sum(1 for pair in facts.pairs if pair.fetch and not pair.why_not)
            counts = (f"{ready} here may fit" if ready else "", f"{others} could be fetched" if others else "")
            more = ", ".join(filter(None, counts)) or "see which and why not"
            return Content(f"No drafter of its own is here; d: {more}")
        gain = f" · {compared(best.gain)}, measured here" if best.gain else " · not measured yet"
        return Content("Drafter: ").append(text(best.name, "bold")).append(Content(f" ({clean(best.method)}){gain}"))


def _from(model: InstalledModel) -> str:
    return model.repo if model.origin == "ours" and model.repo else FROM[model.origin]


class DownloadsView(View["QueuedDownload"]):
    """Two lines per download, newest first: name and bar, then figures."""

    nothing = "No downloads."
    ready = True

    def take(self, jobs: list[QueuedDownload]) -> None:
        self.rows = [job for job in reversed(jobs) if job.state != "cancelled"]

    def key(self, job: QueuedDownload) -> str:
        return job.id

    def lines(self, width: int) -> list[Content]:
        return [Content(""), *(self._line(job, width) for job in self.rows)]

    def _line(self, job: QueuedDownload, width: int) -> Content:
        progress = job.progress
        share = 1.0 if job.state == "done" else progress.done / progress.total if progress.total else 0.0
        room = max(min(width // 3, 40), 8)
        colour = COLOURS.get(job.state, "$primary")
        full, rest = bar(share, room)
        shown = Content.assemble((full, colour), (rest, "$border-blurred"), f" {percent(share):>6}")
        name = text(name_of(job), "bold").truncate(max(width - room - 9, 6), ellipsis=True, pad=True)
        figures = Content(clean(state_of(job))).truncate(width, ellipsis=True)
        figures = figures.stylize("$error" if job.state == "failed" else "$foreground 65%")
        return Content.assemble(name, "  ", shown, "\n", figures)

    def details(self, job: QueuedDownload) -> list[Content]:
        parts = f"{len(job.files)} files" if len(job.files) > 1 else ""
        title, hint = job.error or ("", "")
        kept = "What came is kept; Enter goes on from there." if job.state in ("paused", "failed") else ""
        return [
            heading(name_of(job), job.files[0].repo, parts),
            below(Content(f"✗ {sentence(title)}" if title else "").stylize("$error"), Content(clean(hint))),
            Content("" if job.error else clean(job.progress.note)).stylize("$warning"),
            Content(kept),
            Content(clean(str(job.path))).stylize("$foreground 60%"),
        ]


def name_of(job: QueuedDownload) -> str:
    stem = job.files[0].name.rpartition("/")[2].removesuffix(".gguf")
    return stem.rpartition("-00001-of-")[0] or stem


def state_of(job: QueuedDownload) -> str:
    """Progress and speed: "3.1 of 5.0 GB · 41 MB/s · 48 s left"."""
    progress = job.progress
    amount = f"{size(progress.done)} of {size(progress.total)}"
    if job.state == "done":
        return f"{size(progress.total)} · checked and installed"
    if job.state == "failed":
        return f"{amount} · {job.error[0] if job.error else 'failed'}"
    if job.state in ("queued", "paused"):
        return f"{amount} · {'in line' if job.state == 'queued' else 'paused'}"
    if progress.quiet >= QUIET:
        return f"{amount} · no byte for {left(progress.quiet)}"
    if progress.phase in DOING:
        return f"{amount} · {DOING[progress.phase]}"
    rest = f" · {left(progress.left)} left" if progress.left is not None else ""
    return f"{amount} · {size(progress.speed)}/s{rest}"
