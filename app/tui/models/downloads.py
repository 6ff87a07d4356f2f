"""The tab of the downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from slipstream.app.library.format import left, size
from slipstream.app.platform.safe_text import clean, sentence
from slipstream.app.tui.parts.browser import View, below, heading, text
from slipstream.app.tui.parts.format import bar, percent

if TYPE_CHECKING:
    from slipstream.models.hub.types import QueuedDownload

DOING = {
    "checking": "checking what is here",
    "connecting": "asking the hub",
    "waiting": "waiting before another try",
    "finishing": "finishing",
}
STYLES = {"done": "$success", "failed": "$error", "paused": "$warning"}
QUIET = 5.0  # seconds without data after which the row shows how long there was none


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
        colour = STYLES.get(job.state, "$primary")
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
    """The file's name without its suffix and part number."""
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
