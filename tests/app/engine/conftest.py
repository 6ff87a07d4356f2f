"""An engine in a process of its own, for every test that asks for one."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.app.engine.process.client import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine(tmp_path / "logs" / "engine.log")) as one:
        yield one
