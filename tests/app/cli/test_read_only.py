"""Homes and files that a user may read and not write: said in a line, a reply all the same, nothing of them lost.

Rights do not bind root, as which tests often run: the program gets none of root's power to pass over them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from tests.app.terminal import ROOT, Terminal

from slipstream.app.chats.store import ChatStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
BOUND: Final = (
    "import ctypes, os, sys\n"
    "for power in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH\n"
    "    ctypes.CDLL(None).prctl(24, power, 0, 0, 0)  # PR_CAPBSET_DROP: it is gone after exec\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
)
PROGRAM: Final = (sys.executable, "-c", BOUND, "-m", "slipstream.app.cli.main")
REPLY: Final = ("run", "-p", "hi", "--max-tokens", "2", "--seed", "1")
NOT_KEPT: Final = "Nothing is kept: chats are forgotten when slipstream ends."


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with a chat and settings; it can be written to again afterwards."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "memory"))
    home = tmp_path / "home"
    with closing(ChatStore(home / "chats.db")) as store:
        store.open_or_create("one")
        store.add_user("one", "said before")
    (home / "settings.toml").write_text("[sampling]\ntop_k = 3\n")
    read_only(home)
    writes = [sys.executable, "-c", BOUND, "-c", "import sys; open(sys.argv[1], 'a')", str(home / "settings.toml")]
    if subprocess.run(writes, stderr=subprocess.DEVNULL).returncode == 0:
        pytest.skip("this root cannot give up its power")
    writable(home)
    yield home
    writable(home)


def read_only(home: Path, folders: bool = True) -> None:
    for path in [*home.rglob("*"), home]:
        if path.is_file() or folders:
            path.chmod(0o500 if path.is_dir() else 0o400)


def writable(home: Path) -> None:
    home.chmod(0o700)
    for path in home.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


def slipstream(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPSTREAM_HOME": str(home)}
    done = subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=variables, cwd=ROOT
    )
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 1, done.stderr
    return done


def texts(home: Path) -> list[str]:
    with closing(ChatStore(home / "chats.db")) as store:
        assert not store.notice
        return [message.content for chat in store.list_chats() for message in store.messages(chat.id)]


def content(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_home_that_is_only_read_gives_replies_that_are_not_kept(home: Path) -> None:
    read_only(home)
    before = content(home)
    done = slipstream(home, *REPLY)
    assert done.returncode == 0 and done.stdout.strip()
    assert "permission denied" in done.stderr and NOT_KEPT in done.stderr and "Fix its rights" in done.stderr
    for words in ((*REPLY, "--chat", "one"), (*REPLY, "--chat", "new"), ("chats", "delete", "one")):
        done = slipstream(home, *words)
        assert done.returncode == 1 and not done.stdout and "permission denied" in done.stderr, words
    with Terminal(*PROGRAM, "--seed", "7", home=home, size=(100, 40)) as terminal:
        terminal.shows("Nothing is kept", "Message, / for commands")
        terminal.type("hi\r")
        terminal.shows("· first token")
        terminal.type("\x11")
        assert terminal.ended() == 0
    assert content(home) == before
    writable(home)
    assert texts(home) == ["said before"]


def test_chats_that_are_only_read_are_named_before_anything_is_said(home: Path) -> None:
    read_only(home, folders=False)
    for words in ((*REPLY, "--chat", "one"), ("chats", "list")):
        done = slipstream(home, *words)
        assert done.returncode == 1 and not done.stdout
        assert "cannot write to" in done.stderr and "chats.db" in done.stderr and "Fix its rights" in done.stderr
    with Terminal(*PROGRAM, home=home, size=(100, 40)) as terminal:
        terminal.shows("permission denied", "Chat without keeping it? [y/N]")
        terminal.type("n\r")
        assert terminal.ended() == 1 and b"chats.db" in terminal.sent and b"Traceback" not in terminal.sent
    writable(home)
    assert texts(home) == ["said before"]


@pytest.mark.slow
def test_an_open_chat_whose_home_becomes_read_only_is_still_kept(home: Path) -> None:
    with Terminal(*PROGRAM, "--seed", "7", "--chat", "one", home=home, size=(100, 40)) as terminal:
        terminal.shows("said before", "tok/s")
        read_only(home)
        terminal.type("and now?\r")
        terminal.shows("· first token")
        terminal.type("\x11")
        assert terminal.ended() == 0
    writable(home)
    kept = texts(home)
    assert kept[:2] == ["said before", "and now?"] and kept[2]


@pytest.mark.parametrize("folders", [True, False])
def test_settings_that_are_only_read(home: Path, folders: bool) -> None:
    read_only(home, folders)
    done = slipstream(home, "settings", "set", "sampling.top_k", "7")
    if folders:
        assert done.returncode == 1 and "permission denied" in done.stderr and "Fix its rights" in done.stderr
    kept = "3" if folders else "7"  # a file is replaced, for which its folder counts
    assert (home / "settings.toml").read_text() == f"[sampling]\ntop_k = {kept}\n"


@pytest.mark.slow
def test_settings_that_cannot_even_be_read(home: Path) -> None:
    (home / "settings.toml").chmod(0)
    done = slipstream(home, *REPLY)
    assert done.returncode == 0 and done.stdout.strip()
    assert "settings.toml: permission denied" in done.stderr and "Until then the defaults hold" in done.stderr
    done = slipstream(home, "settings", "set", "sampling.top_k", "7")
    assert done.returncode == 1 and "permission denied" in done.stderr
    writable(home)
    assert (home / "settings.toml").read_text() == "[sampling]\ntop_k = 3\n"
