"""The file of trained heads: what goes in comes out, and what does not fit is refused in plain words."""

import ctypes
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from tests.models.conftest import RawModel

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads import file as heads_file
from slipstream.models.heads.file import HeadsInfo, identity, mark_stale, read_heads, read_info, stale, write_heads
from slipstream.models.heads.matching_heads import matching_heads
from slipstream.models.outside import shown_path

Save = Callable[..., Path]
Tensors = dict[str, NDArray[Any]]
WIDTH = 32
BUNDLED = Path(__file__).parents[3] / "models" / "bundled"


def medusa(rng: np.random.Generator, rows: int = 6, heads: int = 2) -> Tensors:
    tensors: Tensors = {"output.weight": rng.normal(size=(rows, WIDTH)).astype(np.float32)}
    tensors["output.ids"] = np.array([9, 1, 4, 0, 7, 2], np.int32)[:rows]
    for head in range(heads):
        tensors[f"head.{head}.0.weight"] = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        tensors[f"head.{head}.0.bias"] = rng.normal(size=WIDTH).astype(np.float32)
    return tensors


def kangaroo(rng: np.random.Generator) -> Tensors:
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (16, WIDTH), "attn_v": (16, WIDTH), "attn_output": (WIDTH, WIDTH)}
    norms = {"attn_norm": (WIDTH,), "output_norm": (WIDTH,)}
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in (shapes | norms).items()}


def doubled(tensors: Tensors) -> Tensors:
    """The same values as float64, as numpy computes by default."""
    return {name: values.astype(np.float64) for name, values in tensors.items()}


@pytest.fixture
def tensors() -> Tensors:
    return medusa(np.random.default_rng(3))


@pytest.fixture
def target(model: RawModel, save: Save) -> Header:
    return read_header(save(model.number("llama.embedding_length", WIDTH), "target.gguf"))


@pytest.fixture
def info(target: Header) -> HeadsInfo:
    return HeadsInfo(
        "medusa", identity(target), target.name, "chats", ("a1", "b2"), 1_700_000_000,
        {"n_heads": 2, "rate": 0.001, "note": "", "deep": True, "accuracies": [0.61, 0.4], "mixed": [1, 0.5],
         "names": ["é"]}, "mit",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["q8_0", "f16", "f32"])
def test_heads_are_read_as_written(
    target: Header, info: HeadsInfo, tensors: Tensors, tmp_path: Path, kind: Any
) -> None:
    path = tmp_path / "heads.gguf"
    write_heads(path, info, tensors, kind)
    heads = read_heads(path, target)
    assert heads.info == read_info(path) == info
    assert list(heads.tensors) == list(tensors)
    for name, values in heads.tensors.items():
        assert values.dtype == tensors[name].dtype and values.shape == tensors[name].shape
        error = float(np.abs(values - tensors[name]).max())
        if values.ndim == 1 or kind == "f32":
            assert error == 0
        else:
            assert 0 < error < (0.02 if kind == "q8_0" else 0.002)
    assert list(tmp_path.glob("*.part")) == []


