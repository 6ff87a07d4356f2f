"""The process that first loads an mmproj file, see ``slipstream.models.llama.probe_child``: it may crash or hang."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.library import physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.probe_child import limit, main
from slipstream.models.types import pass_tokens
from slipstream.models.vision.projector import Projector

_WORK: Final = 20  # an image takes as much computation as a short text in a model of 20 times the mmproj file's size


def probe(path: Path, model: Path) -> None:
    """Loads an mmproj file with its model and encodes an image.

    Raises:
        SlipstreamError: If the file is refused; a bad file may crash this process instead.
    """
    size = sum(part.stat().st_size for part in read_header(model).parts) + _WORK * path.stat().st_size
    threads = physical_cores()
    limit(size, threads)
    with (
        closing(LlamaModel(model, placement=Placement(0), repack=False)) as text,
        closing(Projector(path, text, pass_tokens(True), gpu=False, threads=threads)) as projector,
    ):
        projector.try_out()


if __name__ == "__main__":
    main(probe)
