from __future__ import annotations

import pytest

from slipstream.models.hub.repositories import label_of, quants_of
from slipstream.models.hub.types import RemoteFile


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("gemma-4-E4B-it-qat-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Model.i1-IQ2_XS.gguf", "IQ2_XS"),
        ("Model-IQ3_XXS.gguf", "IQ3_XXS"),
        ("Model-IQ4_NL.gguf", "IQ4_NL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Model-BF16.gguf", "BF16"),
        ("Model.fp16.gguf", "F16"),
        ("model-f32.gguf", "F32"),
        ("Model-TQ1_0.gguf", "TQ1_0"),
        ("Model-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Model-Q6_K.gguf", "Q6_K"),
        ("Model-Q3_K_XL.gguf", "Q3_K_XL"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("BF16/Model-BF16-00001-of-00002.gguf", "BF16"),
        ("Bonsai-27B-dspark-Q4_1.gguf", "Q4_1"),
        ("Qwen3-4B.gguf", ""),
        ("Q4Kids-7B.gguf", ""),
    ],
)
def test_labels_as_people_write_them(name: str, label: str) -> None:
    assert label_of(name) == label


def quants(**sizes: int) -> dict[str, list[str]]:
    files = [RemoteFile("a/b", "c", name, size) for name, size in sizes.items()]
    return {quant.label: [file.name for file in quant.files] for quant in quants_of(files)}


def test_parts_are_one_and_in_order() -> None:
    names = [f"M-Q8_0-0000{number}-of-00003.gguf" for number in (2, 3, 1)]
    assert quants(**dict.fromkeys(names, 5)) == {"Q8_0": sorted(names)}


def test_a_split_model_with_a_part_missing_is_left_out() -> None:
    assert quants(**{"M-Q8_0-00001-of-00002.gguf": 1, "M-Q4_0.gguf": 1}) == {"Q4_0": ["M-Q4_0.gguf"]}


def test_what_is_no_model_is_left_out() -> None:
    names = ["mmproj-F16.gguf", "M.mmproj-f16.gguf", "imatrix.gguf", "M-imatrix.gguf", "M-lora-f16.gguf", "M.bin"]
    assert quants(**dict.fromkeys(names, 1)) == {}


def test_the_best_projector_of_the_first_folder_comes_along_with_models() -> None:
    names = ["M-Q8_0.gguf", "mtp-M.gguf", "mmproj-M-f32.gguf", "mmproj-M-BF16.gguf", "old/mmproj-M-f16.gguf"]
    files = [RemoteFile("a/b", "main", name, 1) for name in names]
    model, heads = quants_of(files)
    assert model.projector and model.projector.name == "mmproj-M-BF16.gguf" and heads.projector is None
    assert model.size == 1
    assert quants_of([*files, RemoteFile("a/b", "main", "M.mmproj-F16.gguf", 1)])[0].projector == RemoteFile(
        "a/b", "main", "M.mmproj-F16.gguf", 1
    )


def test_labels_are_unique_and_heads_come_last() -> None:
    found = quants(
        **{"M-Q8_0.gguf": 9, "other/M-long-Q8_0.gguf": 8, "mtp-M-Q8_0.gguf": 1, "MTP/M-Q8_0.gguf": 1, "M.gguf": 7}
    )
    assert found == {
        "M": ["M.gguf"],
        "M-long-Q8_0": ["other/M-long-Q8_0.gguf"],
        "Q8_0": ["M-Q8_0.gguf"],
        "M-Q8_0": ["MTP/M-Q8_0.gguf"],
        "mtp-M-Q8_0": ["mtp-M-Q8_0.gguf"],
    }


@pytest.mark.parametrize("name", ["MTP/mtp-M-Q4_0.gguf", "Qwen3-4B-DFlash.Q8_0.gguf", "eagle3_draft_f16.gguf"])
def test_what_only_drafts_says_so(name: str) -> None:
    (quant,) = quants_of([RemoteFile("a/b", "c", name, 1)])
    assert quant.drafts


@pytest.mark.parametrize("name", ["Qwen3.6-27B-MTP-Q4_0.gguf", "Eagle-7B-Q4_0.gguf", "Smol-Q8_0.gguf"])
def test_a_model_is_a_model(name: str) -> None:
    (quant,) = quants_of([RemoteFile("a/b", "c", name, 1)])
    assert not quant.drafts
