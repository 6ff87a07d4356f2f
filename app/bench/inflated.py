"""Makes the files of an inflated family, lends them to the parts of the benchmark, and takes them away again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final

from slipstream.app.bench.inflate import Family, Wish, check_room, families
from slipstream.app.bench.stopping import never
from slipstream.app.engine.requests import Load
from slipstream.app.paths import private_folder
from slipstream.app.safe_text import one_line
from slipstream.models.runtime.devices import devices

_FOLDER: Final = "inflated"
_PREFIX: Final = "bench-"
_LEFT_BEHIND: Final = 86_400  # seconds after which nobody is measuring any more


@dataclass(frozen=True, slots=True)
class Made:
    """An inflated family on the disk.

    Attributes:
        family: What it is.
        load: Loads it.
        sizes: Bytes of each file, the target's first.
        seconds: What making it took; 0 where every file was there.
    """

    family: Family
    load: Load
    sizes: Mapping[str, int]
    seconds: float

    def text(self) -> str:
        """What is measured from here on, in a few lines."""
        family, others = self.family, sum(self.sizes.values()) - next(iter(self.sizes.values()))
        size, made = next(iter(self.sizes.values())), f"made in {self.seconds:.0f} s" if self.seconds else "kept"
        lines = [
            "",
            f"## {one_line(family.name)}",
            "",
            f"INFLATED: it costs what {family.shape.of} costs in {family.mix}, and writes what {one_line(family.small)}"
            f" writes, whose {family.n_vocab:,} tokens alone are drawn from. {size / 1e6:,.0f} MB, what drafts for it"
            f" {others / 1e6:,.0f} MB; {made}.",
            *(f"- Not inflated: `{name}`, {one_line(reason)}." for name, reason in family.left_out.items()),
        ]
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """The same for JSON."""
        family = self.family
        return {
            "inflated": True,
            "model": family.name,
            "small_model": family.small,
            "shape": family.shape.name,
            "measures_of": family.shape.of,
            "quantization": family.mix,
            "draft_model": family.draft.name if family.draft else None,
            "bytes": dict(self.sizes),
            "made_s": self.seconds,
            "left_out": family.left_out,
        }


def inflated_folder(derived: Path) -> Path:
    """Where inflated models are made and kept; what a killed benchmark left there goes.

    Raises:
        SlipstreamError: If it cannot be written to.
    """
    folder = private_folder(derived / _FOLDER)
    for left in (*folder.glob(f"{_PREFIX}*"), *folder.glob("*.part")):
        with suppress(OSError):
            if left.stat().st_mtime < time() - _LEFT_BEHIND:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return folder


@contextmanager
def inflated(family: Family, folder: Path, keep: bool, tell: Callable[[str], None]) -> Iterator[Made]:
    """Makes what is missing, for as long as the body lasts or for good.

    Files are not made where temporary ones belong: that may be memory, which the model is to have.

    Args:
        family: What to make.
        folder: Where files are kept.
        keep: Whether they stay.
        tell: Hears what is made.

    Raises:
        SlipstreamError: If the disk is full or cannot be written to.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as passing:
        whole = all(plan.stands_at(path) for plan, path in family.files(folder))
        home = folder if keep or whole else Path(passing)
        began, sizes, made = perf_counter(), dict[str, int](), False
        for plan, path in family.files(home):
            if not plan.stands_at(path):
                tell(f"inflating: {plan.name}, {plan.nbytes / 1e6:,.0f} MB")
                plan.write(path)
                made = True
            sizes[plan.name] = path.stat().st_size
        yield Made(family, family.load(home), sizes, perf_counter() - began if made else 0.0)


def kept_text(folder: Path) -> str:
    """Lists the inflated models that are kept, with their sizes; empty if there are none."""
    kept: Sequence[tuple[str, int]] = sorted((path.name, path.stat().st_size) for path in folder.glob("*.gguf"))
    if not kept:
        return ""
    total = sum(size for _, size in kept)
    rows = [f"- {name}, {size / 1e6:,.0f} MB" for name, size in kept]
    return "\n".join(["", f"Inflated files kept in {folder}, {total / 1e6:,.0f} MB (delete them at will):", "", *rows])


def run_inflated(
    request: Load,
    wish: Wish,
    derived: Path,
    run: Callable[[Load], tuple[dict[str, Any], bool]],
    tell: Callable[[str], None],
    stop: Callable[[], bool] = never,
) -> tuple[list[dict[str, Any]], bool]:
    """Measures every inflated model that is asked for, one after the other.

    Args:
        request: Loads the small model.
        wish: What is asked for.
        derived: Folder of files that are made of models.
        run: Measures a model; gives figures, and whether what was checked holds.
        tell: Hears how far it is.
        stop: Whether the next model is to be left out.

    Returns:
        The figures of each, and whether what was checked holds for all.

    Raises:
        SlipstreamError: If a model cannot be inflated, does not fit this machine, or cannot be measured.
    """
    planned, folder = families(request, wish), inflated_folder(derived)
    check_room(planned, folder, devices(), wish.keep)
    figures, passed = list[dict[str, Any]](), True
    for family in planned:
        with inflated(family, folder, wish.keep, tell) as made:
            print(made.text(), flush=True)
            found, held = run(replace(made.load, measured_with=request.measured_with))
            figures.append(made.figures() | found)
            passed = passed and held
        if stop():
            break
    if kept := kept_text(folder):
        print(kept, flush=True)
    return figures, passed