def test_kangaroo_and_space_files(target: Header, info: HeadsInfo, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(1), tmp_path / "heads.gguf"
    adapter = kangaroo(rng)
    write_heads(path, replace(info, method="kangaroo", settings={"exit_layer": 1}), adapter, "f32")
    found = read_heads(path, target)
    assert all(np.array_equal(found.tensors[name], values) for name, values in adapter.items())
    write_heads(path, replace(info, method="kangaroo", settings={"exit_layer": 1}), doubled(adapter), "f32")
    again = read_heads(path, target)
    assert all(np.array_equal(again.tensors[name], values) for name, values in adapter.items())
    masks = rng.normal(size=(5, WIDTH)).astype(np.float32)
    write_heads(path, replace(info, method="space", settings={}), {"masks": masks})
    assert np.array_equal(read_heads(path, target).tensors["masks"], masks)  # never quantized


def test_settings_may_be_numbers_of_numpy(info: HeadsInfo, tensors: Tensors, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"share": np.float32(0.5), "n": np.int64(3), "shares": [np.float32(0.25)]}
    write_heads(tmp_path / "h.gguf", replace(info, settings=settings), tensors)
    assert read_info(tmp_path / "h.gguf").settings == {"share": 0.5, "n": 3, "shares": [0.25]}


def test_rows_that_are_no_whole_blocks_become_f16(info: HeadsInfo, tmp_path: Path) -> None:
    tensors = {"head.0.0.weight": np.eye(20, dtype=np.float32), "head.0.0.bias": np.zeros(20, np.float32)}
    tensors["head.0.output.weight"] = np.full((7, 20), 0.5, np.float32)
    write_heads(tmp_path / "h.gguf", info, tensors)
    assert [t.type_name for t in read_header(tmp_path / "h.gguf").tensors] == ["F16", "F32", "F16"]
    found = read_heads(tmp_path / "h.gguf").tensors
    assert all(np.array_equal(found[name], values) for name, values in tensors.items())


def test_identity_tells_two_trainings_of_one_shape_apart_and_knows_a_copy(model: RawModel, save: Save) -> None:
    model.data = bytes(model.data)
    first = read_header(save(model, "a.gguf"))
    model.data = model.data[:400] + b"\1" + model.data[401:]  # in the last tensor
    second = read_header(save(model, "b.gguf"))
    assert first.fingerprint == second.fingerprint and identity(first) != identity(second)
    assert identity(first) == identity(read_header(save(first.path.read_bytes(), "elsewhere.gguf")))
    assert identity(read_header(save(model.text("slipstream.derived_from", "ab" * 32)))) == "ab" * 32
    nonsense = read_header(save(model.text("slipstream.derived_from", "anything"), "n.gguf"))
    assert len(identity(nonsense)) == 64


def test_heads_for_another_model_are_refused(
    target: Header, info: HeadsInfo, tensors: Tensors, other_model: RawModel, save: Save, tmp_path: Path
) -> None:
    heads_file.check_target(info, target)
    other = other_model.number("llama.embedding_length", WIDTH).text("general.name", "Other")
    header = read_header(save(other, "oth\x1b[31mer.gguf"))
    write_heads(tmp_path / "h.gguf", info, tensors)
    with pytest.raises(SlipstreamError, match=r"trained for 'Small', not for 'oth\\x1b\[31mer'") as caught:
        read_heads(tmp_path / "h.gguf", header)
    assert caught.value.title.isprintable()
    assert f"drafters train medusa -m {shown_path(header.path)}" in caught.value.hint
    namesake = read_header(
        save(other.text("general.name", "Small").number("llama.context_length", 32), "namesake.gguf")
    )
    with pytest.raises(SlipstreamError, match="for another version of 'Small', not for 'namesake'"):
        heads_file.check_target(info, namesake)


def test_a_model_is_no_file_of_heads(target: Header) -> None:
    with pytest.raises(ModelFileError, match=r"is a model \('llama'\), not trained heads"):
        read_info(target.path)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"head.0.0.weight", b"head.9.0.weight", "has no tensor 'head.0.0.weight'"),
        (b"output.ids", b"output.abc", "'output.abc' is no part of medusa heads"),
        (b"\6\0\0\0medusa", b"\6\0\0\0abcdef", "heads for 'abcdef'"),
        (b"slipstream.heads.made", b"slipstream.heads.nade", "what its heads were trained on"),
        (b"slipstream.heads.target\x08", b"slipstream.heads.tarned\x08", "which model its heads are for"),
        (b"slipstream.heads.version", b"slipstream.heads.versiom", "version 'None'"),
    ],
)
def test_damage_is_refused(info: HeadsInfo, tensors: Tensors, tmp_path: Path, old: bytes, new: bytes, why: str) -> None:
    path = tmp_path / "heads.gguf"
    write_heads(path, info, tensors)
    content = path.read_bytes()
    if old.startswith(b"\6"):  # a text is framed by its length in 8 bytes
        old, new = old[:4] + bytes(4) + old[4:], new[:4] + bytes(4) + new[4:]
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(ModelFileError, match=why):
        read_heads(path)


def test_a_weight_that_is_no_number_is_refused(info: HeadsInfo, tensors: Tensors, tmp_path: Path) -> None:
    path = tmp_path / "heads.gguf"
    write_heads(path, info, tensors)
    header = read_header(path)
    bias = next(tensor for tensor in header.tensors if tensor.name == "head.1.0.bias")
    content = bytearray(path.read_bytes())
    at = header.data_offsets[0] + bias.offset
    content[at : at + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="holds values that are not numbers"):
        read_heads(path)


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("head.0.0.bias", np.zeros(31, np.float32), r"'head.0.0.bias' is \[31\], not \[32\]"),
        ("head.1.0.weight", np.zeros((32, 33), np.float32), r"is \[32, 33\], not \[32, 32\]"),
        ("output.ids", np.array([1, 2, 3, 4, 5, 5], np.int32), "not different token ids"),
        ("output.ids", np.array([-1, 2, 3, 4, 5, 6], np.int32), "not different token ids"),
        ("head.1.0.bias", np.full(32, np.inf, np.float32), "not numbers"),
        ("extra", np.zeros(4, np.float32), "no part of medusa heads"),
    ],
)
def test_heads_that_are_not_whole_are_not_written(
    info: HeadsInfo, tensors: Tensors, tmp_path: Path, name: str, values: NDArray[Any], why: str
) -> None:
    with pytest.raises(SlipstreamError, match=why):
        write_heads(tmp_path / "heads.gguf", info, tensors | {name: values})
    assert not (tmp_path / "heads.gguf").exists()


