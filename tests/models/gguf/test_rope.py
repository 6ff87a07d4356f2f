"""Which contexts a file allows, and by which scaling; llama.cpp computes with it as if the file said so."""

from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.models.kinds import write_kind

from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.rope import ContextRange, RopeScaling, context_range
from slipstream.models.library.catalog import catalog
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Floats

OFF: Final = RopeScaling("none")
YARN: Final = RopeScaling("yarn", 4.0, 128)
LINEAR: Final = RopeScaling("linear", 2.0, 128)


def scaled(kind: str, factor: float, original: int = 0, context: int = 128, **more: Any) -> dict[str, Any]:
    keys = {"rope.scaling.type": kind, "rope.scaling.factor": factor, "context_length": context}
    keys |= {"rope.scaling.original_context_length": original} if original else {}
    return keys | {f"rope.scaling.{key}": value for key, value in more.items()}


CASES: Final[list[tuple[dict[str, Any], RopeScaling | None, ContextRange]]] = [
    ({"context_length": 128}, None, ContextRange(128, 128)),
    ({"context_length": 128}, YARN, ContextRange(128, 512, YARN)),
    ({"context_length": 160}, YARN, ContextRange(160, 512, YARN)),  # Qwen3: 40,960 in the file, scaled from 32,768
    ({"context_length": 1024}, YARN, ContextRange(1024, 1024, YARN)),  # a later model of the same name
    (scaled("yarn", 4.0, 128), None, ContextRange(128, 512, YARN, OFF)),
    (scaled("yarn", 4.0), None, ContextRange(128, 512, YARN, OFF)),
    (scaled("linear", 2.0, 128), None, ContextRange(128, 256, LINEAR, OFF)),
    (scaled("linear", 8.0), None, ContextRange(128, 128)),  # Gemma 3 was trained with it
    (scaled("yarn", 4.0, 128, 512), None, ContextRange(512, 512)),  # so was gpt-oss, for all that the file says
    (scaled("yarn", 4.0, 128, 400), None, ContextRange(400, 400)),
    (scaled("yarn", 4.0, 128, 512), YARN, ContextRange(128, 512, YARN, OFF)),  # a copy that somebody converted
    (scaled("yarn", 4.0, 128, attn_factor=1.2), None, ContextRange(128, 128)),
    (scaled("yarn", 4.0, 128, finetuned=1), None, ContextRange(128, 128)),
    (scaled("longrope", 4.0, 32), None, ContextRange(128, 128)),
    (scaled("longrope", 4.0, 32), YARN, ContextRange(128, 128)),
    *((scaled("yarn", factor, 128), None, ContextRange(128, 128)) for factor in (0.0, -4.0, float("nan"), 1.0)),
    (scaled("yarn", float("inf"), 128), None, ContextRange(128, 128)),
    (
        scaled("yarn", 1e30, 128),
        None,
        ContextRange(128, 1 << 24, RopeScaling("yarn", float(np.float32(1e30)), 128), OFF),
    ),
]


@pytest.mark.parametrize(("keys", "published", "expected"), CASES)
def test_a_header_says_which_contexts_there_are(
    tmp_path: Path, keys: dict[str, Any], published: RopeScaling | None, expected: ContextRange
) -> None:
    header = read_header(write_kind(tmp_path / "m.gguf", "qwen3", more=keys))
    found = context_range(header, published)
    assert found == expected and found.scaling(found.trained) == expected.within
    assert found.scaling(found.longest + 1) == expected.beyond


def test_the_catalogue_knows_what_qwen_publishes() -> None:
    found = catalog().scaling(["qwen3-8b-q4_k_m"])
    assert found == RopeScaling("yarn", 4.0, 32_768) and found.longest == 131_072
    assert catalog().scaling(["Qwen3-0.6B"]) is None and catalog().scaling(["Qwen3-8B-Base"]) is None


def logits(path: Path, rope: RopeScaling | None) -> Floats:
    options = ContextOptions(n_ctx=256, kv="f32", flash=False, threads=1, rope=rope)
    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, options)) as target:
        tokens = [1, *range(60, 80), *range(200, 230)]
        target.prefill(tokens[:-1])
        found: Floats = target.evaluate(tokens[-1]).logits[0].copy()
        return found


@pytest.mark.parametrize("scaling", [YARN, LINEAR])
def test_a_context_computes_as_if_the_file_said_so(tmp_path: Path, scaling: RopeScaling) -> None:
    silent = write_kind(tmp_path / "silent.gguf", "qwen3", more={"context_length": 128})
    keys = scaled(scaling.kind, scaling.factor, scaling.trained)
    saying = write_kind(tmp_path / "saying.gguf", "qwen3", more=keys)
    assert (logits(silent, scaling) == logits(saying, None)).all()
    assert (logits(saying, OFF) == logits(silent, None)).all()
    assert np.abs(logits(silent, scaling) - logits(silent, None)).max() > 0.1
