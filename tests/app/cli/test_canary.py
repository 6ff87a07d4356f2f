"""What is said in a chat is kept in the chat and nowhere else, however the engine ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.engine.disturbed import bundled

from slipstream.app.chats.recording import recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Stepped
from slipstream.app.protocol.requests import Generate, Message, Prepare
from slipstream.models.errors import EngineDiedError, SlipstreamError

pytestmark = pytest.mark.program

CANARY = "xylophone-7f3ad1-marmalade"
PROMPTS = 50
CRASHES = {9: signal.SIGSEGV, 19: signal.SIGABRT, 29: signal.SIGBUS, 39: signal.SIGKILL}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of its own: home, temporary folder and working folder, all below one folder."""
    folders = {"SLIPSTREAM_HOME": "slipstream", "HOME": "home", "TMPDIR": "temporary", "XDG_CACHE_HOME": "cache"}
    for variable, name in folders.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def seen_of(process: int) -> bytes:
    folder = Path(f"/proc/{process}")
    return b"".join((folder / name).read_bytes() for name in ("cmdline", "environ", "comm"))


def elsewhere(home: Path) -> set[str]:
    """The files that hold the canary or are named by it, but for the chats, their backups and their kept states."""
    files = {str(path.relative_to(home)): path for path in home.rglob("*") if path.is_file()}
    hold = {name for name, path in files.items() if CANARY in name or CANARY.encode() in path.read_bytes()}
    assert "slipstream/chats.db" in hold
    return {name for name in hold if not re.fullmatch(r"slipstream/(chats[^/]*\.db(-wal)?|states/[^/]*)", name)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in Linux's way")
def test_fifty_prompts_and_four_crashes_leave_it_in_the_chat_alone(home: Path) -> None:
    paths = Paths.default()
    log = paths.logs / "chat-engine.log"
    logs = b""
    with closing(Engine(log)) as engine, closing(ChatStore(paths.chats, paths.states)) as store:
        load = bundled(paths.derived)
        engine.load(load)
        chat = store.create().id
        for number in range(PROMPTS):
            said = f"{CANARY} number {number}"
            crash = CRASHES.get(number)
            asked = store.add_user(chat, said)
            reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="lookup", seed=1)
            messages = [Message("system", CANARY), Message("user", said)]
            engine.prepare(Prepare(messages))
            process = engine.process_id
            assert process and asked.content == said
            generate = Generate(number + 1, messages, drafter="lookup", max_tokens=0 if crash else 3)
            try:
                for event in recorded(engine.reply(generate), store, reply.id):
                    if isinstance(event, Stepped) and crash:
                        os.kill(process, crash)
                        crash = None
                    elif number % 10 == 0:
                        assert CANARY.encode() not in seen_of(process)
            except EngineDiedError as error:
                assert CANARY not in str(error)
                logs += log.read_bytes()
                engine.load(load)
        with pytest.raises(SlipstreamError) as refused:
            list(engine.reply(Generate(1000, [Message("user", f"{CANARY} " * 5000)])))
        assert CANARY not in str(refused.value)
        assert b"Segmentation fault" in logs and CANARY.encode() not in logs
    assert elsewhere(home) == set()


@pytest.mark.slow
def test_a_command_leaves_it_in_its_chat_alone(home: Path) -> None:
    command = [sys.executable, "-m", "slipstream.app.cli.main", "run", "--max-tokens", "4", "--chat", "tune"]
    ran = subprocess.run(command, input=f"{CANARY}, you say?", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert CANARY not in ran.stderr
    assert elsewhere(home) == set()
