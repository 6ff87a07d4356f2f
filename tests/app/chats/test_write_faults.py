"""The disk fails at the n-th call, for n = 1, 2, 3 and so on: no corruption, a clear message, the text still there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.shim import build, compiler
from tests.faults.sweep import sweep

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler: calls cannot be made to fail")

FAULTS = ["open:EACCES", "open:EIO", "write:EIO", "write:ENOSPC", "fsync:EIO", "ftruncate:EIO", "rename:EACCES"]
MOST = 50


@pytest.mark.parametrize("scenario", ["chats", "migrations", "rescues"])
def test_nothing_is_lost(tmp_path: Path, scenario: str) -> None:
    swept = list(sweep(build(tmp_path), scenario, MOST, FAULTS))
    assert [wrong for kind in swept for wrong in kind.wrong] == []
    assert len(swept) == len(FAULTS)
    for kind in swept:
        assert kind.whole or kind.runs == MOST
        assert kind.runs and (kind.told or kind.call in ("ftruncate", "rename")), "nothing failed"
