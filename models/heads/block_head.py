"""The metadata of heads that draft a block of tokens in one pass, and whether they fit a model.

Sources: DFlash (arXiv 2602.06036), DFlash2, and DSpark (arXiv 2607.05147), as in llama.cpp's ``src/models/dflash.cpp``,
which ends the process on most files that are refused here.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.gguf.vocabulary import other_vocabulary
from slipstream.models.heads.check import heads_fit, missing_layers, target_layers
from slipstream.models.types import Abilities, Token

ARCHITECTURE: Final = "dflash"
BlockMethod = Literal["dflash", "dspark"]
_MOST_ROWS: Final = 64  # maximum rows of a block, which runs in one pass
_MOST_CHOICES: Final = 64
_MOST_TAPS: Final = 32  # maximum taps of a convolution
_F32: Final = 0  # ggml_type
_I64: Final = 27
_ONLY_F32: Final = ("_conv_base", ".layer_output_scale.weight", ".attn_sinks.weight", "rope_freqs.weight")


@dataclass(frozen=True, slots=True)
class BlockHead:
    """A head's metadata about its blocks."""

    layers: tuple[int, ...]  # the target's layers whose inputs it reads, in the order of their concatenation
    mask: Token  # the token at positions to predict
    block: int  # number of rows of a block
    first: int  # the row that predicts the token after the text
    choices: int  # number of tokens that a DFlash2 selector scores in each row; 0 without a selector
    confidence: bool  # whether each row of a DSpark head predicts its probability of acceptance
    sections: int  # number of positions of each vector: 4 with M-RoPE, else 1

    @property
    def selected(self) -> bool:
        return self.choices > 0


def block_method(header: Header) -> BlockMethod:
    """The method of a head of the architecture ``dflash``, by llama.cpp's rule."""
    return "dspark" if "markov_w1.weight" in header.by_name else "dflash"


def block_head(header: Header) -> BlockHead:
    """Reads a head's metadata, which ``unfit_block`` has checked."""
    tensors, dspark = header.by_name, block_method(header) == "dspark"
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    return BlockHead(
        layers=target_layers(header),
        mask=mask if isinstance(mask, int) else -1,
        block=_block(header),
        first=0 if dspark and header.metadata.get("dflash.sample_from_anchor", True) else 1,
        choices=(header.number("selector_top_k") or 0) if "selector_hidden.weight" in tensors else 0,
        confidence="conf_proj.weight" in tensors,
        sections=4 if "dflash.rope.dimension_sections" in header.metadata else 1,
    )


def unfit_block(header: Header, target: Abilities, model: Header | None = None) -> str:
    """Why a head does not work with a target, to follow "does not work with this model:"; empty if it does."""
    head, its = block_head(header), f"its {block_method(header)} head"
    if header.number("hyper_connection.count"):
        return f"{its} is of DeepSeek-V4's kind, which is not supported"
    if not head.layers:
        return f"{its} does not say which layers it reads"
    if missing := missing_layers(its, head.layers, target):
        return missing
    if header.n_embd != target.n_embd:
        return f"{its} is for a model {header.n_embd or 0:,} wide, and this one is {target.n_embd:,} wide"
    if header.n_rows != target.n_vocab + target.spare_rows:
        return f"{its} has {header.n_rows:,} tokens, and this model {target.n_vocab:,}"
    if model and (difference := other_vocabulary(model, header)):
        return f"{its} is for another vocabulary: {difference}"
    if not 0 <= head.mask < target.n_vocab:
        return f"{its} does not say which token is the mask"
    if not 2 <= head.block <= _MOST_ROWS:
        return f"{its} guesses blocks of {head.block} rows, and only 2 to {_MOST_ROWS} are supported"
    why = _damage(header, head)
    return f"{its} is damaged: {why}" if why else ""


def _damage(header: Header, head: BlockHead) -> str:
    if not heads_fit(header):
        return "its attention heads contradict each other"
    sections = header.metadata.get("dflash.rope.dimension_sections")
    if sections is not None:
        numbers = [n for n in sections if isinstance(n, int)] if isinstance(sections, list) else []
        if not 1 <= len(numbers) <= 4 or min(numbers) < 0 or not numbers[0]:
            return "its sections of rotated numbers are no sizes"
    if header.number("attention.sliding_window"):
        pattern = header.metadata.get("dflash.attention.sliding_window_pattern")
        if not isinstance(pattern, list) or len(pattern) != header.n_layer or not any(pattern):
            return "it does not say which layers have a sliding window"
    for tensor in header.tensors:
        if tensor.name.endswith(_ONLY_F32) and tensor.type != _F32:
            return f"{tensor.name} is not stored as F32"
    if head.selected:
        taps = header.number("conv_kernel_size") or 0
        if head.choices > min(_MOST_CHOICES, header.n_rows) or not 1 <= taps <= _MOST_TAPS:
            return "the sizes of its selector are out of range"
    return _vocabulary_damage(header, head)


def _vocabulary_damage(header: Header, head: BlockHead) -> str:
    output, chosen = header.by_name.get("output.weight"), header.by_name.get("d2t")
    if not chosen:
        return ""
    if chosen.type != _I64 or not output or output.shape[1:] != chosen.shape:
        return "the map of its vocabulary does not fit its output"
    ids = read_tensor(header, chosen)
    if not ids.size or int(ids.min()) < 0 or int(ids.max()) >= header.n_rows or len(np.unique(ids)) != ids.size:
        return "the map of its vocabulary does not name different tokens"
    return "the sizes of its selector are out of range" if head.choices > ids.size else ""


def _block(header: Header) -> int:
    size = header.number("block_size")
    return 16 if size is None and block_method(header) == "dflash" else size or 0  # the default of llama.cpp
