"""The disk fails at the n-th call, for n = 1, 2, 3 and so on: no corruption, a clear message, the text still there."""

from pathlib import Path

import pytest
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler: calls cannot be made to fail")

FAULTS = ("open:EACCES", "open:EIO", "write:EIO", "write:ENOSPC", "fsync:EIO", "ftruncate:EIO", "rename:EACCES")
MOST = 2000  # far more places than there are: a scenario that never ends is no sweep


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", ["chats", "migrations", "rescues"])
def test_nothing_is_lost_at_any_place(library: Path, scenario: str, fault: str) -> None:
    (swept,) = sweep(library, scenario, MOST, [fault])
    assert swept.wrong == []
    assert swept.whole, "there are later places"
    assert swept.runs and (swept.told or swept.call in ("ftruncate", "rename")), "nothing failed"
