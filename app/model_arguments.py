"""How a loaded model is named to a command of slipstream."""

from __future__ import annotations

from pathlib import Path

from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import BUNDLED, BUNDLED_TARGET, TUNED, TUNED_TARGET, head_files
from slipstream.app.paths import Paths


def model_name(load: Load, paths: Paths) -> str:
    """What ``-m`` takes: a bundled model's name, which stands for more than its file, else the file's path."""
    path = Path(load.model)
    bundled = {paths.bundled / BUNDLED_TARGET: BUNDLED, paths.bundled / TUNED_TARGET: TUNED}
    return bundled.get(path, str(path.absolute()))


def drafting_arguments(load: Load, paths: Paths) -> list[str]:
    """What else the model was loaded with: its draft model, and heads that are not in the folder of heads."""
    own = {str(path) for path in head_files(paths)}
    draft = ["--draft-model", str(Path(load.draft_model).absolute())] if load.draft_model else []
    return draft + [word for head in load.heads if head not in own for word in ("--heads", head)]
