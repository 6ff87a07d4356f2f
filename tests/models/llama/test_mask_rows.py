"""Masks ride along as vectors; what the target says of ordinary tokens keeps its every bit."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from tests.models.kinds import KINDS, write_kind
from tests.models.requantize import requantize

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.parse import TensorInfo
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import NewTensor, read_tensor, write_gguf
from slipstream.models.llama import mask_rows
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.mask_rows import MASK_ARCHITECTURES, MaskRows
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN, ROOT, Floats, Token, TokenTree

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
STRICT = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True, max_leaves=8, threads=1)
PLAIN = ContextOptions(n_ctx=512, kv="f32", flash=False, max_leaves=8, threads=1)
MASKS = 3
TYPES = ["q8_0", "f32", "bf16", "q4_0", "q4_k"]
OPTIONS = ContextOptions(n_ctx=256, max_leaves=4, kv="f32", flash=False, threads=1)


def copy(kind: str, path: Path) -> None:
    if kind != "q4_k":  # which our own writer does not know
        requantize(BUNDLED, path, kind)  # type: ignore[arg-type]
        return
    params = C.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize, params.ftype = 2, True, C.LLAMA_FTYPE_MOSTLY_Q4_K_M
    params.token_embedding_type = 12  # GGML_TYPE_Q4_K
    assert C.llama_model_quantize(str(BUNDLED).encode(), str(path).encode(), ctypes.byref(params)) == 0


@pytest.fixture(scope="module")
def open_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LlamaModel]]:
    opened: dict[str, LlamaModel] = {}

    def open_one(kind: str) -> LlamaModel:
        if kind not in opened:
            path = BUNDLED
            if kind != "q8_0":
                path = tmp_path_factory.mktemp("kinds") / f"mini-{kind}.gguf"
                copy(kind, path)
            opened[kind] = LlamaModel(path)
        return opened[kind]

    yield open_one
    for model in opened.values():
        model.close()


def some_masks(seed: int, width: int = 256) -> Floats:
    return np.random.default_rng(seed).normal(0, 0.2, (MASKS, width)).astype(np.float32)


def space_tree(chain: Sequence[Token], group: Sequence[Token]) -> TokenTree:
    """A chain with a group of probes below the root and below each of its tokens."""
    tokens, parents = list(chain), list(range(-1, len(chain) - 1))
    for node in range(len(chain) - 1, ROOT - 1, -1):
        parents += [node, *range(len(tokens), len(tokens) + len(group) - 1)]
        tokens += group
    return TokenTree(tuple(tokens), tuple(parents), frozenset(range(len(chain), len(tokens))))


def embedding_of(model: LlamaModel) -> Floats:
    """What llama.cpp itself says the embedding is."""
    call = C._lib._Z24llama_model_get_tok_embdPK11llama_modelPf
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_uint32
    whole: NDArray[np.float32] = np.empty((model.n_vocab, model.n_embd), np.float32)
    assert call(model.pointer, whole.ctypes.data) == whole.size
    return whole


@pytest.mark.skipif(
    not hasattr(C._lib, "_Z24llama_model_get_tok_embdPK11llama_modelPf"), reason="this library names it otherwise"
)
@pytest.mark.parametrize("kind", TYPES)
def test_every_token_has_the_vector_that_the_model_looks_up(kind: str, open_model: Callable[[str], LlamaModel]) -> None:
    model = open_model(kind)
    with closing(MaskRows(model)) as rows:
        rows.use(some_masks(1))
        found = np.empty((model.n_vocab + MASKS, rows.width), np.float32)
        for _ in range(2):  # read, then remembered
            rows.fill(range(model.n_vocab + MASKS), found)
            assert np.array_equal(found, np.concatenate((embedding_of(model), some_masks(1))))
            found[:] = 0


@pytest.mark.parametrize("queued", [0, 5])
def test_beside_masks_tokens_are_those_of_plain_decoding(queued: int, open_model: Callable[[str], LlamaModel]) -> None:
    model, rng = open_model("q8_0"), np.random.default_rng(queued)
    n = model.n_vocab
    with closing(LlamaTarget(model, STRICT)) as target, closing(LlamaTarget(model, STRICT)) as plain:
        target.use_masks(some_masks(3))
        target.prefill(list(range(100, 140)))
        plain.prefill(list(range(100, 140)))
        for turn in range(8):
            if queued:
                target.feed(list(range(200, 200 + queued)))
                plain.feed(list(range(200, 200 + queued)))
            last, *chain = rng.integers(300, 4000, 4).tolist()
            tree = space_tree(chain, range(n, n + MASKS)) if turn % 3 < 2 else TokenTree.chain(chain)
            rows = target.evaluate(last, tree).logits.copy()
            kept = int(rng.integers(4))
            target.keep(range(kept))
            for row, token in zip(rows, [last, *chain[:kept]], strict=False):
                assert np.array_equal(row, plain.evaluate(token).logits[0])
                plain.keep(())


@pytest.mark.parametrize(("options", "tolerance"), [(PLAIN, 1e-3), (STRICT, 0.1)])
def test_a_group_sees_the_text_its_candidates_and_its_earlier_masks_and_nothing_else(
    options: ContextOptions, tolerance: float, open_model: Callable[[str], LlamaModel]
) -> None:
    """Each group's rows are those of the same masks behind the same text, alone in a batch."""
    model, rng = open_model("f32" if options is PLAIN else "q8_0"), np.random.default_rng(11)
    group = range(model.n_vocab, model.n_vocab + MASKS)
    with closing(LlamaTarget(model, options)) as target, closing(LlamaTarget(model, options)) as alone:
        for each in (target, alone):
            each.use_masks(some_masks(4))
        prompt = rng.integers(300, 4000, 60).tolist()
        last, *chain = rng.integers(300, 4000, 4).tolist()
        target.prefill(prompt)
        tree = space_tree(chain, group)
        rows = target.evaluate(last, tree).logits
        others: list[Floats] = []
        for before in range(4):
            alone.prefill([*prompt, last, *chain][: 60 + before])
            wanted = alone.evaluate([last, *chain][before], space_tree((), group)).logits[1:].copy()
            alone.keep(())
            first = next(n for n in range(3, len(tree)) if tree.parents[n] == before - 1)
            assert np.abs(rows[first + 1 : first + 1 + MASKS] - wanted).max() < tolerance
            others.append(wanted)
        assert min(np.abs(others[i] - others[j]).max() for i in range(4) for j in range(i)) > 5 * tolerance


