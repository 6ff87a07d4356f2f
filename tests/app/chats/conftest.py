from pathlib import Path

import pytest

from slipstream.app.chats.store import ChatStore


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "chats.db")
