"""Graphs on ggml against numpy, what is refused, and that nothing stays behind."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import NewTensor, read_tensor, write_gguf
from slipstream.models.llama import ggml
from slipstream.models.llama.ggml import Operations, Tensor
from slipstream.models.llama.network import Network
from slipstream.models.types import Floats

WIDTH, ROWS, STACK, BEST = 96, 300, 3, 7
KINDS = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "f16": gguf.GGMLQuantizationType.F16,
    "f32": gguf.GGMLQuantizationType.F32,
}
TOLERANCE = {"q8_0": 8e-2, "f16": 4e-3, "f32": 1e-5}
"""Of a share, relative: ggml rounds what it multiplies with to the type of the matrix, Q8_0 to one part in 254."""


def written(path: Path, kinds: Mapping[str, str], width: int = WIDTH) -> Header:
    """Writes random weights: matrices m0 to m2 [ROWS, width], vectors b0 to b2 [ROWS]."""
    rng = np.random.default_rng(7)
    tensors: list[NewTensor] = []
    for number in range(STACK):
        matrix = rng.normal(size=(ROWS, width), scale=width**-0.5).astype(np.float32)
        vector = rng.normal(size=ROWS).astype(np.float32)
        for name, values in ((f"m{number}", matrix), (f"b{number}", vector)):
            tensors.append(NewTensor(name, values.shape, KINDS[kinds.get(name, "f32")], lambda values=values: values))  # type: ignore[misc]
    write_gguf(path, "random", {}, tensors)
    return read_header(path)


def build(ops: Operations, tensors: Mapping[str, Tensor], rows: int) -> None:
    """Shares of x + SiLU(x), x = Mv + b, for a stack of matrices, and the best of them."""
    x = ops.add(ops.multiply(tensors["m"], ops.input(WIDTH, rows, STACK)), tensors["b"])
    shares = ops.reshape(ops.soft_max(ops.add(x, ops.silu(x))), ROWS, rows * STACK, 1)
    best = ops.top_k(shares, BEST)
    ops.output(shares, np.float32, ROWS, rows, STACK)
    ops.output(best, np.int32, BEST, rows, STACK)
    ops.output(ops.rows(ops.reshape(shares, 1, ROWS, rows * STACK), best), np.float32, BEST, rows, STACK)


STACKS = {"m": ["m0", "m1", "m2"], "b": ["b0", "b1", "b2"]}


def shares(header: Header, states: Floats) -> Floats:
    """What ``build`` computes, by numpy, from the weights as the file holds them."""
    read = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    found = []
    for number in range(STACK):
        x = states[number] @ read[f"m{number}"].T + read[f"b{number}"]
        x = x + x / (1 + np.exp(-x))
        x = np.exp(x - x.max(axis=-1, keepdims=True))
        found.append(x / x.sum(axis=-1, keepdims=True))
    return np.stack(found)


def states(rows: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((STACK, rows, WIDTH), np.float32)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def header(tmp_path: Path, kind: str) -> Header:
    return written(tmp_path / "weights.gguf", {f"m{number}": kind for number in range(STACK)})


@pytest.fixture
def network(header: Header) -> Iterator[Network]:
    with closing(Network(header, STACKS, build, lambda: 1)) as opened:
        yield opened


def test_a_graph_computes_what_numpy_does(network: Network, header: Header, kind: str) -> None:
    for rows in (1, 4, 1, 2, 4):
        given = states(rows, seed=rows)
        all_shares, best, theirs = network.run(given)
        wanted = shares(header, given)
        assert np.allclose(all_shares, wanted, rtol=TOLERANCE[kind], atol=1e-7)
        assert np.allclose(all_shares.sum(axis=-1), 1, atol=1e-5)
        assert np.array_equal(np.take_along_axis(all_shares, best, axis=-1), theirs)
        assert np.array_equal(np.sort(theirs, axis=-1), np.sort(all_shares, axis=-1)[..., -BEST:])
    assert network.device


def test_wrong_sizes_are_refused_before_ggml_sees_them(network: Network, header: Header) -> None:
    for wrong in (states(1)[:, :, :-1], states(1)[:-1], states(2)[:2]):
        with pytest.raises(ValueError, match="an input is"):
            network.run(wrong)

    def misnamed(ops: Operations, tensors: Mapping[str, Tensor], rows: int) -> None:
        ops.output(ops.silu(ops.input(WIDTH, rows, 1)), np.float32, WIDTH, rows, 2)

    with pytest.raises(ValueError, match="an output of"):
        Network(header, STACKS, misnamed, lambda: 1)


def test_weights_that_end_early_or_are_of_two_kinds_are_refused(header: Header, tmp_path: Path) -> None:
    with header.path.open("rb+") as file:
        file.truncate(header.data_offsets[0] + 1000)
    with pytest.raises(ModelFileError, match="became shorter"):
        Network(header, STACKS, build, lambda: 1)
    header = written(tmp_path / "mixed.gguf", {"m1": "f16"})
    with pytest.raises(ModelFileError, match="stored otherwise than"):
        Network(header, STACKS, build, lambda: 1)


def test_too_little_memory_is_an_error_and_not_the_end(header: Header) -> None:
    def vast(ops: Operations, tensors: Mapping[str, Tensor], rows: int) -> None:
        ops.output(ops.top_k(ops.input(1 << 44, rows, 1), 1), np.int32, 1, rows, 1)

    with (
        closing(Network(header, STACKS, vast, lambda: 1)) as network,
        pytest.raises(SlipstreamError, match="not enough memory"),
    ):
        network.run(states(1))


def test_a_device_that_fails_is_named(network: Network, header: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network._ggml, "backend_graph_compute", lambda *_: -1)
    with pytest.raises(SlipstreamError, match="failed on the drafting heads"):
        network.run(states(1))
    monkeypatch.setattr(network._ggml, "backend_dev_supports_op", lambda *_: False)
    with pytest.raises(SlipstreamError, match="no device"):
        Network(header, STACKS, build, lambda: 1)


def test_a_library_without_a_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml, "_CALLS", {"no_such_call": (None, ())})
    with pytest.raises(SlipstreamError, match="has no ggml_no_such_call"):
        ggml.calls.__wrapped__()


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_closed_and_dropped_networks_are_freed(tmp_path: Path) -> None:
    width = 8192  # 29 MB of float32
    header = written(tmp_path / "large.gguf", {}, width)

    def wide(ops: Operations, tensors: Mapping[str, Tensor], rows: int) -> None:
        ops.output(ops.multiply(tensors["m"], ops.input(width, rows, STACK)), np.float32, ROWS, rows, STACK)

    before, given = 0, np.ones((STACK, 1, width), np.float32)
    for turn in range(12):
        network: Any = Network(header, {"m": STACKS["m"]}, wide, lambda: 1)
        network.run(given)
        if turn % 2:
            network.close()
            network.close()
        del network
        gc.collect()
        before = before or resident()
    assert resident() - before < 100e6  # the eleven others kept alive would be 320 MB
