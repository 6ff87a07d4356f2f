"""Checks the metadata and tensors of a GGUF file before C code reads them.

On many damaged files, llama.cpp ends the process; on some, it has read or written out of bounds. So they are refused
here. The rules come from loading thousands of mutated files: each one stopped a crash, a hang or an overflow. An
unknown architecture is not an error here: llama.cpp decides.

llama.cpp checks most shapes of tensors itself; ``check_sizes`` covers the ones that it does not check.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from slipstream.models.chat_template.sandbox import compile_template
from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.parse import BOOL, F32, I32, STRING, U32, DamagedError, Framing, TensorInfo, Value
from slipstream.models.outside import quoted

DEFAULT_ALIGNMENT: Final = 32
MAX_TOKENS: Final = 1_000_000
MAX_EXPERTS: Final = 1_024
MAX_TAIL: Final = 16 << 20  # bytes that may follow the weights; llama.cpp still maps and reads them
NO_TOKEN: Final = (-1, 2**32 - 1)  # converters write these for "there is no such token", and llama.cpp skips them
TOKENIZERS: Final = frozenset({"llama", "gpt2", "bert", "t5", "rwkv", "gemma4", "plamo2", "none", "no_vocab"})
NO_TOKENIZERS: Final = frozenset({"none", "no_vocab"})
TOKENIZER_ARCHITECTURES: Final = {"bert": ("bert",), "t5": ("t5", "bert"), "rwkv": ("rwkv",), "plamo2": ("plamo",)}
"""Tokenizers that abort with other architectures, to the parts of architecture names with which they work."""
_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-F]{2}>")
_BYTE_TYPE: Final = 6
_BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
_WHOLE: Final = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_LIST_TYPES: Final = frozenset({U32, I32, F32, BOOL, STRING})  # llama.cpp reads these as 4-byte numbers without a check
_RANGES: Final = {
    "block_count": (1, 512),
    "embedding_length": (1, 1 << 17),
    "context_length": (1, 1 << 24),
    "vocab_size": (1, MAX_TOKENS),
    "attention.sliding_window": (0, 1 << 24),
    "expert_count": (0, MAX_EXPERTS),
    "expert_used_count": (0, MAX_EXPERTS),
}
_ADDED: Final = re.compile(r"(norm(_\d)?\.weight|\.bias|\.ssm_[ad]|\.ssm_conv1d\.weight|\.shortconv\.conv\.weight)$")
"""Tensors of additions, elementwise products and convolutions: ggml needs F32 there, and every converter writes it."""
_F32: Final = 0
_NO_WEIGHTS: Final = frozenset({9, 15, 24, 25, 26, 27, 28})
"""Types that matrix products do not accept as weights: Q8_1, Q8_K, integers, F64."""
_TABLE: Final = "tid2eid"  # in the names of integer tables that map tokens to experts
_OWN_HEADS: Final = frozenset({"lfm2", "lfm2moe"})
"""Architectures whose graph splits queries by the metadata's head size without comparing it to the tensor's rows."""
_DELTA_NETS: Final = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Architectures of gated delta nets, whose key heads and value heads have the same width."""


def check_metadata(framing: Framing, architecture: str) -> None:
    """Checks every key that llama.cpp is known to trust."""
    for name, (low, high) in _RANGES.items():
        _number(framing, f"{architecture}.{name}", low, high)
    layers = framing.metadata.get(f"{architecture}.block_count")
    if isinstance(layers, int):
        for name in ("nextn_predict_layers", "leading_dense_block_count"):
            _number(framing, f"{architecture}.{name}", 0, layers)
    for name in ("head_count", "head_count_kv"):
        _heads(framing, architecture, f"{architecture}.attention.{name}")
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        _epsilon(framing, f"{architecture}.attention.{name}")
    _experts(framing, architecture)
    for key, kind in framing.types.items():
        if key.startswith(f"{architecture}.") and kind < 0 and -1 - kind not in _LIST_TYPES:
            raise DamagedError(f"is damaged: {quoted(key)} is a list of an unsupported kind of number")
    _tokenizer(framing, architecture)
    template = framing.metadata.get("tokenizer.chat_template")
    if template is not None:
        if not isinstance(template, str):
            raise DamagedError("is damaged: its chat template is not a text")
        try:
            compile_template(template)
        except ModelFileError as error:
            raise DamagedError(f"cannot be used: {error.title.rstrip('.')}", error.hint) from None


def alignment_of(framing: Framing) -> int:
    value = framing.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        framing.types.get("general.alignment", U32) != U32
        or not isinstance(value, int)
        or not 8 <= value <= 4096
        or value & (value - 1)
    ):
        raise DamagedError(f"is damaged: its alignment {_shown(value)} is not a power of two from 8 to 4096")
    return value


