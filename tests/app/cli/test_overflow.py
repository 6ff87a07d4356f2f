"""``run --chat --overflow``: a chat that outgrows the context is cut, summarized or refused, as asked."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.app.chats.recording import since_summary
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import Paths

Run = Callable[..., subprocess.CompletedProcess[str]]
LONG = "Tell me another part of a long story about a small fox who lives near the sea. "


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))

    def ask(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slipstream.app.cli.main", "run", "--chat", "fox", "--context", "512"]
        command += ["--max-tokens", "24", "--temp", "0.8", "--seed", "1", *options, "-p", 4 * LONG]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)

    return ask


@pytest.mark.program
@pytest.mark.slow
def test_a_full_chat_is_refused_summarized_or_cut(run: Run, tmp_path: Path) -> None:
    refused = None
    for _ in range(8):
        done = run("--overflow", "stop")
        if done.returncode:
            refused = done
            break
    assert refused and refused.returncode == 1 and not refused.stdout.strip()
    assert "the context is full: this chat has" in refused.stderr and "/compact" in refused.stderr
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    store = ChatStore(paths.chats)
    chat = store.list_chats()[0].id
    before = [message.content for message in store.messages(chat)]
    assert before[-1] != 4 * LONG
    store.close()
    done = run("--overflow", "compact")
    assert done.returncode == 0 and done.stdout.strip()
    assert f"summarizing {len(before) - 2} messages" in done.stderr or f"summarizing {len(before)}" in done.stderr
    store = ChatStore(paths.chats)
    after = store.messages(chat)
    assert [message.content for message in after if not message.summary][: len(before)] == before
    assert len(since_summary(after)) < len(before) and after[-1].content.strip() == done.stdout.strip()
    store.close()
