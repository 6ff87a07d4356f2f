import lzma
import random
from pathlib import Path

import pytest
import torch
from tests.training.synthetic import rows

from slipstream.drafters.training.family import stages


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the stage ``tokenizer`` has run on synthetic rows."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    for source, lines in rows(random.Random(3)).items():
        (data / f"{source}.jsonl.xz").write_bytes(lzma.compress("".join(lines).encode()))
    stages.make_tokenizer(data, out, size=600, seed=3)
    return out