def data_start(framing: Framing, alignment: int) -> int:
    """Checks that the tensors follow one another within the file; returns the offset of the first one."""
    start = _aligned(len(framing.header), alignment)
    expected = 0
    for tensor in framing.tensors:
        if tensor.offset != expected:
            raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} does not follow the one before it")
        expected = _aligned(tensor.offset + tensor.nbytes, alignment)
    if framing.tensors:
        last = framing.tensors[-1]
        end = last.offset + last.nbytes  # the padding after the last tensor may be missing
        there = max(0, framing.size - start)
        if there > end + MAX_TAIL:
            raise DamagedError(f"is damaged: {there - end:,} bytes follow its weights", "Fetch the file again.")
        if there < end:
            raise DamagedError(
                f"is cut short: the header announces {end:,} bytes of weights but the file ends after {there:,}",
                "The download may have stopped early: fetch the file again.",
            )
    return start


def _aligned(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


def _shown(value: Value) -> str:
    return quoted(value if isinstance(value, str) else str(value))


def _number(framing: Framing, key: str, low: int, high: int) -> None:
    value = framing.metadata.get(key)
    if value is None:
        return
    if framing.types[key] not in _WHOLE or not isinstance(value, int) or not low <= value <= high:
        raise DamagedError(f"is damaged: {quoted(key)} is {_shown(value)}, not a number from {low} to {high}")


def _heads(framing: Framing, architecture: str, key: str) -> None:
    value = framing.metadata.get(key)
    if value is None:
        return
    if isinstance(value, list):  # hybrid models count 0 heads in layers that have no attention
        if framing.types[key] not in (-1 - U32, -1 - I32) or not all(0 <= int(n) <= 1024 for n in value):
            raise DamagedError(f"is damaged: {quoted(key)} holds numbers that are not from 0 to 1024")
        return
    stateful = (
        f"{architecture}.ssm.state_size" in framing.metadata or f"{architecture}.wkv.head_size" in framing.metadata
    )
    _number(framing, key, 0 if stateful else 1, 1024)


def _epsilon(framing: Framing, key: str) -> None:
    value = framing.metadata.get(key)
    if value is not None and not (framing.types[key] == F32 and isinstance(value, float) and 0 < value < 0.1):
        raise DamagedError(f"is damaged: {quoted(key)} is {_shown(value)}, not a number between 0 and 0.1")


def _experts(framing: Framing, architecture: str) -> None:
    count = framing.metadata.get(f"{architecture}.expert_count", 0)
    used = framing.metadata.get(f"{architecture}.expert_used_count", 0)
    if isinstance(count, int) and isinstance(used, int) and (used > count or (count > 0 and used == 0)):
        raise DamagedError(f"is damaged: it uses {used} of {count} experts")
    groups = framing.metadata.get(f"{architecture}.expert_group_count", 0)
    chosen = framing.metadata.get(f"{architecture}.expert_group_used_count", 0)
    if not isinstance(groups, int) or not isinstance(chosen, int) or not isinstance(count, int):
        raise DamagedError("is damaged: its groups of experts are not counted in numbers")
    if groups and (not count or count % groups or (groups > 1 and not 0 < chosen < groups)):
        raise DamagedError(f"is damaged: it uses {chosen} of {groups} groups of {count} experts")


def _tokenizer(framing: Framing, architecture: str) -> None:
    metadata, types = framing.metadata, framing.types
    model = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if model is None and tokens is None:
        return
    if not isinstance(model, str) or model not in TOKENIZERS:
        raise DamagedError(
            f"cannot be used: its tokenizer {_shown(model) if model is not None else 'has no kind and'} is not known",
            "Choose another conversion of the model.",
        )
    families = TOKENIZER_ARCHITECTURES.get(model)
    if families and not any(family in architecture for family in families):
        raise DamagedError(f"is damaged: a {model} tokenizer does not go with the architecture {quoted(architecture)}")
    if tokens is None:
        if model not in NO_TOKENIZERS:
            raise DamagedError("is damaged: it has a tokenizer without tokens")
        return
    if types["tokenizer.ggml.tokens"] != -1 - STRING or not isinstance(tokens, list):
        raise DamagedError("is damaged: its tokens are not a list of texts")
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise DamagedError(f"is damaged: it has {len(tokens):,} tokens")
    texts = [str(text) for text in tokens]
    _unique(texts)
    _same_length(framing, "tokenizer.ggml.scores", (F32, I32), len(texts))
    _same_length(framing, "tokenizer.ggml.token_type", (I32,), len(texts))
    token_types = metadata.get("tokenizer.ggml.token_type")
    if isinstance(token_types, list):
        for index, kind in enumerate(token_types):
            if kind == _BYTE_TYPE and not _BYTE_TOKEN.fullmatch(texts[index]):
                raise DamagedError(f"is damaged: byte token {index} is {quoted(texts[index])}")
    if model == "llama" and len(texts) >= len(_BYTES):
        _all_bytes(texts)
    _special_tokens(framing, len(texts))
    merges = types.get("tokenizer.ggml.merges")
    if merges is not None and merges != -1 - STRING:
        raise DamagedError("is damaged: its merges are not a list of texts")
    _charsmap(framing)


def _unique(texts: list[str]) -> None:
    # llama.cpp reads C strings and names empty tokens itself, so compare the texts that it will use
    seen: dict[str, int] = {}
    if len(set(texts)) == len(texts) and "" not in texts and not any("\0" in text for text in texts):
        return
    for index, text in enumerate(texts):
        first = seen.setdefault(text.split("\0", 1)[0] or f"[EMPTY_{index}]", index)
        if first != index:
            raise DamagedError(f"is damaged: tokens {first} and {index} are both {quoted(text)}")


def _all_bytes(texts: list[str]) -> None:
    # llama.cpp ends the process on a text with a byte that has no token; smaller vocabularies are left to the probe
    there = set(texts)
    missing = next(
        (byte for byte, name in enumerate(_BYTES) if name not in there and (byte > 127 or chr(byte) not in there)), None
    )
    if missing is not None:
        raise DamagedError(f"is damaged: no token stands for the byte {missing}, which any text may hold")


def _same_length(framing: Framing, key: str, kinds: tuple[int, ...], length: int) -> None:
    value = framing.metadata.get(key)
    if value is None:
        return
    if not isinstance(value, list) or framing.types[key] not in [-1 - kind for kind in kinds]:
        raise DamagedError(f"is damaged: {quoted(key)} is not a list of the right numbers")
    if len(value) != length:
        raise DamagedError(f"is damaged: {quoted(key)} has {len(value):,} entries for {length:,} tokens")


def _special_tokens(framing: Framing, n_vocab: int) -> None:
    for key, value in framing.metadata.items():
        if not (key.startswith("tokenizer.ggml.") and key.endswith("_token_id")) or value in NO_TOKEN:
            continue
        if framing.types[key] not in _WHOLE or not isinstance(value, int) or not 0 <= value < n_vocab:
            raise DamagedError(f"is damaged: {quoted(key)} is {_shown(value)}, beyond its {n_vocab:,} tokens")


def _charsmap(framing: Framing) -> None:
    key = "tokenizer.ggml.precompiled_charsmap"
    value = framing.metadata.get(key)
    if value is None:
        return
    if framing.types[key] not in (-1, -2) or not isinstance(value, list):  # lists of unsigned or signed bytes
        raise DamagedError(f"is damaged: {quoted(key)} is not a list of bytes")
    size = int.from_bytes(bytes(int(byte) & 255 for byte in value[:4]), "little")
    if len(value) < 4 or size + 4 >= len(value) or size % 4:
        raise DamagedError(f"is damaged: {quoted(key)} is shorter than it says")


def check_sizes(metadata: Mapping[str, Value], architecture: str, tensors: Sequence[TensorInfo]) -> None:
    """Checks that head counts, head widths and RoPE dimensions agree with each other and with the tensors."""
    for tensor in tensors:
        if _ADDED.search(tensor.name) and tensor.type != _F32:
            raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} is stored as {tensor.type_name}, not F32")
        if tensor.type in _NO_WEIGHTS and tensor.name.endswith(".weight") and _TABLE not in tensor.name:
            raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} holds no weights but {tensor.type_name}")
    numbers = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    heads, shared = numbers.get("attention.head_count"), numbers.get("attention.head_count_kv")
    _shared_evenly(heads, shared)
    if architecture in _DELTA_NETS:
        inner, state, count = (numbers.get(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
        if isinstance(inner, int) and isinstance(state, int) and isinstance(count, int) and inner != state * count:
            raise DamagedError(f"is damaged: {count:,} heads of {state:,} numbers do not make {inner:,}")
    width = _head(numbers, heads)
    _rotated(numbers, width)
    if isinstance(heads, int) and heads:
        for tensor in tensors:
            if not tensor.name.endswith(".attn_q.weight") or len(tensor.shape) != 2:
                continue
            rows = tensor.shape[1]
            if rows % heads or (architecture in _OWN_HEADS and width and rows != heads * width):
                raise DamagedError(f"is damaged: tensor {quoted(tensor.name)} has {rows:,} rows for {heads} heads")


def _shared_evenly(heads: Value | None, shared: Value | None) -> None:
    """Checks that query heads divide evenly among key heads; 0 means a layer without attention."""
    counts = [n for n in shared if isinstance(n, int)] if isinstance(shared, list) else [shared]
    each = [n for n in heads if isinstance(n, int)] if isinstance(heads, list) else [heads] * len(counts)
    for query, key in zip(each, counts, strict=False):
        if isinstance(query, int) and isinstance(key, int) and query and key and query % key:
            raise DamagedError(f"is damaged: {query} heads cannot share {key}")


def _head(numbers: Mapping[str, Value], heads: Value | None) -> int:
    said, width = numbers.get("attention.key_length"), numbers.get("embedding_length")
    if isinstance(said, int) and said:
        return said
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0


def _rotated(numbers: Mapping[str, Value], width: int) -> None:
    turned = numbers.get("rope.dimension_count")
    if not width:
        return
    if isinstance(turned, int) and (turned > width or turned % 2):
        raise DamagedError(f"is damaged: it rotates {turned:,} numbers of heads that have {width:,}")
    sections = numbers.get("rope.dimension_sections")
    if isinstance(sections, list) and not 0 <= sum(n for n in sections if isinstance(n, int)) <= width:
        raise DamagedError(f"is damaged: it rotates heads of {width:,} numbers in sections of more")
