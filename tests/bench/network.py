"""Part ``network``: plain decoding and drafters with the target on another machine, over networks of several delays.

The other machine is a lender beside this process, on the same cores; ``tests.devices.link`` is the network. The draft
model stays here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from tests.devices.lender import Lender
from tests.devices.link import link

from slipstream.app.bench.drafters import compare_drafters
from slipstream.app.bench.figures import DrafterReport
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import CtrlC, ReplyPlan, Stopped
from slipstream.app.library.load_request import placed
from slipstream.app.protocol.requests import Load
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.remote import ask
from slipstream.models.memory.need import size_of

_QUESTIONS: Final = 15
_MESSAGES: Final = 3  # of a question, each with an answer


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """What was measured of a model.

    Attributes:
        own_ms: Milliseconds that the network itself adds to a round trip at no delay.
        reports: By milliseconds each way, and layers there, the output counted as one.
    """

    own_ms: float
    reports: list[tuple[float, int, DrafterReport]]


def compare_networks(
    request: Load, plan: ReplyPlan, delays: Sequence[float], folder: Path, tell: Callable[[str], None], stop: CtrlC
) -> NetworkFigures:
    """Writes the replies of a plan over each network, with half of the target and with all of it on the other machine.

    Args:
        request: Loads the model.
        plan: What is written.
        delays: Milliseconds each way.
        folder: For the lender.
        tell: Hears how far it is.
        stop: Asked step by step.

    Raises:
        Stopped: If nothing was measured.
        SlipstreamError: If llama.cpp is built without RPC, or the model cannot be loaded.
    """
    layers = len(size_of(read_header(Path(request.model))).layers) + 1
    reports: list[tuple[float, int, DrafterReport]] = []
    with _lender(folder) as lender:
        own_ms = _own_ms(lender)
        for delay, there in product(delays, ((layers + 1) // 2, layers)):
            tell(f"network: {delay:g} ms each way, {there} of {layers} layers there")
            try:
                with link(lender.port, delay) as endpoint:
                    far = placed(request, there, endpoint, "CPU")
                    reports.append((delay, there, compare_drafters(far, plan, tell, stop=stop)))
            except Stopped:
                if not reports:
                    raise
            if stop():
                break
            lender.lends_again()
    return NetworkFigures(own_ms, reports)


@contextmanager
def _lender(folder: Path) -> Iterator[Lender]:
    lender = Lender(folder)
    try:
        yield lender
    finally:
        lender.end()


def _own_ms(lender: Lender) -> float:
    """Milliseconds that a link without a delay adds to a round trip."""
    with link(lender.port, 0.0) as endpoint:
        took = []
        for each in (lender.endpoint, endpoint):
            times = []
            for _ in range(_QUESTIONS):
                began = perf_counter()
                assert ask(each).devices, ask(each).problem
                times.append(1e3 * (perf_counter() - began))
            took.append(median(times))
    return (took[1] - took[0]) / _MESSAGES


def network_text(figures: NetworkFigures) -> str:
    """Lays the figures out."""
    rows = [
        (
            f"{delay:g} ms",
            str(there),
            row.drafter,
            row.kind,
            f"{row.temperature:g}",
            f"{row.tok_per_s:.1f}",
            row.speedup_text,
            "-" if row.acceptance is None else f"{row.acceptance:.0%}",
            f"{row.tokens_per_step:.2f}",
            f"{row.equal_texts}/{row.texts}",
        )
        for delay, there, report in figures.reports
        for row in report.rows
    ]
    noise = dict.fromkeys(remark for _, _, report in figures.reports for remark in report.noise.remarks())
    title = figures.reports[0][2].model if figures.reports else ""
    return table(
        f"network: {title}, the target on another machine, 1 Gbit/s",
        (
            *("each way", "layers there", "drafter", "text", "T", "tok/s", "against plain [95 %]"),
            *("acceptance", "tokens/step", "same text"),
        ),
        rows,
        [f"At no delay, the network's own part of a round trip is {figures.own_ms:.2f} ms.", *noise],
    )