def test_beside_masks_hidden_states_are_those_of_plain_decoding(open_model: Callable[[str], LlamaModel]) -> None:
    model = open_model("q8_0")
    points = frozenset({LAST_HIDDEN, 0, 3})
    tree = space_tree((500, 501), range(model.n_vocab, model.n_vocab + MASKS))
    with closing(LlamaTarget(model, STRICT)) as target, closing(LlamaTarget(model, STRICT)) as plain:
        target.use_masks(some_masks(5))
        for each in (target, plain):
            each.request(points)
            each.prefill(list(range(100, 130)))
        found = {point: rows.copy() for point, rows in target.evaluate(400, tree).hidden.items()}
        wanted = plain.evaluate(400, TokenTree.chain((500, 501))).hidden
        assert all(np.array_equal(found[point][:3], wanted[point]) for point in points)
        vectors = [some_masks(5)[tree.tokens[node] - model.n_vocab] for node in tree.probes]
        assert np.array_equal(found[0][3:], vectors)


def test_what_is_no_mask_is_refused_and_the_target_goes_on(open_model: Callable[[str], LlamaModel]) -> None:
    model = open_model("q8_0")
    tree = space_tree((), (model.n_vocab + MASKS - 1,))
    with closing(LlamaTarget(model, STRICT)) as target:
        target.prefill([100, 101])
        with pytest.raises(ValueError, match="no mask"):
            target.evaluate(102, tree)
        for wrong in (some_masks(1, 128), some_masks(1)[0]):
            with pytest.raises(ValueError, match="width 256"):
                target.use_masks(wrong)
        target.use_masks(some_masks(1))
        with pytest.raises(ValueError, match="no mask 3"):
            target.evaluate(102, space_tree((), (model.n_vocab + MASKS,)))
        assert target.evaluate(102, tree).logits.shape == (2, model.n_vocab)


@pytest.mark.parametrize("architecture", ["gemma3", "gemma3n", "granite", "qwen2vl", "gpt2"])
def test_masks_are_offered_where_a_vector_is_used(architecture: str, open_model: Callable[[str], LlamaModel]) -> None:
    model = open_model("q8_0")
    assert MaskRows(model).offered
    other: Any = SimpleNamespace(
        adapters=(), header=replace(model.header, architecture=architecture), n_vocab=model.n_vocab, n_embd=model.n_embd
    )
    rows = MaskRows(other)
    assert not rows.offered
    with pytest.raises(ValueError, match="not offered"):
        rows.use(some_masks(1))


