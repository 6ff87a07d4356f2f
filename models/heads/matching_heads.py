"""Finds the files of trained heads that were made for a model, and whether MTP layers in a separate file fit it.

llama.cpp itself checks hardly anything of MTP layers. Their file has the target's architecture without its other layers
(``convert_hf_to_gguf.py --mtp``), or it is a Gemma 4 assistant, whose layers read the target's KV cache.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.architectures import ASSISTANT, ASSISTED, mtp_only, without_mtp
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE, other_vocabulary
from slipstream.models.heads.block_head import ARCHITECTURE, block_method, unfit_block
from slipstream.models.heads.check import METHODS, expected_abilities, heads_fit, unfit
from slipstream.models.heads.file import QUANTIZATIONS, any_quantization, identity, read_info

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


def is_mtp_file(header: Header) -> bool:
    """Whether a file contains MTP layers for a model in another file."""
    return header.architecture == ASSISTANT or mtp_only(header)


def unfit_mtp(header: Header, target: Header) -> str:
    """Why MTP layers do not work with a target, to follow "does not work with this model:"; empty if they do."""
    if not is_mtp_file(header):
        return "its file holds other layers than those of MTP"
    wanted = ASSISTED if header.architecture == ASSISTANT else header.architecture
    if target.architecture != wanted:
        return f"its MTP layers are for models of the architecture {wanted}, and this one is {target.architecture}"
    width = header.number("embedding_length_out") if header.architecture == ASSISTANT else header.n_embd
    if width != target.n_embd:
        return f"its MTP layers are for a model {width or 0:,} wide, and this one is {target.n_embd or 0:,} wide"
    if header.n_rows != target.n_rows:
        return f"its MTP layers have {header.n_rows:,} tokens, and this model {target.n_rows:,}"
    if difference := other_vocabulary(target, header):
        return f"its MTP layers are for another vocabulary: {difference}"
    return _unfit_assistant(header, target) if header.architecture == ASSISTANT else without_mtp(header)


def _unfit_assistant(header: Header, target: Header) -> str:
    layers, pattern = header.n_layer or 0, _pattern(header)
    if header.number("nextn_predict_layers") != layers or header.n_embd == target.n_embd:
        return "its assistant is damaged: its sizes contradict each other"
    if len(pattern) != layers or not any(pattern):
        return "its assistant is damaged: it does not say which layers have a sliding window"
    if _pattern(target)[-2:] != [True, False]:
        return "its assistant reads a layer with a sliding window and a last one without; this model ends otherwise"
    if header.number("attention.sliding_window") != target.number("attention.sliding_window"):
        return "its assistant has a sliding window of another size"
    for kind in ("", "_swa"):
        size = header.number(f"attention.key_length{kind}")
        if not size or size != header.number(f"attention.value_length{kind}") or size % 2:
            return "its assistant is damaged: its attention heads contradict each other"
        if size != target.number(f"attention.key_length{kind}"):
            return f"its assistant has attention heads {size:,} wide, and this model's are of another width"
        if (header.number(f"rope.dimension_count{kind}") or size) > size:
            return "its assistant is damaged: its attention heads contradict each other"
    if not heads_fit(header):
        return "its assistant is damaged: its attention heads contradict each other"
    theirs = _per_layer(target, target.n_layer or 0)
    for sliding, count in zip(pattern, _per_layer(header, layers), strict=True):
        if count != theirs[-2 if sliding else -1]:
            return f"its assistant reads {count} heads of keys, and this model has {theirs[-2 if sliding else -1]}"
    return ""


def _pattern(header: Header) -> list[bool]:
    value = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    return [bool(each) for each in value] if isinstance(value, list) else []


def _per_layer(header: Header, layers: int) -> list[int]:
    value = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    if isinstance(value, list):
        return [int(each) for each in value] if len(value) == layers else [0] * layers
    return [value if isinstance(value, int) else 0] * layers
