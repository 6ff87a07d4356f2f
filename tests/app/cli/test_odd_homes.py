"""Homes that take nothing, are not there, or have odd names, and odd locales: slipstream starts, and says what is not
kept."""

import errno
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.terminal import ROOT, Terminal
from tests.faults.shim import build, compiler

from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.chat import delete_old
from slipstream.app.platform.paths import Paths, places
from slipstream.models.errors import SlipstreamError, UsageError

pytestmark = pytest.mark.program

MAIN = "from slipstream.app.cli.main import main\nmain()"
REPLY = ("run", "-p", "hi", "--max-tokens", "2", "--seed", "1")
NOT_KEPT = "Nothing is kept: chats are forgotten when slipstream ends."
ODD = "my home, mójdom 海 дом"


def slipstream(*arguments: str, home: Path | None, code: str = MAIN, **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    environment.pop("SLIPSTREAM_HOME", None)
    if home:
        environment["SLIPSTREAM_HOME"] = str(home)
    else:
        environment.pop("HOME", None)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, stdin=subprocess.DEVNULL, env=environment,
        cwd=ROOT,
    )  # fmt: skip


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("in the way", "utf-8")
    return tmp_path / "file" / "home"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where runs that cannot keep anything put their files for the time being."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.mark.slow
def test_a_home_that_takes_nothing_still_replies_and_says_so_in_one_line(blocked: Path, memory: Path) -> None:
    done = slipstream(*REPLY, home=blocked)
    assert done.returncode == 0 and done.stdout.strip()
    said = done.stderr.decode()
    assert said.count("\n") == 1 and NOT_KEPT in said and "not a directory" in said and "SLIPSTREAM_HOME" in said
    assert not list(memory.iterdir())
    refused = slipstream(*REPLY, "--chat", "mine", home=blocked)  # it cannot be kept, which was asked for
    assert refused.returncode == 1 and b"cannot" in refused.stderr.lower() and not refused.stdout


@pytest.mark.slow
def test_the_chat_starts_in_a_home_of_any_name_and_any_locale(tmp_path: Path) -> None:
    home = tmp_path / ODD
    for locale in ("C", "tr_TR.UTF-8"):
        more = [("LC_ALL", locale), ("LANG", locale)]
        program = [sys.executable, "-m", "slipstream.app.cli.main", "--temp", "0", "--chat", "merhaba"]
        with Terminal(*program, home=home, size=(100, 30), more=more) as terminal:
            terminal.shows("tok/s")
            assert "kept" not in terminal.shown
            terminal.type("\x11")
            assert terminal.ended() == 0
    assert (home / "chats.db").exists()


@pytest.mark.slow
@pytest.mark.skipif(not compiler(), reason="no C compiler")
@pytest.mark.parametrize(("call", "code"), [("write", errno.ENOSPC), ("open", errno.EROFS)])
def test_a_full_disk_and_one_that_is_only_read(call: str, code: int, tmp_path: Path, memory: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    arm = f"Shim().arm(Path({str(home)!r}), {call!r}, 1, {code}, True)"
    armed = f"from pathlib import Path\nfrom tests.faults.shim import Shim\n{arm}\n"
    done = slipstream(*REPLY, home=home, code=armed + MAIN, LD_PRELOAD=str(build(tmp_path)))
    said = done.stderr.decode()
    assert done.returncode == 0 and done.stdout.strip(), said
    assert os.strerror(code).lower() in said and NOT_KEPT in said
    assert not [path for path in home.rglob("*") if path.is_file()] and not list(memory.iterdir())


@pytest.mark.slow
def test_a_user_without_a_home(memory: Path) -> None:
    nobody = "import os\nos.path.expanduser = lambda path: path  # as where the user is not in the list of users\n"
    done = slipstream(*REPLY, home=None, code=nobody + MAIN, XDG_DATA_HOME="", XDG_CONFIG_HOME="", XDG_CACHE_HOME="")
    said = done.stderr.decode()
    assert done.returncode == 0 and done.stdout.strip(), said
    assert said.count("\n") == 1 and "This user has no home folder." in said and "Set HOME, or SLIPSTREAM_HOME" in said
    assert not list(memory.iterdir())


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "tr_TR.UTF-8"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}])
def test_names_are_printed_in_every_locale(locale: dict[str, str], tmp_path: Path) -> None:
    done = slipstream("paths", home=tmp_path / ODD, PYTHONCOERCECLOCALE="0", **locale)
    assert done.returncode == 0 and b"chats.db" in done.stdout and not done.stderr
    bad = tmp_path / os.fsdecode(b"not utf-8 \xff")
    done = slipstream("paths", home=bad, PYTHONCOERCECLOCALE="0", **locale)
    assert done.returncode == 0 and b"chats.db" in done.stdout and not done.stderr


def test_chats_that_are_not_to_be_kept_leave_with_the_run(memory: Path, tmp_path: Path) -> None:
    usual = Paths.default({"SLIPSTREAM_HOME": str(tmp_path / "home")})
    with places(usual) as (here, note):
        assert here == usual and not note
    with places(usual, keep=False) as (here, note):
        assert "Chats are not kept" in note and here.models == usual.models and here.settings == usual.settings
        assert {here.chats.parent, here.states.parent, here.index.parent} == set(memory.iterdir())
        ChatStore(here.chats).close()
        assert here.chats.exists()
    assert not list(memory.iterdir()) and not usual.chats.exists()


def test_what_a_killed_run_left_is_swept_away(memory: Path, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"slipstream-{ended.pid}-abc", f"slipstream-{os.getpid()}-abc", "slipstream-notes"):
        (memory / name).mkdir()
    with places(Paths.default({"SLIPSTREAM_HOME": str(tmp_path / "home")}), keep=False):
        pass
    assert sorted(path.name for path in memory.iterdir()) == [f"slipstream-{os.getpid()}-abc", "slipstream-notes"]


def test_where_nothing_can_be_written_at_all_that_is_the_error(blocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    nowhere = places(Paths.default({"SLIPSTREAM_HOME": str(blocked)}))
    with pytest.raises(SlipstreamError, match="nothing can be written anywhere"), nowhere:
        pass
    with pytest.raises(UsageError, match="there is no such user"):
        Paths.default({"SLIPSTREAM_HOME": "~nobody-of-this-name/x"})


def test_old_chats_leave_where_that_is_settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        kept, pinned, old = (store.create(title).id for title in ("open", "pinned", "old"))
        store.pin(pinned)
        now = time.time()
        monkeypatch.setattr("slipstream.app.cli.chat.time.time", lambda: now + 8 * 86_400)
        assert delete_old(store, 0) == "" and delete_old(store, 9) == ""
        assert delete_old(store, 7, kept) == "1 chat older than 7 days was deleted (setting keeping.days)."
        assert {chat.id for chat in store.list_chats()} == {kept, pinned}
        assert store.restore(old)  # for a while
