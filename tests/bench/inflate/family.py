"""Inflated models for the benchmark: plans their files, checks disk and memory, writes them, and measures each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, time
from typing import Any, Final

from tests.bench.inflate.file import MADE_AS, Inflated
from tests.bench.inflate.heads import inflated_heads
from tests.bench.inflate.model import inflated_model, model_growth
from tests.bench.inflate.shapes import Shape, mix_named, shape_named

from slipstream.app.bench.turns import never
from slipstream.app.platform.paths import private_folder
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.matching_heads import matching_heads
from slipstream.models.llama.devices import Device, devices
from slipstream.models.memory.fit import FitOptions, fit
from slipstream.models.outside import shown_path

USUAL_MIX: Final = "Q4_0"
_BYTES_A_MINUTE: Final = 1e9  # a rough guess: the time to make and race files grows with their size
_SPARE: Final = 1 << 28  # bytes of the disk to leave free


@dataclass(frozen=True, slots=True)
class Wish:
    """The wanted inflated models."""

    shapes: tuple[Shape, ...]  # shapes of the target; each is made in every quantization
    mixes: tuple[str, ...]  # the quantizations
    drafter: Shape | None  # shape of the draft model; None for no draft model
    keep: bool  # whether the files stay on the disk

    @staticmethod
    def of(inflate: str | None, quant: str | None, drafter: str | None, keep: bool) -> Wish | None:
        """Reads the options; None if nothing is to be inflated.

        Raises:
            UsageError: If there is no such shape or quantization, or an option makes no sense without ``--inflate``.
        """
        if inflate is None:
            if quant is not None or drafter is not None or keep:
                raise UsageError("there is nothing to widen.", "Say to what: --inflate 1b")
            return None
        shapes = dict.fromkeys(shape_named(name.strip()) for name in inflate.split(","))
        mixes = dict.fromkeys(mix_named(name.strip()) for name in (quant or USUAL_MIX).split(","))
        return Wish(tuple(shapes), tuple(mixes), shape_named(drafter) if drafter is not None else None, keep)


@dataclass(frozen=True, slots=True)
class Family:
    """The plan of an inflated target and its drafters."""

    small: str  # name of the small target
    shape: Shape  # shape of the target, with attention heads of the small target's size
    mix: str  # the quantization
    target: Inflated
    draft: Inflated | None
    heads: dict[str, Inflated]  # method to heads
    left_out: dict[str, str]  # drafters that are not inflated, and why

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def n_vocab(self) -> int:
        return self.target.header(Path()).n_vocab

    def files(self, folder: Path) -> Iterator[tuple[Inflated, Path]]:
        """All files and their paths in a folder; heads of one shape are shared."""
        yield self.target, _place(folder, f"{self.shape.name}-{self.mix}", self.target)
        if self.draft:
            yield self.draft, _place(folder, f"{self.shape.name}-draft-{self.mix}", self.draft)
        for method, heads in self.heads.items():
            yield heads, _place(folder, f"{self.shape.name}-{method}", heads)

    @property
    def price(self) -> str:
        """The disk space and time needed to make and race it, in words."""
        size = sum(plan.nbytes for plan, _ in self.files(Path()))
        minutes = max(1, round(size / _BYTES_A_MINUTE))
        time = "a minute" if minutes == 1 else f"{minutes} minutes"
        return f"{size / 1e6:,.0f} MB of disk and about {time}"

    def stands_in(self, folder: Path) -> bool:
        """Whether a folder has all of its files."""
        return all(plan.stands_at(path) for plan, path in self.files(folder))

    def load(self, folder: Path) -> Load:
        target, *others = (path for _, path in self.files(folder))
        draft = others.pop(0) if self.draft else None
        return Load(
            model=str(target),
            draft_model=str(draft) if draft else None,
            heads=list(map(str, others)),
            derived=str(folder),
            drafter="none",
        )


def families(request: Load, wish: Wish) -> list[Family]:
    """Plans the files of the wanted models.

    Args:
        request: Loads the small model; its draft model and heads are inflated with it.

    Raises:
        SlipstreamError: If the model cannot be inflated, or not to one of the shapes.
    """
    header = read_header(Path(request.model))
    small = read_header(Path(request.draft_model)) if request.draft_model else None
    heads = matching_heads(header, map(Path, request.heads))
    return [_family(header, small, heads, shape, mix, wish.drafter) for shape in wish.shapes for mix in wish.mixes]


def _family(
    header: Header, small: Header | None, heads: dict[str, Path], shape: Shape, mix: str, drafter: Shape | None
) -> Family:
    placed = model_growth(header, shape)
    made, left_out = dict[str, Inflated](), dict[str, str]()
    for method, path in heads.items():
        try:
            made[method] = inflated_heads(path, header, placed)
        except SlipstreamError as error:
            left_out[method] = error.title.rstrip(".")
    draft = None
    if drafter is None or small is None:
        left_out["draft"] = "no draft model was widened" + ("; see --inflate-drafter" if small else "")
    else:  # a draft model gets its target's vocabulary
        draft = inflated_model(small, replace(drafter, n_vocab=placed.large.n_vocab), mix)
    return Family(header.title, placed.large, mix, inflated_model(header, shape, mix), draft, made, left_out)


def check_room(planned: Sequence[Family], folder: Path, devices: Sequence[Device], keep: bool) -> None:
    """Raises ``SlipstreamError`` if disk or memory cannot hold the planned families, made one after the other."""
    for family in planned:
        target, draft = family.target.header(folder), family.draft.header(folder) if family.draft else None
        fits = fit(target, devices, FitOptions(draft=draft))
        if fits.verdict == "too big":
            raise SlipstreamError(f"{family.name} does not fit this machine.", fits.why)
    missing = [
        {path: plan.nbytes for plan, path in family.files(folder) if not plan.stands_at(path)} for family in planned
    ]
    every: dict[Path, int] = {}
    for files in missing:
        every |= files
    needed = sum(every.values()) if keep else max((sum(files.values()) for files in missing), default=0)
    free = shutil.disk_usage(folder).free
    if needed + _SPARE > free:
        raise SlipstreamError(
            f"widening takes {needed / 1e9:.1f} GB, and {shown_path(folder)} has {free / 1e9:.1f} GB free.",
            "Widen it to less (--inflate 1b --quant Q4_0), or set SLIPSTREAM_HOME to a folder that has more room.",
        )


def _place(folder: Path, name: str, plan: Inflated) -> Path:
    """The path of a file; its name contains a hash of everything that the file is made from."""
    return folder / f"inflated-{name.lower()}-{str(plan.metadata[MADE_AS][1])[:12]}.gguf"


_FOLDER: Final = "inflated"
_PREFIX: Final = "bench-"
_LEFT_BEHIND: Final = 86_400  # seconds after which a temporary folder belongs to a killed run


@dataclass(frozen=True, slots=True)
class Made:
    """An inflated family on the disk."""

    family: Family
    load: Load
    sizes: Mapping[str, int]  # bytes of each file, the target's first
    seconds: float  # time that making it took; 0 if every file existed

    def text(self) -> str:
        """A heading for the figures that follow."""
        family, others = self.family, sum(self.sizes.values()) - next(iter(self.sizes.values()))
        size, made = next(iter(self.sizes.values())), f"made in {self.seconds:.0f} s" if self.seconds else "kept"
        lines = [
            "",
            f"## {one_line(family.name)}",
            "",
            f"WIDENED: it costs what {family.shape.of} costs in {family.mix}, and writes what {one_line(family.small)}"
            f" would write in {family.mix}, from the same {family.n_vocab:,} tokens. It has {size / 1e6:,.0f} MB,"
            f" what drafts for it {others / 1e6:,.0f} MB; {made}.",
            *(f"- Not widened: `{name}`, {one_line(reason)}." for name, reason in family.left_out.items()),
        ]
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
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
    """The folder of inflated models; deletes files of killed benchmarks in it."""
    folder = private_folder(derived / _FOLDER)
    for old in (*folder.glob(f"{_PREFIX}*"), *folder.glob("*.part")):
        with suppress(OSError):
            if old.stat().st_mtime < time() - _LEFT_BEHIND:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
    return folder


@contextmanager
def inflated(family: Family, folder: Path, keep: bool, tell: Callable[[str], None]) -> Iterator[Made]:
    """Makes missing files; deletes them after the body unless ``keep`` is set.

    It does not use the system's temporary folder, which may be in memory that the model needs.

    Raises:
        SlipstreamError: If the disk is full or cannot be written to.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as passing:
        home = folder if keep or family.stands_in(folder) else Path(passing)
        began, sizes, made = perf_counter(), dict[str, int](), False
        for plan, path in family.files(home):
            if not plan.stands_at(path):
                tell(f"making: {plan.name}, {plan.nbytes / 1e6:,.0f} MB")
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
    return "\n".join(["", f"Widened files kept in {folder}, {total / 1e6:,.0f} MB (delete them at will):", "", *rows])


def run_inflated(
    request: Load,
    wish: Wish,
    derived: Path,
    run: Callable[[Load], tuple[dict[str, Any], bool]],
    tell: Callable[[str], None],
    stop: Callable[[], bool] = never,
) -> tuple[list[dict[str, Any]], bool]:
    """Measures the wanted inflated models, one after the other.

    Args:
        derived: Folder of files derived from models.
        run: Measures a model; returns its figures, and whether its check passed.
        stop: Whether to leave out the remaining models.

    Returns:
        The figures of each, and whether all checks passed.

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
