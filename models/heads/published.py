"""Reads drafting heads that others have published, and converts them to Slipstream's format.

Medusa: github.com/FasterDecoding/Medusa, medusa/model/medusa_model.py. Kangaroo: github.com/Equationliu/Kangaroo,
kangaroo/adapter.py and kangaroo_model.py.

Safetensors files are not trusted. Format: https://huggingface.co/docs/safetensors/index#format
"""

import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, UsageError
from slipstream.models.gguf.parse import MAX_TENSORS, DamagedError, Value
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import unreadable
from slipstream.models.heads.check import Method, attention_rows, check_heads
from slipstream.models.heads.file import HeadsInfo, identity, write_heads
from slipstream.models.outside import quoted, shown_path

MAX_HEADER: Final = 4 << 20
"""Bytes; JSON takes up to twenty times as much in memory, and heads have a few hundred tensors."""
_DTYPES: Final = MappingProxyType({"F32": "<f4", "F16": "<f2", "BF16": "<u2"})
_Entry = tuple[int, int, str, tuple[int, ...]]  # first byte, end, type, sizes
Tensors = Mapping[str, NDArray[Any]]
LoadPickle = Callable[[Path], Tensors]
"""Reads a PyTorch file, as ``slipstream.drafters.training.pickles.load_pickle`` does."""
# files that a folder of published heads may contain, the safe formats first
_NAMES: Final = (
    "medusa_lm_head.safetensors",
    "model.safetensors",
    "medusa_lm_head.pt",
    "medusa_lm_head.bin",
    "pytorch_model.bin",
)
_PICKLES: Final = (".pt", ".pth", ".bin")
_CONVERT: Final = (
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "save_file(torch.load(sys.argv[1], map_location='cpu', weights_only=True), sys.argv[2])\" {} {}"
)
_MAX_CONFIG: Final = 1 << 20
_BLOCK: Final = re.compile(r"(\d{1,3})\.(\d{1,3})\.linear\.(weight|bias)")
_OUTPUT: Final = re.compile(r"(\d{1,3})\.(\d{1,3})\.weight")
_ADAPTER: Final = {
    "layers.0.input_layernorm.weight": "attn_norm.weight",
    "layers.0.self_attn.q_proj.weight": "attn_q.weight",
    "layers.0.self_attn.k_proj.weight": "attn_k.weight",
    "layers.0.self_attn.v_proj.weight": "attn_v.weight",
    "layers.0.self_attn.o_proj.weight": "attn_output.weight",
    "norm.weight": "output_norm.weight",
}
_IGNORED: Final = "layers.0.self_attn.rotary_emb.inv_freq"  # older modules store it although it can be computed


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Reads every tensor of a file, after checking the whole header."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening: opening a named pipe would wait for its writer
            raise DamagedError("is a folder, a device or a pipe, not a safetensors file", "Give the file itself.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, header = _header(file, size)
            return {name: _values(file, start, entry) for name, entry in _entries(header, size - start).items()}
    except DamagedError as error:
        raise ModelFileError(f"{shown_path(path)} {error}.", error.hint or "Fetch the file again.") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _header(file: BinaryIO, size: int) -> tuple[int, dict[str, object]]:
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or not 2 <= length <= min(size - 8, MAX_HEADER):
        raise DamagedError("is no safetensors file: its first bytes are not the length of a header")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise DamagedError("is no safetensors file: its header is not JSON with different names") from None
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise DamagedError("is no safetensors file: its header is not a list of tensors")
    header.pop("__metadata__", None)
    return 8 + length, header


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entries(header: dict[str, object], size: int) -> dict[str, _Entry]:
    found = {name: _entry(name, value) for name, value in header.items()}
    expected = 0
    for name, (start, end, _, _) in sorted(found.items(), key=lambda item: item[1][:2]):
        if start != expected or end > size:
            raise DamagedError(f"is damaged or cut short: tensor {quoted(name)} is not where it should be")
        expected = end
    return found


def _entry(name: str, value: object) -> _Entry:
    if not isinstance(value, dict):
        raise DamagedError(f"is damaged: it does not describe tensor {quoted(name)}")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise DamagedError(
            f"holds tensor {quoted(name)} of type {quoted(str(dtype))}", "Slipstream reads F32, F16 and BF16."
        )
    if not _whole(shape) or not _whole(offsets) or len(shape) > 4 or len(offsets) != 2:
        raise DamagedError(f"is damaged: it does not describe tensor {quoted(name)}")
    if offsets[1] - offsets[0] != prod(shape) * np.dtype(_DTYPES[dtype]).itemsize:
        raise DamagedError(f"is damaged: tensor {quoted(name)} has not the size it claims")
    return offsets[0], offsets[1], dtype, tuple(shape)


def _whole(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _values(file: BinaryIO, start: int, entry: _Entry) -> NDArray[Any]:
    first, end, dtype, shape = entry
    file.seek(start + first)
    raw = file.read(end - first)
    if len(raw) != end - first:
        raise DamagedError("became shorter while it was read", "Wait until nothing writes to it, then try again.")
    values = np.frombuffer(raw, _DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def import_heads(
    source: Path,
    target: Header,
    out: Path,
    licence: str,
    load_pickle: LoadPickle | None = None,
    exit_layer: int | None = None,
) -> Path:
    """Converts published heads to a file of Slipstream's format."""
    method, tensors, settings = read_published(source, target, load_pickle, exit_layer)
    info = HeadsInfo(
        method=method,
        target=identity(target),
        target_name=target.title,
        text="published",
        chats=(),
        made=int(time.time()),
        settings=settings,
        licence=licence,
    )
    write_heads(out, info, tensors)
    return out


def read_published(
    source: Path, target: Header, load_pickle: LoadPickle | None = None, exit_layer: int | None = None
) -> tuple[Method, dict[str, NDArray[Any]], dict[str, Value]]:
    """Reads published heads; for the arguments and errors see :func:`import_heads`."""
    path = _weights_of(source)
    config = _config(path.parent / "config.json")
    stored = _load(path, load_pickle)
    try:
        named = {name.removeprefix("medusa_head."): values for name, values in stored.items()}
        method: Method
        if any(_BLOCK.fullmatch(name) for name in named):
            method, (tensors, settings) = "medusa", _medusa(named, config)
        else:
            named = {name.removeprefix("adapter_model."): values for name, values in stored.items()}
            if not all(name in named for name in _ADAPTER):
                raise DamagedError(
                    "holds neither Medusa heads nor a Kangaroo adapter",
                    "Give the folder that was published, with config.json and the weights.",
                )
            method, (tensors, settings) = "kangaroo", _kangaroo(named, config, target, path, exit_layer)
        check_heads(method, {name: values.shape for name, values in tensors.items()}, settings, target)
    except DamagedError as error:
        hint = error.hint or f"These heads may belong to another model than {shown_path(target.path)}."
        raise ModelFileError(f"{shown_path(path)} {error}.", hint) from None
    return method, tensors, settings


def _weights_of(source: Path) -> Path:
    if not source.is_dir():
        return source
    for name in _NAMES:
        if (source / name).is_file():
            return source / name
    raise ModelFileError(
        f"{shown_path(source)} holds no published heads: none of {', '.join(_NAMES)} is there.",
        "Give the folder that was published, or the file with the weights.",
    )


def _load(path: Path, load_pickle: LoadPickle | None) -> Tensors:
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix not in _PICKLES:
        raise ModelFileError(
            f"{shown_path(path)} is no file of published heads by its name.",
            "Give a folder, or a file whose name ends in .safetensors.",
        )
    if not path.is_file():
        raise ModelFileError(f"{shown_path(path)}: no such file.", "Check the name and the folder.")
    if load_pickle is None:
        raise ModelFileError(
            f"{shown_path(path)} is a Python pickle: to open one can run any program that its author put into it.",
            "Install torch, which can read the weights alone (pip install 'slipstream[train]'), or convert the file on "
            f"another machine: {_CONVERT.format(shlex.quote(path.name), shlex.quote(path.stem + '.safetensors'))}",
        )
    return load_pickle(path)


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_CONFIG).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        raise ModelFileError(
            f"{shown_path(path)} cannot be read or is no JSON.", "Fetch the published files again."
        ) from None
    return found if isinstance(found, dict) else {}


def _medusa(named: Tensors, config: dict[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Value]]:
    """Converts Medusa heads; each is an nn.Sequential of residual blocks, 0, 1 and so on, then the vocabulary layer."""
    tensors: dict[str, NDArray[Any]] = {}
    layers: dict[int, int] = {}
    outputs: dict[int, int] = {}
    for name, values in named.items():
        if block := _BLOCK.fullmatch(name):
            head, layer = int(block[1]), int(block[2])
            layers[head] = max(layers.get(head, 0), layer + 1)
            tensors[f"head.{head}.{layer}.{block[3]}"] = values
        elif output := _OUTPUT.fullmatch(name):
            outputs[int(output[1])] = int(output[2])
            tensors[f"head.{int(output[1])}.output.weight"] = values
        else:
            raise DamagedError(f"holds tensor {quoted(name)}, which is no part of Medusa heads")
    if outputs != layers:
        raise DamagedError(
            "holds Medusa heads that are not whole: each needs its blocks and a vocabulary layer of its own",
            "Choose heads that were published with their vocabulary layers.",
        )
    settings: dict[str, Value] = {"n_heads": len(layers), "n_layers": max(layers.values())}
    for name, key in (("n_heads", "medusa_num_heads"), ("n_layers", "medusa_num_layers")):
        if config.get(key, settings[name]) != settings[name]:
            raise DamagedError(
                f"holds {settings[name]} where its config.json announces {key} {quoted(str(config[key]))}",
                "Fetch both files from one place.",
            )
    base = config.get("base_model_name_or_path")
    return tensors, settings | ({"base_model": base} if isinstance(base, str) else {})


def _kangaroo(
    named: Tensors, config: dict[str, Any], target: Header, path: Path, exit_layer: int | None
) -> tuple[dict[str, NDArray[Any]], dict[str, Value]]:
    """Converts a Kangaroo adapter: one llama layer without its feed-forward network, then a norm."""
    for name in named:
        if name not in _ADAPTER and name != _IGNORED:
            raise DamagedError(f"holds tensor {quoted(name)}, which is no part of a Kangaroo adapter")
    tensors = {ours: named[theirs] for theirs, ours in _ADAPTER.items()}
    if target.architecture == "llama":
        for name, key in (("attn_q.weight", "attention.head_count"), ("attn_k.weight", "attention.head_count_kv")):
            tensors[name] = _paired(tensors[name], name, target, key)
    found = exit_layer
    if found is None:
        found = next((config[key] for key in ("exitlayer", "exit_layer") if key in config), None)
    if type(found) is not int:
        raise UsageError(
            f"{shown_path(path)} does not say after which layer of the model its adapter starts.",
            "Give the exit layer: the authors used 2 for 7B models and 3 for 13B.",
        )
    return tensors, {"exit_layer": found}


def _paired(rows: NDArray[Any], name: str, target: Header, key: str) -> NDArray[Any]:
    """Reorders rows of queries or keys from Hugging Face's halves to llama.cpp's neighbours (LlamaModel.permute)."""
    wanted, heads = attention_rows(target, key), target.number(key) or target.number("attention.head_count")
    if wanted is None or not heads or rows.ndim != 2 or len(rows) != wanted or wanted // heads % 2:
        raise DamagedError(f"does not fit {quoted(target.title)}: {quoted(name)} is {list(rows.shape)}")
    return rows.reshape(heads, 2, wanted // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)
