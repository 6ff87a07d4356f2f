"""The request that loads a model file, and the checks before its first use."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.app.chats.deletion_hooks import is_on
from slipstream.app.platform.paths import Paths, write_private
from slipstream.app.protocol.requests import AUTO, Load
from slipstream.app.settings.file import GIVEN, SettingsFile
from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.file_name import shown_name
from slipstream.models.library.places import ARCHITECTURE as PROJECTOR
from slipstream.models.library.places import ProjectorChoice, projector_of
from slipstream.models.outside import read_limited, shown_path

BUNDLED: Final = "bundled"
BUNDLED_TARGET: Final = "slipstream-mini-q8_0.gguf"
TUNED: Final = "bundled-tuned"
TUNED_TARGET: Final = "slipstream-mini-tuned-q8_0.gguf"
BUNDLED_DRAFT: Final = "slipstream-mini-draft-q8_0.gguf"
SHIPPED: Final = MappingProxyType({BUNDLED: BUNDLED_TARGET, TUNED: TUNED_TARGET})
"""Files of the models that ship with Slipstream and are no drafters, by name."""
TITLES: Final = MappingProxyType({BUNDLED_TARGET: "Slipstream mini", TUNED_TARGET: "Slipstream mini, tuned for SPACE"})
"""Of the models that ship with Slipstream, by the name of their file."""
PROBED: Final = "probed.json"  # file in the folder of derived files, see ``Load.probed``
_MODEL: Final = "model.name"
_USUAL: Final = "usual-model"  # file in the folder of models; contains the name of the model chosen last
_USED: Final = "used-files"  # file in the folder of models; contains the paths of models that were named by them
_LONGEST_NAME: Final = 4_096  # bytes
_MOST_USED: Final = 64


def load_of(
    paths: Paths, target: Path, draft_model: str | None, drafter: str | None, n_ctx: int, *, heads: Sequence[Path] = ()
) -> Load:
    bundled = target.parent == paths.bundled
    projector = ProjectorChoice() if bundled else projector_here(paths, target)
    return Load(
        model=str(target),
        mmproj=str(projector.path) if projector.path else None,
        mmproj_unsure=[str(path) for path in projector.unsure],
        draft_model=draft_model,
        heads=[str(path) for path in dict.fromkeys([*head_files(paths, bundled), *heads])],
        probed=str(paths.derived / PROBED),
        measured_with=str(paths.bundled / BUNDLED_TARGET),
        derived=str(paths.derived),
        proofs=str(paths.derived),
        index=str(paths.index) if is_on(paths.index) else None,
        chats=str(paths.chats),
        left_out=str(paths.drafters),
        drafter=drafter or AUTO,
        n_ctx=n_ctx,
        bundled=bundled,
    )


def projector_here(paths: Paths, model: Path) -> ProjectorChoice:
    """The mmproj file of a model among all files on this machine."""
    from slipstream.models.library.places import projector_files

    return projector_of(model, lambda: projector_files(paths.models, os.environ))


def head_files(paths: Paths, bundled: bool = False) -> list[Path]:
    """Files of heads that ship, and the user's; the bundled model skips those of others, which take 0.14 s to read."""
    others = [] if bundled else paths.bundled.glob("*/*.gguf")
    found = (paths.bundled.glob("*.gguf"), others, paths.heads.glob("*.gguf"))
    return [path for each in found for path in sorted(each)]


def usual(paths: Paths) -> str:
    try:
        return read_limited(paths.models / _USUAL, _LONGEST_NAME).decode().strip() or BUNDLED
    except (OSError, ValueError):
        return BUNDLED


def make_usual(paths: Paths, model: str) -> None:
    write_private(paths.models / _USUAL, f"{model}\n")


def used_files(paths: Paths) -> list[Path]:
    try:
        text = read_limited(paths.models / _USED, _LONGEST_NAME * _MOST_USED).decode()
    except (OSError, ValueError):
        return []
    return [Path(line) for line in text.splitlines() if line]