def test_a_file_that_is_gone_or_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mini.gguf"
    path.write_bytes(BUNDLED.read_bytes())
    model = LlamaModel(path)
    with closing(MaskRows(model)) as rows:
        rows.use(some_masks(1))
        out = np.empty((1, rows.width), np.float32)
        rows.fill([4000], out)
        path.write_bytes(path.read_bytes()[:2000])  # llama.cpp is not asked any more
        rows.fill([4000], out)
        with pytest.raises(ModelFileError, match="shorter"):
            rows.fill([3999], out)
    path.unlink()
    with closing(MaskRows(model)) as rows, pytest.raises(ModelFileError, match="cannot be read"):
        rows.use(some_masks(1))


def write(path: Path, architecture: str) -> Path:
    """Writes a tiny model of this kind, or the bundled one under the name of a kind that has the same parts."""
    if architecture in KINDS:
        return write_kind(path, architecture)
    header = read_header(BUNDLED)
    metadata = {
        key.replace("llama.", f"{architecture}.") if key.startswith("llama.") else key: (header.types[key], value)
        for key, value in header.metadata.items()
        if key not in ("general.architecture", "general.alignment")
    }
    tensors = [stored(header, tensor, tensor.name) for tensor in header.tensors]
    if architecture == "internlm2":  # which has a vocabulary matrix of its own
        tensors.append(stored(header, next(t for t in header.tensors if "token_embd" in t.name), "output.weight"))
    if architecture == "qwen2":  # which has biases
        for tensor in header.tensors:
            if tensor.name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight")):
                name, size = tensor.name.replace("weight", "bias"), tensor.shape[1]
                tensors.append(NewTensor(name, (size,), gguf.GGMLQuantizationType.F32, ones(size)))
    write_gguf(path, architecture, metadata, tensors)
    return path


def stored(header: Header, tensor: TensorInfo, name: str) -> NewTensor:
    kind = gguf.GGMLQuantizationType(tensor.type)
    return NewTensor(name, tensor.shape[::-1], kind, lambda: read_tensor(header, tensor))


def ones(size: int) -> Callable[[], NDArray[np.float32]]:
    return lambda: np.ones(size, np.float32)


def ordinary_rows_are_equal(path: Path) -> bool:
    """Whether the same tree has the same bits in its ordinary rows with masks as probes and with tokens as probes."""
    model = LlamaModel(path)
    n = model.n_vocab
    equal = True
    with closing(LlamaTarget(model, OPTIONS)) as masked, closing(LlamaTarget(model, OPTIONS)) as other:
        masked.use_masks(np.random.default_rng(1).normal(0, 0.5, (2, model.n_embd)).astype(np.float32))
        for target in (masked, other):
            target.prefill(list(range(20, 60)))
        for turn in range(3):
            rows = []
            for target, probes in ((masked, (n, n + 1)), (other, (17, 18))):
                tree = TokenTree((70 + turn, 80, *probes, *probes), (-1, 0, 1, 2, -1, 4), frozenset({2, 3, 4, 5}))
                rows.append(target.evaluate(60 + turn, tree).logits.copy())
                target.keep((0, 1)[:turn])
            assert not np.array_equal(rows[0][3:], rows[1][3:])
            equal = equal and np.array_equal(rows[0][:3], rows[1][:3])
    model.close()
    return equal


@pytest.mark.parametrize("architecture", sorted(MASK_ARCHITECTURES))
def test_a_token_is_the_same_bits_as_its_vector(architecture: str, tmp_path: Path) -> None:
    assert ordinary_rows_are_equal(write(tmp_path / "kind.gguf", architecture))


def test_where_masks_are_not_offered_a_vector_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """gemma3 scales what it looks up, and takes a vector as it is."""
    path = write(tmp_path / "kind.gguf", "gemma3")
    model = LlamaModel(path)
    with closing(LlamaTarget(model, OPTIONS)) as target:
        assert not target.abilities.masks
    model.close()
    monkeypatch.setattr(mask_rows, "MASK_ARCHITECTURES", frozenset({"gemma3"}))
    assert not ordinary_rows_are_equal(path)
