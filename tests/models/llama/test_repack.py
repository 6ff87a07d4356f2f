"""Weights laid out anew where AMX cannot be used: the right ones, and the numbers stay."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from tests.models.requantize import requantize

from slipstream.models.gguf.reader import read_header
from slipstream.models.llama import ggml, library, repack
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import process_log
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Floats, TokenTree

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
OPTIONS = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1)
HERE = Placement(0, ())
Q4_0 = 2
TOLERANCE = 1.5  # times; both layouts round what they multiply with to 8 bits, so both are a little off
WEIGHTS = r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight|output\.weight"

pytestmark = pytest.mark.skipif(bool(ggml.own_gpus()), reason="weights lie on the GPU")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled target in two quantizations that have such a layout."""
    folder = tmp_path_factory.mktemp("repack")
    paths = {kind: folder / f"{kind}.gguf" for kind in ("q4_0", "q4_k")}
    requantize(BUNDLED, paths["q4_0"], "q4_0")
    params = C.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize, params.ftype = 2, True, C.LLAMA_FTYPE_MOSTLY_Q4_K_M
    assert C.llama_model_quantize(str(BUNDLED).encode(), str(paths["q4_k"]).encode(), ctypes.byref(params)) == 0
    return paths


@pytest.fixture
def wrong_amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which llama.cpp may not choose layouts by itself."""
    for module in (library, repack):
        monkeypatch.setattr(module, "amx_is_miscompiled", lambda: True)
    yield


def said(path: Path, repacks: bool) -> tuple[Floats, bool]:
    """Logits of a chain of rows after a prompt, and whether weights were laid out anew."""
    with process_log().listening() as lines, closing(LlamaModel(path, repack=repacks)) as model:
        anew = any("CPU_REPACK model buffer size" in line for line in lines)
        with closing(LlamaTarget(model, OPTIONS)) as target:
            target.prefill(range(300, 340))
            return target.evaluate(400, TokenTree.chain(range(401, 412))).logits.copy(), anew


@pytest.mark.usefixtures("wrong_amx")
@pytest.mark.parametrize("kind", ["q4_0", "q4_k"])
def test_the_numbers_are_as_right_as_before(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    if not repack.repacked(read_header(files[kind]), HERE):
        pytest.skip("this processor has no kernels for them")
    exact = tmp_path / "exact.gguf"
    requantize(files[kind], exact, "f32")
    right, _ = said(exact, repacks=False)
    before, untouched = said(files[kind], repacks=False)
    after, anew = said(files[kind], repacks=True)
    assert (untouched, anew) == (False, True)
    assert float(np.abs(after - right).mean()) < TOLERANCE * float(np.abs(before - right).mean())


@pytest.mark.parametrize("kind", ["q4_0", "q4_k"])
def test_matrices_are_named_and_nothing_else(kind: str, files: dict[str, Path]) -> None:
    header = read_header(files[kind])
    patterns = repack.repacked(header, HERE)
    if not patterns:
        pytest.skip("this processor has no kernels for them")
    for tensor in header.tensors:
        found = any(re.search(pattern, tensor.name) for pattern in patterns)
        wanted = re.fullmatch(WEIGHTS, tensor.name) and repack.gains(tensor.type, tensor.shape)
        assert found == bool(wanted), tensor.name
    assert not any(re.search(pattern, "output_norm.weight") for pattern in patterns)
    assert not any(re.search(pattern, "blk.99.attn_q.weight") for pattern in patterns)
    lent = Placement(2, ("mac:50052/0",))  # the output and the last layer lie there
    last = f"blk.{(header.n_layer or 0) - 1}.attn_q.weight"
    assert not any(
        re.search(pattern, name) for pattern in repack.repacked(header, lent) for name in ("output.weight", last)
    )


@pytest.mark.usefixtures("wrong_amx")
def test_experts_and_repacked_weights_share_one_array(files: dict[str, Path]) -> None:
    header = read_header(files["q4_0"])
    params = repack.weight_params(header, placement=Placement(0, (), cpu_experts=12))
    first, *others = params.named[:-1]
    end = params.named[-1]
    assert (end.pattern, end.buffer_type) == (None, None)
    assert params.tensor_buft_overrides and first.buffer_type == ggml.calls().backend_cpu_buffer_type()
    for name, held in (
        ("blk.11.ffn_up_exps.weight", True),
        ("blk.1.ffn_gate_up_exps.weight", True),
        ("blk.0.ffn_down_exps.bias", True),
        ("blk.12.ffn_up_exps.weight", False),
        ("blk.1.ffn_up_shexp.weight", False),
        ("blk.1.ffn_gate_inp.weight", False),
    ):
        assert bool(re.search(first.pattern.decode(), name)) == held, name
    assert [other.pattern.decode() for other in others] == repack.repacked(header, HERE)


def test_ggml_says_what_it_can_multiply() -> None:
    if not repack.gains(Q4_0, (256, 64)):
        pytest.skip("this processor has no kernels for them")
    assert not repack.gains(Q4_0, (256, 61))  # rows go together in fours or eights
    assert not repack.gains(Q4_0, (256, 64, 4))  # experts
    assert not repack.gains(0, (256, 64))  # F32 has no other layout


def test_where_llama_cpp_chooses_it_is_left_alone(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (library, repack):
        monkeypatch.setattr(module, "amx_is_miscompiled", lambda: False)
    header = read_header(files["q4_0"])
    for wanted in (True, False):
        params = repack.weight_params(header, wanted)
        assert params.tensor_buft_overrides is None and params.use_extra_bufts == wanted
