"""The disk fails at the n-th call of a download: the right file or a clear error, and the same call goes on later."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler: calls cannot be made to fail")

FAULTS = ("open:EACCES", "write:EIO", "write:ENOSPC", "fsync:EIO", "ftruncate:EIO", "rename:EACCES")
MOST = 2000  # far more places than there are: a scenario that never ends is no sweep


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_no_wrong_file_and_nothing_fetched_in_vain(library: Path, fault: str) -> None:
    (swept,) = sweep(library, "downloads", MOST, [fault])
    assert swept.wrong == []
    assert swept.whole, "there are later places"
    assert swept.runs and (swept.told or swept.call == "ftruncate"), "nothing failed"
