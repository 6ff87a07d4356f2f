"""Checks the tensors of trained heads, and that they fit their model: otherwise llama.cpp may end the process."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.models.gguf.architectures import LAYER_INPUTS
from slipstream.models.gguf.parse import DamagedError, Value
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.outside import quoted
from slipstream.models.types import Abilities

Method = Literal["medusa", "kangaroo", "space"]
METHODS: Final[tuple[Method, ...]] = ("medusa", "kangaroo", "space")
TOKEN_IDS: Final = "output.ids"  # the only integer tensor: the token of each row of an output matrix
HEAD_NORMS: Final = ("attn_q_norm.weight", "attn_k_norm.weight")
"""Tensors of a Kangaroo adapter whose model has a norm in every head, such as qwen3."""
MAX_HEADS: Final = 64  # maximum Medusa heads, layers of a head, and mask tokens; published heads have up to five
_STORED: Final = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0"})
Shapes = Mapping[str, tuple[int, ...]]  # tensor name to its sizes in numpy's order
_I64: Final = 27  # ggml_type
_POINTS: Final = 3


def check_heads(method: Method, shapes: Shapes, settings: Mapping[str, Value], target: Header | None = None) -> None:
    """Checks that heads have every tensor they need, each of the right size, and no other.

    The tensors, where d is the width of a hidden state:

    - Medusa: ``head.K.LAYER.weight`` [d, d] and ``.bias`` [d]; ``output.weight`` [rows, d] for all heads, or
      ``head.K.output.weight`` for each; ``output.ids`` [rows] if row i is not the row of token i.
    - Kangaroo: ``attn_norm.weight`` [d], ``attn_q.weight`` [q, d], ``attn_k.weight`` and ``attn_v.weight`` [kv, d],
      ``attn_output.weight`` [d, q], ``output_norm.weight`` [d]; for a model with a norm in each head,
      ``attn_q_norm.weight`` and ``attn_k_norm.weight`` [head]; and the setting ``exit_layer``.
    - SPACE: ``masks`` [masks, d].
    """
    if any(not shape or 0 in shape for shape in shapes.values()):
        raise DamagedError("cannot be used: one of its tensors is empty")
    wanted = {"medusa": _medusa, "kangaroo": _kangaroo, "space": _space}[method](shapes)
    for name, shape in wanted.items():
        if name not in shapes:
            raise DamagedError(f"has no tensor {quoted(name)}")
        if shapes[name] != shape:
            raise DamagedError(f"cannot be used: tensor {quoted(name)} is {list(shapes[name])}, not {list(shape)}")
    for name in shapes:
        if name not in wanted:
            raise DamagedError(f"cannot be used: tensor {quoted(name)} is no part of {method} heads")
    exit_layer = settings.get("exit_layer")
    if method == "kangaroo" and (type(exit_layer) is not int or not 1 <= exit_layer <= 512):
        raise DamagedError("does not say after which layer of the model its adapter starts")
    if target is not None:
        _fits(method, wanted, exit_layer, target)


def check_storage(header: Header) -> None:
    """Raises ``DamagedError`` unless every tensor has a storage type that :func:`read_tensor` reads as needed."""
    for tensor in header.tensors:
        if tensor.type_name not in (("I32",) if tensor.name == TOKEN_IDS else _STORED):
            raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} is stored as {tensor.type_name}")


def check_values(name: str, values: NDArray[Any], target: Header | None = None) -> None:
    """Raises ``DamagedError`` unless weights are finite, and token ids are distinct and exist in ``target``."""
    if name == TOKEN_IDS:
        if values.min() < 0 or len(np.unique(values)) != len(values):
            raise DamagedError(f"is damaged: {quoted(name)} are not different token ids")
        if target is not None and values.max() >= target.n_rows:
            raise DamagedError(
                f"does not fit {quoted(target.title)}: token {values.max():,}, but the model has {target.n_vocab:,}"
            )
    elif not np.isfinite(values).all():
        raise DamagedError(f"is damaged: {quoted(name)} holds values that are not numbers")


def _fits(method: Method, shapes: Shapes, exit_layer: Value | None, target: Header) -> None:
    first = {"space": "masks", "medusa": "head.0.0.weight", "kangaroo": "attn_norm.weight"}[method]
    width, unfit = shapes[first][-1], f"does not fit {quoted(target.title)}"
    if width != target.n_embd:
        raise DamagedError(f"{unfit}: {width:,} wide, but the model is {target.n_embd:,}")
    if method == "medusa":
        rows = shapes["output.weight" if "output.weight" in shapes else "head.0.output.weight"][0]
        if rows > target.n_rows:
            raise DamagedError(f"{unfit}: {rows:,} tokens, but the model has {target.n_vocab:,}")
    if method == "kangaroo":
        if target.n_layer is not None and isinstance(exit_layer, int) and exit_layer >= target.n_layer:
            raise DamagedError(f"{unfit}: it starts after layer {exit_layer} of {target.n_layer}")
        for name, key in (("attn_q.weight", "attention.head_count"), ("attn_k.weight", "attention.head_count_kv")):
            rows, wanted = shapes[name][0], attention_rows(target, key)
            if wanted is not None and rows != wanted:
                raise DamagedError(f"{unfit}: {quoted(name)} has {rows:,} rows, not {wanted:,}")
        theirs = {tensor.name.removeprefix("blk.0."): tensor.shape for tensor in target.tensors}
        for name in HEAD_NORMS:
            if shapes.get(name) != theirs.get(name):
                raise DamagedError(f"{unfit}: its heads' norms are other ones")


def attention_rows(target: Header, key: str) -> int | None:
    """Number of rows of the query or key matrix; None if layers differ, or the file does not say."""
    heads = target.number("attention.head_count")
    if not heads or target.n_embd is None:
        return None
    count = target.number(key) if f"{target.architecture}.{key}" in target.metadata else heads
    return None if count is None else count * (target.number("attention.key_length") or target.n_embd // heads)


def _medusa(shapes: Shapes) -> Shapes:
    width, heads = _size(shapes, "head.0.0.weight", 0), count_tensors(shapes, "head.{}.0.weight")
    blocks = [
        f"head.{head}.{layer}" for head in range(heads) for layer in range(count_tensors(shapes, "head.0.{}.weight"))
    ]
    outputs = ["output.weight"]
    if "output.weight" not in shapes:
        outputs = [f"head.{head}.output.weight" for head in range(heads)]
    rows = _size(shapes, outputs[0], 0)
    return (
        {f"{block}.weight": (width, width) for block in blocks}
        | {f"{block}.bias": (width,) for block in blocks}
        | {output: (rows, width) for output in outputs}
        | ({"output.ids": (rows,)} if "output.ids" in shapes else {})
    )


def _kangaroo(shapes: Shapes) -> Shapes:
    width = _size(shapes, "attn_norm.weight", 0)
    queries, keys = _size(shapes, "attn_q.weight", 0), _size(shapes, "attn_k.weight", 0)
    return {
        "attn_norm.weight": (width,),
        "attn_q.weight": (queries, width),
        "attn_k.weight": (keys, width),
        "attn_v.weight": (keys, width),
        "attn_output.weight": (width, queries),
        "output_norm.weight": (width,),
    } | {name: (_size(shapes, name, 0),) for name in HEAD_NORMS if name in shapes}


def _space(shapes: Shapes) -> Shapes:
    masks = _size(shapes, "masks", 0)
    if masks > MAX_HEADS:
        raise DamagedError(f"is damaged: it has {masks:,} masks")
    return {"masks": (masks, _size(shapes, "masks", -1))}


def _size(shapes: Shapes, name: str, axis: int) -> int:
    if name not in shapes:
        raise DamagedError(f"has no tensor {quoted(name)}")
    return shapes[name][axis]


def count_tensors(shapes: Shapes, name: str) -> int:
    """How many tensors have a name with the numbers 0, 1 and so on in it."""
    count = 0
    while name.format(count) in shapes:
        count += 1
    if count > MAX_HEADS:
        raise DamagedError(f"is damaged: it has more than {MAX_HEADS} of {quoted(name.format('N'))}")
    return count


def target_layers(header: Header) -> tuple[int, ...]:
    """The layers of the target whose inputs a head reads; empty if the file does not say."""
    value = header.metadata.get(f"{header.architecture}.target_layers")
    if not isinstance(value, list) or not 0 < len(value) <= 512 or not all(type(layer) is int for layer in value):
        return ()
    return tuple(int(layer) for layer in value)


def missing_layers(head: str, layers: tuple[int, ...], target: Abilities) -> str:
    """Which inputs of layers a head reads that the target does not hand out; empty if there are none."""
    missing = sorted(layer for layer in set(layers) if layer < 0 or layer not in target.hidden)
    points = ", ".join(map(str, missing))
    return f"{head} reads the input of layer {points}, which this model does not hand out" if missing else ""


def unfit(header: Header, target: Abilities) -> str:
    """Why an EAGLE-3 head does not work with a target, to follow "does not work with this model:"; empty if it does."""
    layers = target_layers(header)
    width, hidden = header.n_embd or 0, header.number("target_hidden_size") or 0
    if len(layers) != _POINTS or header.n_layer != 1:
        return "its eagle3 head does not have one layer that reads three of the model's"
    if missing := missing_layers("its eagle3 head", layers, target):
        return missing
    if hidden != target.n_embd:
        return f"its eagle3 head is for a model {hidden:,} wide, and this one is {target.n_embd:,} wide"
    if header.n_vocab != target.n_vocab:
        return f"its eagle3 head has {header.n_vocab:,} tokens, and this model {target.n_vocab:,}"
    if width != target.n_embd and not {"token_embd.weight", "output.weight"} <= header.by_name.keys():
        return "its eagle3 head is not as wide as the model whose embedding it borrows"
    if not heads_fit(header) or not _vocabulary_fits(header):
        return "its eagle3 head is damaged: its sizes contradict each other"
    return ""


def expected_abilities(target: Header) -> Abilities:
    """The abilities, as far as heads need them, that a model will have when it is loaded."""
    layers = (target.n_layer or 0) - (target.number("nextn_predict_layers") or 0)
    return Abilities(
        n_vocab=target.n_vocab,
        n_ctx=target.n_ctx_train or 0,
        n_embd=target.n_embd or 0,
        n_layer=layers,
        max_rows=1,
        max_leaves=1,
        hidden=frozenset(range(layers if target.architecture in LAYER_INPUTS else 0)),
        spare_rows=target.n_rows - target.n_vocab,
    )


def heads_fit(header: Header) -> bool:
    """Whether the numbers and widths of a file's attention heads are consistent, as llama.cpp's graphs assume."""
    heads = header.number("attention.head_count") or 0
    shared = header.number("attention.head_count_kv") or heads
    if not heads or heads % shared:
        return False
    size = header.number("attention.key_length") or (header.n_embd or 0) // heads
    values = header.number("attention.value_length") or (header.n_embd or 0) // heads
    turned = header.number("rope.dimension_count") or size
    return size == values and 0 < turned <= size and turned % 2 == 0


def _vocabulary_fits(header: Header) -> bool:
    embedding, output, chosen = (header.by_name.get(name) for name in ("token_embd.weight", "output.weight", "d2t"))
    if embedding and (len(embedding.shape) != 2 or embedding.shape[1] < header.n_rows):
        return False
    if not chosen:
        return not output or output.shape[1:] == (header.n_rows,)
    if chosen.type != _I64 or not output or output.shape[1:] != chosen.shape:
        return False
    ids = read_tensor(header, chosen)
    return bool(ids.size) and int(ids.min()) >= 0 and int(ids.max()) < header.n_vocab
