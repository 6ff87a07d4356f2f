"""Published heads become ours: names, sizes, the order of rotated rows; what is hostile or foreign is refused."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models.conftest import RawModel

from slipstream.models.errors import ModelFileError, SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE
from slipstream.models.heads.file import identity, read_heads
from slipstream.models.heads.matching_heads import TARGET_KEY, TRAINED, method_of
from slipstream.models.heads.published import import_heads, read_published

Save = Callable[..., Path]
Tensors = dict[str, NDArray[Any]]
WIDTH, HEADS, KV_HEADS, ROWS = 32, 4, 2, 10
TYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16"}


def safetensors(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        end = len(data) + values.nbytes
        header[name] = {"dtype": TYPES[values.dtype.name], "shape": values.shape, "data_offsets": [len(data), end]}
        data += values.tobytes()
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def medusa(heads: int = 2, layers: int = 1, prefix: str = "") -> Tensors:
    found: Tensors = {}
    for head in range(heads):
        for layer in range(layers):
            found[f"{prefix}{head}.{layer}.linear.weight"] = random(WIDTH, WIDTH, seed=10 * head + layer)
            found[f"{prefix}{head}.{layer}.linear.bias"] = random(WIDTH, seed=10 * head + layer)
        found[f"{prefix}{head}.{layers}.weight"] = random(ROWS, WIDTH, seed=head)
    return found


def kangaroo() -> Tensors:
    kv = WIDTH // HEADS * KV_HEADS
    return {
        "norm.weight": random(WIDTH, seed=1),
        "layers.0.self_attn.q_proj.weight": random(WIDTH, WIDTH, seed=2),
        "layers.0.self_attn.k_proj.weight": random(kv, WIDTH, seed=3),
        "layers.0.self_attn.v_proj.weight": random(kv, WIDTH, seed=4),
        "layers.0.self_attn.o_proj.weight": random(WIDTH, WIDTH, seed=5),
        "layers.0.input_layernorm.weight": random(WIDTH, seed=6),
    }


@pytest.fixture
def target(model: RawModel, save: Save) -> Header:
    model.number("llama.embedding_length", WIDTH).number("llama.attention.head_count", HEADS)
    return read_header(save(model.number("llama.attention.head_count_kv", KV_HEADS), "target.gguf"))


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., Path]:
    def write(tensors: Tensors, name: str = "medusa_lm_head.safetensors", **config: Any) -> Path:
        folder = tmp_path / "published"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(safetensors(tensors))
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return write


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_medusa_heads_are_imported(target: Header, publish: Callable[..., Path], tmp_path: Path, prefix: str) -> None:
    published = medusa(heads=3, layers=2, prefix=prefix)
    folder = publish(published, medusa_num_heads=3, medusa_num_layers=2, base_model_name_or_path="lmsys/vicuna-7b-v1.3")
    out = import_heads(folder, target, tmp_path / "heads.gguf", "apache-2.0")
    heads = read_heads(out, target)
    info = heads.info
    assert (info.method, info.text, info.licence, info.chats) == ("medusa", "published", "apache-2.0", ())
    assert (info.target, info.target_name) == (identity(target), "target")
    assert info.settings == {"n_heads": 3, "n_layers": 2, "base_model": "lmsys/vicuna-7b-v1.3"}
    assert len(heads.tensors) == 3 * (2 * 2 + 1)
    for head in range(3):
        for layer in range(2):
            bias = published[f"{prefix}{head}.{layer}.linear.bias"]
            assert np.array_equal(heads.tensors[f"head.{head}.{layer}.bias"], bias)
            weight = published[f"{prefix}{head}.{layer}.linear.weight"]
            assert np.abs(heads.tensors[f"head.{head}.{layer}.weight"] - weight).max() < 0.02
        output = published[f"{prefix}{head}.2.weight"]
        assert np.abs(heads.tensors[f"head.{head}.output.weight"] - output).max() < 0.02


def test_half_precision_is_read(target: Header, publish: Callable[..., Path]) -> None:
    exact = {name: values.astype(np.float16) for name, values in medusa().items()}
    upper = {name: (values.view(np.uint32) >> 16).astype(np.uint16) for name, values in medusa().items()}
    half = read_published(publish(exact), target)[1]
    brain = read_published(publish(upper), target)[1]
    for ours, theirs in (("head.1.0.weight", "1.0.linear.weight"), ("head.0.output.weight", "0.1.weight")):
        assert np.array_equal(half[ours], exact[theirs])
        cut = (medusa()[theirs].view(np.uint32) & 0xFFFF0000).view(np.float32)
        assert np.array_equal(brain[ours], cut)


def rotated(rows: NDArray[np.float32], heads: int, position: float, pairs: bool) -> NDArray[np.float64]:
    """Rotary embedding of each head of one query or key, by neighbours (llama.cpp) or by halves (Hugging Face)."""
    each = rows.astype(np.float64).reshape(heads, -1)
    half = each.shape[1] // 2
    angles = position * 10000.0 ** (-np.arange(half) / half)
    first, second = (each[:, 0::2], each[:, 1::2]) if pairs else (each[:, :half], each[:, half:])
    turned = first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)
    return np.concatenate(turned, axis=1)


def test_a_kangaroo_adapter_attends_alike_in_both_layouts(target: Header, publish: Callable[..., Path]) -> None:
    published = kangaroo()
    folder = publish(published, "model.safetensors", exitlayer=1, num_hidden_layers=1)
    method, tensors, settings = read_published(folder, target)
    assert (method, settings) == ("kangaroo", {"exit_layer": 1})
    for ours, theirs in (("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj")):
        assert np.array_equal(tensors[f"{ours}.weight"], published[f"layers.0.{theirs}.weight"])
    assert np.array_equal(tensors["attn_norm.weight"], published["layers.0.input_layernorm.weight"])
    assert np.array_equal(tensors["output_norm.weight"], published["norm.weight"])
    state = random(WIDTH, seed=9)
    for ours, theirs, heads in (("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)):
        wanted = rotated(published[f"layers.0.self_attn.{theirs}.weight"] @ state, heads, 5.0, pairs=False)
        found = rotated(tensors[f"{ours}.weight"] @ state, heads, 5.0, pairs=True)
        assert np.allclose(found, wanted, atol=1e-4)


def test_rows_keep_their_order_if_halves_rotate(model: RawModel, save: Save, publish: Callable[..., Path]) -> None:
    model.text("general.architecture", "qwen2").number("qwen2.embedding_length", WIDTH)
    model.number("qwen2.attention.head_count", HEADS).number("qwen2.attention.head_count_kv", KV_HEADS)
    target = read_header(save(model.number("qwen2.block_count", 4)))
    published = kangaroo()
    tensors = read_published(publish(published, "model.safetensors"), target, exit_layer=2)[1]
    assert np.array_equal(tensors["attn_q.weight"], published["layers.0.self_attn.q_proj.weight"])


def test_the_exit_layer_must_be_known(target: Header, publish: Callable[..., Path]) -> None:
    folder = publish(kangaroo() | {"layers.0.self_attn.rotary_emb.inv_freq": random(4)}, "model.safetensors")
    with pytest.raises(UsageError, match="after which layer"):
        read_published(folder, target)
    assert read_published(folder, target, exit_layer=1)[2] == {"exit_layer": 1}
    with pytest.raises(ModelFileError, match="starts after layer 2 of 2"):
        read_published(folder, target, exit_layer=2)


@pytest.mark.parametrize(
    ("change", "config", "why"),
    [
        ({"0.0.linear.bias": random(31)}, {}, r"'head\.0\.0\.bias' is \[31\], not \[32\]"),
        ({"1.1.weight": random(11, WIDTH)}, {}, r"'head\.1\.output\.weight' is \[11, 32\], not \[10, 32\]"),
        ({"0.1.weight": random(11, WIDTH), "1.1.weight": random(11, WIDTH)}, {}, "11 tokens, but the model has 10"),
        ({"0.1.weight": None, "1.1.weight": None}, {}, "not whole"),
        ({"0.0.linear.bias": None}, {}, "no tensor"),
        ({"something": random(3)}, {}, "'something', which is no part of Medusa heads"),
        ({"0.1.weight": np.full((ROWS, WIDTH), np.nan, np.float32)}, {}, "not numbers"),
        ({}, {"medusa_num_heads": 5}, "holds 2 where its config.json announces medusa_num_heads '5'"),
        ({}, {"medusa_num_layers": 2}, "medusa_num_layers '2'"),
    ],
)
def test_medusa_heads_that_do_not_fit_are_refused(
    target: Header, publish: Callable[..., Path], tmp_path: Path, change: Any, config: dict[str, Any], why: str
) -> None:
    tensors = {name: values for name, values in (medusa() | change).items() if values is not None}
    folder = publish(tensors, **config)
    with pytest.raises(SlipstreamError, match=why):
        import_heads(folder, target, tmp_path / "heads.gguf", "")
    assert not (tmp_path / "heads.gguf").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layers.0.self_attn.q_proj.weight": random(24, WIDTH)}, r"'attn_q\.weight' is \[24, 32\]"),
        ({"layers.0.mlp.up_proj.weight": random(4, WIDTH)}, "no part of a Kangaroo adapter"),
        ({"norm.weight": None}, "neither Medusa heads nor a Kangaroo adapter"),
    ],
)
def test_unfit_adapters_are_refused(target: Header, publish: Callable[..., Path], change: Any, why: str) -> None:
    tensors = {name: values for name, values in (kangaroo() | change).items() if values is not None}
    with pytest.raises(ModelFileError, match=why):
        read_published(publish(tensors, "model.safetensors"), target, exit_layer=1)


def framed(header: object, data: bytes = bytes(8), length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no safetensors file"),
        (b"\x80\x02}q\x00.", "no safetensors file"),
        (framed({}, length=2**63), "no safetensors file"),
        (framed(b"[" * 100_000), "not JSON"),
        (framed(b'{"a": 1, "a": 2}'), "not JSON"),
        (framed([1, 2]), "not a list of tensors"),
        (framed({"a": 3}), "does not describe tensor 'a'"),
        (framed({"a": entry(dtype="I64")}), "tensor 'a' of type 'I64'"),
        (framed({"a": entry(shape=[-2])}), "does not describe tensor 'a'"),
        (framed({"a": entry(shape=[True, 2])}), "does not describe tensor 'a'"),
        (framed({"a": entry(shape=[1] * 5)}), "does not describe tensor 'a'"),
        (framed({"a": entry(shape=[10**30, 10**30])}), "not the size it claims"),
        (framed({"a": entry(offsets=[8, 0])}), "not the size it claims"),
        (framed({"a": entry(offsets=[0, 8, 8])}), "does not describe tensor 'a'"),
        (framed({"a": entry(offsets=[4, 12])}), "not where it should be"),
        (framed({"a": entry(offsets=[0, 8])}, bytes(7)), "not where it should be"),
        (framed({"a": entry(), "b": entry()}), "not where it should be"),
        (framed({"a\x1b[31m": entry()}), "neither Medusa heads"),
    ],
)
def test_hostile_safetensors_are_refused(target: Header, tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "medusa_lm_head.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=why) as caught:
        read_published(path, target)
    assert caught.value.title.isprintable() and len(caught.value.title) < 400 + len(str(path)) and caught.value.hint


def test_pickles_need_a_reader_that_runs_no_code(target: Header, tmp_path: Path) -> None:
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(ModelFileError, match="can run any program") as caught:
        read_published(tmp_path, target)
    assert "weights_only=True" in caught.value.hint
    assert "medusa_lm_head.pt medusa_lm_head.safetensors" in caught.value.hint
    seen: list[Path] = []

    def load(path: Path) -> Tensors:
        seen.append(path)
        return medusa()

    assert read_published(tmp_path, target, load)[0] == "medusa" and seen == [path]
    (tmp_path / "medusa_lm_head.safetensors").write_bytes(safetensors(medusa()))
    assert read_published(tmp_path, target, load)[0] == "medusa" and seen == [path]  # the safe file comes first


def test_what_is_not_there_or_damaged_is_named(target: Header, tmp_path: Path, publish: Callable[..., Path]) -> None:
    with pytest.raises(ModelFileError, match="holds no published heads"):
        read_published(tmp_path, target)
    for name, why in (("a.pt", "no such file"), ("a.safetensors", "no such file"), ("a.gguf", "by its name")):
        with pytest.raises(ModelFileError, match=why):
            read_published(tmp_path / name, target)
    folder = publish(medusa())
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read"):
        read_published(folder, target)


FOLDER = Path(__file__).parents[3] / "models" / "bundled" / "smollm2-135m-instruct"


def test_heads_for_a_real_model_are_whole_and_for_one_target() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    targets, methods = set[object](), set[str]()
    for path in FOLDER.glob("*.gguf"):
        assert f"`{path.name}`" in card
        header = read_header(path)
        if header.architecture == HEADS_ARCHITECTURE:
            info = read_heads(path).info
            methods.add(info.method)
            targets.add(info.target)
        else:
            methods.add(method_of(header))
            targets.add(header.metadata[TARGET_KEY])
    assert methods == set(TRAINED) and len(targets) == 1
    tuned = read_heads(FOLDER / "space-tuned" / "adapter-masks.gguf").info
    assert tuned.method == "space" and {tuned.target} == targets
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.gguf")) < 45_000_000
