"""The sampling that a file or the catalogue recommends."""

import math

import pytest

from slipstream.models.library.catalog import catalog
from slipstream.models.sampling.sampler import checked, recommended


def test_the_keys_of_a_file_are_read_as_single_precision_wrote_them_where_there_are_any() -> None:
    found = recommended(
        {
            "general.sampling.temp": 0.6000000238418579, "general.sampling.top_k": 20,
            "general.sampling.top_p": 0.949999988079071, "general.sampling.penalty_repeat": 1.0499999523162842,
            "general.sampling.mirostat": 2, "general.name": "x",
        }
    )  # fmt: skip
    assert found == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "min_p": 0.0}
    assert isinstance(found["top_k"], int)
    assert recommended({}) == recommended({"general.sampling.sequence": "top_k;temp"}) == {}
    assert recommended({"general.sampling.temp": 0.15}) == {"temperature": 0.15}
    assert recommended({"general.sampling.top_k": -1}) == {"top_k": 0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temp", -1.0), ("temp", math.nan), ("temp", math.inf), ("temp", 1e30), ("temp", "0.6"), ("temp", True),
        ("top_p", 0.0), ("top_p", 1.5), ("min_p", 1.0), ("top_k", 1e300), ("penalty_repeat", 0.0),
        ("penalty_repeat", [1.0]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_left_out(key: str, value: object) -> None:
    assert recommended({f"general.sampling.{key}": value}) == {}


def test_the_catalogue_means_a_family_in_any_size() -> None:
    shipped = catalog()
    assert shipped.samplings and not shipped.problem
    for entry in shipped.samplings:
        assert entry.note and entry.values and checked(entry.values).items() >= entry.values.items()
    gemma = {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "min_p": 0.0}
    for name in ("gemma-3-4b-it", "google_gemma-3-27b-it-Q4_K_M", "Gemma 3 12b It", "unsloth/gemma-3-4b-it-GGUF"):
        assert shipped.sampling([name]) == gemma, name
    assert shipped.sampling(["SmolLM2-135M-Instruct.Q4_1"])["temperature"] == 0.8
    for name in (
        "SmolLM2-360M-Instruct",
        "gemma-2-9b-it",
        "Qwen3-Coder-30B-A3B",
        "gemma-3",
        "Qwen3-4B-Instruct-2507",
        "slipstream mini",
    ):
        assert shipped.sampling([name]) == {}, name
