"""Models that the benchmark inflates: the cost of a large model, the text of a small one.

What is asked for, what has to be made for it, and whether there is room.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slipstream.app.engine.requests import Load
from slipstream.models.companions import companions
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.fit import fit
from slipstream.models.gguf import Header, read_header
from slipstream.models.inflate.file import MADE_AS, Inflated
from slipstream.models.inflate.heads import inflated_heads
from slipstream.models.inflate.mixes import mix_named
from slipstream.models.inflate.model import inflated_model, model_growth
from slipstream.models.inflate.shapes import Shape, shape_named
from slipstream.models.quoting import shown_path
from slipstream.models.runtime.devices import Device

USUAL_MIX: Final = "Q4_0"
_SPARE: Final = 1 << 28  # bytes of a disk that are left alone


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be inflated.

    Attributes:
        shapes: To which measures; each in every quantization.
        mixes: The quantizations.
        drafter: The measures of the draft model; None to go without one.
        keep: Whether what was made stays on the disk.
    """

    shapes: tuple[Shape, ...]
    mixes: tuple[str, ...]
    drafter: Shape | None
    keep: bool

    @staticmethod
    def of(inflate: str | None, quant: str | None, drafter: str | None, keep: bool) -> Wish | None:
        """Reads the options; None where nothing is to be inflated.

        Raises:
            UsageError: If there is no such shape or quantization, or an option makes no sense without ``--inflate``.
        """
        if inflate is None:
            if quant is not None or drafter is not None or keep:
                raise UsageError("there is nothing to inflate.", "Say to what: --inflate 1b")
            return None
        shapes = dict.fromkeys(shape_named(name.strip()) for name in inflate.split(","))
        mixes = dict.fromkeys(mix_named(name.strip()) for name in (quant or USUAL_MIX).split(","))
        return Wish(tuple(shapes), tuple(mixes), shape_named(drafter) if drafter is not None else None, keep)


@dataclass(frozen=True, slots=True)
class Family:
    """An inflated target and what drafts for it, none of it made yet.

    Attributes:
        small: Name of the small target.
        shape: The measures, with heads of the small target's size.
        mix: The quantization.
        target: The target.
        draft: The draft model.
        heads: Method to heads.
        left_out: What cannot be inflated or was not asked for, and why.
    """

    small: str
    shape: Shape
    mix: str
    target: Inflated
    draft: Inflated | None
    heads: dict[str, Inflated]
    left_out: dict[str, str]

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.target.name

    @property
    def n_vocab(self) -> int:
        """Tokens of the small target."""
        return self.target.header(Path()).n_vocab

    def files(self, folder: Path) -> Iterator[tuple[Inflated, Path]]:
        """Everything that has to be made, and where in a folder it belongs; heads of one shape are shared."""
        yield self.target, _place(folder, f"{self.shape.name}-{self.mix}", self.target)
        if self.draft:
            yield self.draft, _place(folder, f"{self.shape.name}-draft-{self.mix}", self.draft)
        for method, heads in self.heads.items():
            yield heads, _place(folder, f"{self.shape.name}-{method}", heads)

    def load(self, folder: Path) -> Load:
        """The request that loads it, as any large model is loaded."""
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
    """Plans what is asked for.

    Args:
        request: Loads the small model; its draft model and heads are inflated with it.
        wish: What is asked for.

    Raises:
        SlipstreamError: If the model cannot be inflated, or not to one of the shapes.
    """
    header = read_header(Path(request.model))
    small = read_header(Path(request.draft_model)) if request.draft_model else None
    heads = companions(header, map(Path, request.heads))
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
        left_out["draft"] = "no draft model was inflated" + ("; see --inflate-drafter" if small else "")
    else:  # a draft model has its target's vocabulary
        draft = inflated_model(small, replace(drafter, n_vocab=placed.large.n_vocab), mix)
    return Family(header.name, placed.large, mix, inflated_model(header, shape, mix), draft, made, left_out)


def check_room(planned: Sequence[Family], folder: Path, devices: Sequence[Device], keep: bool) -> None:
    """Makes sure that disk and memory hold what is to be made, before any of it is.

    Args:
        planned: What is to be made, one after the other.
        folder: Where.
        devices: What models run on.
        keep: Whether all of it stays.

    Raises:
        SlipstreamError: If they do not.
    """
    for family in planned:
        target, draft = family.target.header(folder), family.draft.header(folder) if family.draft else None
        fits = fit(target, devices, None, draft)
        if fits.verdict == "too big":
            raise SlipstreamError(f"{family.name} does not fit this machine.", fits.why)
    missing = [
        {path: plan.nbytes for plan, path in family.files(folder) if not plan.stands_at(path)} for family in planned
    ]
    together: dict[Path, int] = {}
    for files in missing:
        together |= files
    needed = sum(together.values()) if keep else max((sum(files.values()) for files in missing), default=0)
    free = shutil.disk_usage(folder).free
    if needed + _SPARE > free:
        raise SlipstreamError(
            f"inflating takes {needed / 1e9:.1f} GB, and {shown_path(folder)} has {free / 1e9:.1f} GB free.",
            "Inflate to less (--inflate 1b --quant Q4_0), or set SLIPSTREAM_HOME to a folder that has more room.",
        )


def _place(folder: Path, name: str, plan: Inflated) -> Path:
    """A file's name tells what it is, and changes with all that it is made of."""
    return folder / f"inflated-{name.lower()}-{str(plan.metadata[MADE_AS][1])[:12]}.gguf"