def test_heads_that_do_not_fit_their_own_target_are_refused(target: Header, info: HeadsInfo, tmp_path: Path) -> None:
    path, rng = tmp_path / "heads.gguf", np.random.default_rng(5)
    wide = medusa(rng)
    wide["output.ids"] = np.array([0, 1, 2, 3, 4, target.n_vocab], np.int32)
    write_heads(path, info, wide)
    with pytest.raises(ModelFileError, match="token 10, but the model has 10"):
        read_heads(path, target)
    write_heads(path, replace(info, method="kangaroo", settings={"exit_layer": 2}), kangaroo(rng))
    with pytest.raises(ModelFileError, match="starts after layer 2 of 2"):
        read_heads(path, target)
    adapter = kangaroo(rng) | {"attn_k.weight": np.zeros((8, WIDTH), np.float32)}
    adapter["attn_v.weight"] = adapter["attn_k.weight"]
    write_heads(path, replace(info, method="kangaroo", settings={"exit_layer": 1}), adapter)
    with pytest.raises(ModelFileError, match="has 8 rows, not 16"):
        read_heads(path, target)
    write_heads(path, replace(info, method="space"), {"masks": np.zeros((3, 64), np.float32)})
    with pytest.raises(ModelFileError, match="64 wide, but the model is 32"):
        read_heads(path, target)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The nearest thing to a full disk that needs no rights: writing beyond ``size`` bytes fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 600, 3000])
def test_a_full_disk_leaves_the_old_file(info: HeadsInfo, tensors: Tensors, tmp_path: Path, room: int) -> None:
    path = tmp_path / "heads.gguf"
    write_heads(path, info, tensors)
    old = path.read_bytes()
    assert len(old) > 3000
    with files_of_at_most(room), pytest.raises(SlipstreamError, match="file too large") as caught:
        write_heads(path, replace(info, made=2), tensors)
    assert str(path) in caught.value.title and caught.value.hint.startswith("Free some room")
    assert path.read_bytes() == old and [entry.name for entry in tmp_path.glob("heads*")] == ["heads.gguf"]


def test_a_folder_that_is_not_there(info: HeadsInfo, tensors: Tensors, tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match="no such file or directory") as caught:
        write_heads(tmp_path / "nowhere" / "heads.gguf", info, tensors)
    assert caught.value.hint.startswith("Check the folder")


def test_deleted_chats_mark_heads_until_the_next_training(info: HeadsInfo, tensors: Tensors, tmp_path: Path) -> None:
    path = tmp_path / "heads.gguf"
    write_heads(path, info, tensors)
    assert stale(path) == ()
    mark_stale(path, "a1")
    mark_stale(path, "b2")
    mark_stale(path, "a1")
    assert stale(path) == ("a1", "b2")
    write_heads(path, replace(info, chats=("b2", "c3")), tensors)  # b2 was deleted while they trained
    assert stale(path) == ("b2",)
    write_heads(path, replace(info, chats=()), tensors)
    assert stale(path) == () and [entry.name for entry in tmp_path.glob("heads*")] == ["heads.gguf"]


def test_heads_marked_for_any_quantization_follow_the_model_and_no_other(tmp_path: Path) -> None:
    target = read_header(BUNDLED / "slipstream-mini-q8_0.gguf")
    options = C.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = C.LLAMA_FTYPE_MOSTLY_Q4_0, True
    assert not C.llama_model_quantize(str(target.path).encode(), bytes(tmp_path / "small.gguf"), ctypes.byref(options))
    small, tuned = read_header(tmp_path / "small.gguf"), read_header(BUNDLED / "slipstream-mini-tuned-q8_0.gguf")
    marked, exact = tmp_path / "marked.gguf", tmp_path / "exact.gguf"
    masks = {"masks": np.ones((2, 256), np.float32)}
    info = HeadsInfo(
        "space", identity(target), target.name, "answers", (), 1, quantizations=heads_file.any_quantization(target)
    )
    write_heads(marked, info, masks)
    write_heads(exact, replace(info, target=identity(small), quantizations=""), masks)
    assert identity(small) != identity(target)
    for model, found in ((target, marked), (small, marked), (tuned, None)):
        assert matching_heads(model, [marked]).get("space") == found
    assert matching_heads(small, [exact, marked]) == matching_heads(small, [marked, exact]) == {"space": exact}
    assert read_heads(marked, small).info == info
    with pytest.raises(SlipstreamError, match="trained for"):
        read_heads(marked, tuned)
