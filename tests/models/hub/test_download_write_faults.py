"""The disk fails at the n-th call of a download: the right file or a clear error, and the same call goes on later."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler: calls cannot be made to fail")

FAULTS = ["open:EACCES", "write:EIO", "write:ENOSPC", "fsync:EIO", "ftruncate:EIO", "rename:EACCES"]
MOST = 50


def test_no_wrong_file_and_nothing_fetched_in_vain(tmp_path: Path) -> None:
    swept = list(sweep(build(tmp_path), "downloads", MOST, FAULTS))
    assert [wrong for kind in swept for wrong in kind.wrong] == []
    assert len(swept) == len(FAULTS)
    for kind in swept:
        assert kind.whole or kind.runs == MOST
        assert kind.runs and (kind.told or kind.call == "ftruncate"), "nothing failed"
