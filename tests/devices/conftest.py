"""Devices that are not this machine's processor: what the installed llama.cpp is built for.

Run it as ``python -m pytest tests/devices``. What the build, or the machine, has not is skipped, with the reason.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from tests.devices.lender import Lender

from slipstream.app.bench.check import check_drafters, check_text
from slipstream.app.bench.prompts import PromptSet, asked
from slipstream.app.bench.turns import ALL, ReplyPlan
from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.process.watchdog import Limits
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import Devices, Generate, Load, Message, Sampling
from slipstream.models.llama.devices import Survey, survey
from slipstream.models.llama.install import RPC, from_source

BUNDLED: Final = Path(__file__).parents[2] / "models" / "bundled"
LAYERS: Final = 8
"""Of the bundled model's 14 and its output: about half of it."""
PLACES: Final = {
    "remote": (-1, ""), "half remote": (LAYERS, ""), "remote, draft too": (-1, "remote"),
    "half remote, draft remote": (LAYERS, "remote"), "local, draft remote": (0, "remote"), "gpu": (-1, ""),
    "half on the gpu": (LAYERS, ""),
}  # fmt: skip
"""By name, the target's layers away from the processor, and where the draft model lies if not here."""
Event = Prefilling | Stepped | Done
Open = Callable[..., Engine]
_FIGURE: Final = "figure: "


Figures = Callable[[str, int], None]


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Figures:
    return lambda name, count: record_property(_FIGURE + name, count)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the sums of the figures; tests may have run in several processes."""
    sums = Counter[str]()
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, ()):
            for name, count in report.user_properties:
                if name.startswith(_FIGURE):
                    sums[name.removeprefix(_FIGURE)] += int(count)
    for name, total in sums.items():
        terminalreporter.write_line(f"{name}: {total:,}")


@cache
def _built() -> Survey:
    return survey()


@pytest.fixture(scope="session")
def rpc() -> None:
    if "RPC" not in _built().backends:
        pytest.skip(f"llama.cpp is built without RPC; with it: {from_source(RPC)}")


@pytest.fixture(scope="session")
def gpu() -> str:
    found = [device.name for device in _built().devices if device.kind in ("gpu", "igpu")]
    if not found:
        pytest.skip(f"this machine has no GPU that llama.cpp uses (backends: {', '.join(_built().backends)})")
    return found[0]


@pytest.fixture(scope="module")
def lender(rpc: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    """A lender that all tests of a file borrow from, one after the other."""
    made = Lender(tmp_path_factory.mktemp("lender"))
    yield made
    made.end()


@pytest.fixture
def own_lender(rpc: None, tmp_path: Path) -> Iterator[Lender]:
    made = Lender(tmp_path)
    yield made
    made.end()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    made: list[Engine] = []

    def make(limits: Limits = Limits()) -> Engine:  # noqa: B008 (frozen)
        made.append(Engine(tmp_path / f"engine-{len(made)}" / "engine.log", limits))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def bundled(devices: Devices, gpu_layers: int = -1, drafter: str = "none", **more: object) -> Load:
    heads = [str(path) for path in sorted(BUNDLED.glob("*.gguf"))]
    return Load(
        str(BUNDLED / "slipstream-mini-q8_0.gguf"),
        str(BUNDLED / "slipstream-mini-draft-q8_0.gguf"),
        heads,
        drafter=drafter,
        exact="always",
        gpu_layers=gpu_layers,
        devices=devices,
        **more,  # type: ignore[arg-type]
    )


def placed_at(request: pytest.FixtureRequest, place: str) -> tuple[int, Devices]:
    """Layers away from the processor, and the devices for one of ``PLACES``."""
    gpu_layers, draft = PLACES[place]
    if "remote" not in place:
        request.getfixturevalue("gpu")
        return gpu_layers, Devices()
    lender: Lender = request.getfixturevalue("lender")
    return gpu_layers, Devices(rpc=lender.endpoint, draft=f"{lender.endpoint}/0" if draft else "CPU")


def ask(drafter: str = "none", temperature: float = 0.8, prompt: str = "Tell me a story about a small fox.",
        size: int = 32, seed: int = 4, number: int = 1) -> Generate:  # fmt: skip
    return Generate(number, [Message("user", prompt)], Sampling(temperature, seed=seed), drafter, max_tokens=size)


def check_there(figures: Figures, load: Load, prompts: Sequence[str], names: Sequence[str] = (ALL,)) -> None:
    """Compares drafters with plain decoding where passes of other widths round differently: near-ties may differ."""
    plan = ReplyPlan(names, [PromptSet("devices", tuple(asked(prompt) for prompt in prompts))], tokens=48)
    report = check_drafters(load, plan, print)
    figures("replies compared with plain decoding there", sum(report.compared.values()))
    figures("of them different at a near-tie", len(report.findings) - len(report.wrong))
    figures("of them wrong", len(report.wrong))
    assert report.passed, check_text(report)


def done_of(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]