def remember_file(paths: Paths, settings: SettingsFile, model: str) -> None:
    """Lists a loaded model that the command line named by its path, and makes it the default."""
    given = settings.settled(_MODEL)
    if settings.where(_MODEL) == GIVEN and is_path(str(given)) and Path(model).parent != paths.bundled:
        path = Path(model).absolute()
        with suppress(SlipstreamError):
            make_usual(paths, str(path))
            lines = dict.fromkeys([path, *used_files(paths)])
            write_private(paths.models / _USED, "".join(f"{line}\n" for line in list(lines)[:_MOST_USED]))


def is_path(name: str) -> bool:
    """Whether a name is a path: it exists, or looks like a path rather than a repository."""
    shaped = name.endswith(".gguf") or name.startswith((".", "~", os.sep))
    return shaped or Path(name).is_file() or (os.sep in name and Path(name).exists())


def check_files(load: Load, shipped: Path | None = None) -> None:
    """Checks the headers of the files but those in ``shipped``, the bundled models' folder, without loading them."""
    files = [Path(name) for name in (load.model, load.draft_model) if name]
    for file in files:
        if file.parent != shipped:
            from slipstream.models.gguf.reader import read_header  # imported only if needed
            from slipstream.models.gguf.vocabulary import check_vocabulary

            check_vocabulary(read_header(file))
    if load.lora:
        from slipstream.models.gguf.lora import read_adapter
        from slipstream.models.gguf.reader import read_header

        header = read_header(Path(load.model))
        for each in load.lora:
            read_adapter(Path(each.path), each.scale, header)


def check_projector(path: Path | str) -> None:
    from slipstream.models.gguf.reader import read_header

    header = read_header(Path(path))
    if header.architecture != PROJECTOR:
        what = f"a {header.architecture} model" if header.architecture else "a GGUF without an architecture"
        raise ModelFileError(
            f"{shown_path(path)} is no mmproj file: it is {what}.", "Name the mmproj file of the model."
        )


def check_experts(model: Path) -> None:
    """Checks that a model has experts, for ``--cpu-experts``."""
    from slipstream.models.gguf.reader import read_header

    if not read_header(model).number("expert_count"):
        raise UsageError(f"{title_of(model)} has no experts for --cpu-experts.", "Leave it out, or name another model.")


def title_of(model: Path) -> str:
    return TITLES.get(model.name) or shown_name(model)


def model_name(load: Load, paths: Paths) -> str:
    """The value for ``-m``: a bundled model's name, else the file's path."""
    path = Path(load.model)
    shipped = {paths.bundled / file: name for name, file in SHIPPED.items()}
    return shipped.get(path, str(path.absolute()))


def drafting_arguments(load: Load, paths: Paths) -> list[str]:
    """The options for a loaded model's draft model, its adapters, and heads outside the folder of heads."""
    own = {str(path) for path in head_files(paths)}
    draft = ["--draft-model", str(Path(load.draft_model).absolute())] if load.draft_model else []
    loras = [word for each in load.lora for word in ("--lora", f"{Path(each.path).absolute()}:{each.scale!r}")]
    return draft + loras + [word for head in load.heads if head not in own for word in ("--heads", head)]


def try_first(path: Path, paths: Paths) -> None:
    """Probes a model file before a command loads it in its own process, as the engine does (``Load.probed``)."""
    from slipstream.models.gguf.probe import ProbeRecord, probe_once
    from slipstream.models.llama.library import built  # loads llama.cpp

    probe_once([path], ProbeRecord(paths.derived / PROBED, built()), tell_check)


def tell_check() -> None:
    print("checking the file before its first use", file=sys.stderr)


def placed(load: Load, gpu_layers: int | None, rpc: str | None, draft_device: str | None) -> Load:
    """Changes the placement of a load; None keeps its value."""
    check_placement(gpu_layers, rpc)
    devices = load.devices if rpc is None else replace(load.devices, rpc=rpc)
    devices = devices if draft_device is None else replace(devices, draft=draft_device)
    layers = load.gpu_layers if gpu_layers is None else gpu_layers
    return replace(load, gpu_layers=layers, devices=devices)


def check_placement(gpu_layers: int | None, rpc: str | None, name: str = "gpu-layers") -> None:
    """Raises ``UsageError`` for an invalid number of layers or name of a machine."""
    if (gpu_layers or 0) < -1:
        raise UsageError(f"{name} is {gpu_layers}; it must be -1 or more.")
    if rpc:
        from slipstream.models.llama.remote import endpoints

        endpoints(rpc)
