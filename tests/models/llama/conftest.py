from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions

BUNDLED = Path(__file__).parents[3] / "models" / "bundled"
STRICT = ContextOptions(n_ctx=1024, kv="q8_0", flash=True, same_text=True, max_leaves=8, threads=1)


@pytest.fixture(scope="session")
def bundled_model() -> Iterator[LlamaModel]:
    model = LlamaModel(BUNDLED / "slipstream-mini-q8_0.gguf")
    yield model
    model.close()


@pytest.fixture
def open_target(bundled_model: LlamaModel) -> Iterator[Callable[[ContextOptions], LlamaTarget]]:
    opened: list[LlamaTarget] = []

    def open_one(options: ContextOptions = STRICT) -> LlamaTarget:
        opened.append(LlamaTarget(bundled_model, options))
        return opened[-1]

    yield open_one
    for target in opened:
        target.close()
