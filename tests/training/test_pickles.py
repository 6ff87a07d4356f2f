"""PyTorch files: weights are read, code is not run, nothing else is taken for weights."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.drafters.training.pickles import load_pickle
from slipstream.models.errors import ModelFileError, SlipstreamError


class Touch:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = torch.randn(3, 4).to(dtype)
    torch.save({"0.0.linear.weight": weights}, tmp_path / "heads.pt")
    found = load_pickle(tmp_path / "heads.pt")
    assert list(found) == ["0.0.linear.weight"] and found["0.0.linear.weight"].dtype == np.float32
    assert np.array_equal(found["0.0.linear.weight"], weights.float().numpy())


def test_parameters_of_a_module_are_read(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    torch.save(dict(module.named_parameters()), tmp_path / "heads.bin")
    assert np.array_equal(load_pickle(tmp_path / "heads.bin")["weight"], module.weight.detach().numpy())


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(tmp_path: Path, zipped: bool) -> None:
    trap = tmp_path / "ran"
    if zipped:
        torch.save({"weight": Touch(trap)}, tmp_path / "heads.pt")
    else:
        (tmp_path / "heads.pt").write_bytes(pickle.dumps({"weight": Touch(trap)}, protocol=2))
    with pytest.raises(ModelFileError, match="holds more than weights") as caught:
        load_pickle(tmp_path / "heads.pt")
    assert not trap.exists() and caught.value.hint


@pytest.mark.parametrize(
    ("content", "why"), [([torch.zeros(2)], "no tensors by name"), ({"step": 3}, "'step', which is no tensor")]
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any, why: str) -> None:
    torch.save(content, tmp_path / "heads.pt")
    with pytest.raises(ModelFileError, match=why):
        load_pickle(tmp_path / "heads.pt")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"anything at all", b"\x80\x02."])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "heads.pt").write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        load_pickle(tmp_path / "heads.pt")
    assert "\n" not in caught.value.title


def test_a_torch_that_cannot_be_trusted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(SlipstreamError, match=r"torch 2\.5\.1\+cpu can be made to run programs"):
        load_pickle(tmp_path / "heads.pt")
