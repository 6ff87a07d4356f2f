"""Whether an EAGLE-3 head fits a target: llama.cpp ends the process where it does not (``src/models/eagle3.cpp``)."""

from __future__ import annotations

from typing import Final

from slipstream.models.gguf import Header
from slipstream.models.gguf_parse import TensorInfo
from slipstream.models.gguf_tensors import read_tensor
from slipstream.models.types import Abilities

_I64: Final = 27  # ggml_type
_POINTS: Final = 3


def target_layers(header: Header) -> tuple[int, ...]:
    """The layers of the target whose inputs a head reads; empty if the file does not say."""
    value = header.metadata.get("eagle3.target_layers")
    if not isinstance(value, list) or not all(isinstance(layer, int) for layer in value):
        return ()
    return tuple(int(layer) for layer in value)


def unfit(header: Header, target: Abilities) -> str:
    """Says why a head cannot serve a target, in words that follow "cannot serve this model:"; empty if it can.

    Raises:
        ModelFileError: If the map of its vocabulary cannot be read.
    """
    layers, tensors = target_layers(header), {tensor.name: tensor for tensor in header.tensors}
    width, hidden = header.n_embd or 0, header.number("target_hidden_size") or 0
    if len(layers) != _POINTS or header.n_layer != 1:
        return "its eagle3 head does not have one layer that reads three of the model's"
    missing = sorted(layer for layer in set(layers) if layer < 0 or layer not in target.hidden)
    if missing:
        points = ", ".join(map(str, missing))
        return f"its eagle3 head reads the input of layer {points}, which this model does not hand out"
    if hidden != target.n_embd:
        return f"its eagle3 head is for a model {hidden:,} wide, and this one is {target.n_embd:,} wide"
    if header.n_vocab != target.n_vocab:
        return f"its eagle3 head knows {header.n_vocab:,} tokens, and this model {target.n_vocab:,}"
    if width != target.n_embd and not {"token_embd.weight", "output.weight"} <= tensors.keys():
        return "its eagle3 head is not as wide as the model whose embedding it borrows"
    if not _heads_fit(header) or not _vocabulary_fits(header, tensors):
        return "its eagle3 head is damaged: its sizes contradict each other"
    return ""


def unfit_by_header(header: Header, target: Header) -> str:
    """As :func:`unfit`, for a target that is not loaded: every layer's input counts as handed out.

    Raises:
        ModelFileError: If the map of its vocabulary cannot be read.
    """
    layers = target.n_layer or 0
    facts = Abilities(
        n_vocab=target.n_vocab,
        n_ctx=target.n_ctx_train or 0,
        n_embd=target.n_embd or 0,
        n_layer=layers,
        max_rows=1,
        max_leaves=1,
        hidden=frozenset(range(layers)),
    )
    return unfit(header, facts)


def _heads_fit(header: Header) -> bool:
    heads = header.number("attention.head_count") or 0
    shared = header.number("attention.head_count_kv") or heads
    if not heads or heads % shared:
        return False
    size = header.number("attention.key_length") or (header.n_embd or 0) // heads
    values = header.number("attention.value_length") or (header.n_embd or 0) // heads
    turned = header.number("rope.dimension_count") or size
    return size == values and 0 < turned <= size and turned % 2 == 0


def _vocabulary_fits(header: Header, tensors: dict[str, TensorInfo]) -> bool:
    embedding, output, chosen = (tensors.get(name) for name in ("token_embd.weight", "output.weight", "d2t"))
    if embedding and (len(embedding.shape) != 2 or embedding.shape[1] < header.n_rows):
        return False
    if not chosen:
        return not output or output.shape[1:] == (header.n_rows,)
    if chosen.type != _I64 or not output or output.shape[1:] != chosen.shape:
        return False
    ids = read_tensor(header, chosen)
    return bool(ids.size) and int(ids.min()) >= 0 and int(ids.max()) < header.n_vocab
