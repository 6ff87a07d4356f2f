"""Finds the files of trained heads that were made for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE
from slipstream.models.heads.block_head import ARCHITECTURE, block_method, unfit_block
from slipstream.models.heads.check import METHODS, expected_abilities, unfit
from slipstream.models.heads.file import QUANTIZATIONS, any_quantization, identity, read_info
from slipstream.models.heads.mtp_head import is_mtp_file, unfit_mtp

TrainedMethod = Literal["medusa", "kangaroo", "space", "eagle3", "dflash"]
TRAINED: Final[tuple[TrainedMethod, ...]] = (*METHODS, "eagle3", "dflash")
"""The methods whose heads Slipstream can train."""
HEAD_METHODS: Final = ("eagle3", "mtp", "dflash", "dspark")
"""The methods whose heads llama.cpp itself runs; ``slipstream.heads.target`` names the model that a head is for."""

EAGLE: Final = "eagle3"
MTP: Final = "mtp"
TARGET_KEY: Final = "slipstream.heads.target"
TEXT_KEY: Final = "slipstream.heads.text"  # the training text of a head that Slipstream trained
ACCEPTANCE_KEY: Final = "slipstream.heads.setting.acceptance"  # its acceptance rate by depth, as measured in training


def method_of(header: Header) -> str:
    """The drafting method of a head that llama.cpp runs; empty for any other file."""
    if header.architecture == ARCHITECTURE:
        return block_method(header)
    if is_mtp_file(header):
        return MTP
    return EAGLE if header.architecture == EAGLE else ""


def why_unfit(head: Header, target: Header) -> str:
    """Why a head that llama.cpp runs does not work with a model; empty if the headers give no reason."""
    if is_mtp_file(head):
        return unfit_mtp(head, target)
    expected = expected_abilities(target)
    return unfit_block(head, expected, target) if head.architecture == ARCHITECTURE else unfit(head, expected)


def matching_heads(
    header: Header, paths: Iterable[Path], unreadable: Callable[[Path, SlipstreamError], None] = lambda _, __: None
) -> dict[str, Path]:
    """Finds the heads that were trained for a model; those for another quantization of it only where no others are."""
    found: dict[str, Path] = {}
    others: dict[str, Path] = {}
    own = model = ""
    for path in paths:
        try:
            theirs = read_header(path)
            if theirs.architecture == HEADS_ARCHITECTURE:
                info = read_info(path)
                method, target = str(info.method), info.target
            elif method := method_of(theirs):
                target = str(theirs.metadata.get(TARGET_KEY, ""))
                if not target and not why_unfit(theirs, header):  # published heads do not name their model
                    found.setdefault(method, path)
            else:
                continue
            own = own or identity(header)
        except SlipstreamError as error:
            unreadable(path, error)
            continue
        if target == own:
            found[method] = path
        elif mark := theirs.metadata.get(QUANTIZATIONS):
            model = model or any_quantization(header)
            if mark == model:
                others[method] = path
    return others | found
