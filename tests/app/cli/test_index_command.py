"""``slipstream drafters index``: what is indexed, updated, listed and removed, and its errors."""

import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.app.commands import Command, commands

from slipstream.app.chats.deletion_hooks import is_on
from slipstream.app.chats.store import ChatStore
from slipstream.app.cli.main import main
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.library import index_update
from slipstream.app.library import index_update as index_files
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.drafters.text_index import TextIndex, folder_of
from slipstream.models.gguf.reader import read_header


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys, "drafters", "index")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    for name, content in {
        "sea.md": "The sea is wide and blue.\n",
        "deep/fox.py": "def fox() -> str:\n    return 'red'\n",
        "deep/empty.txt": "",
        ".secret": "a hidden file",
        ".git/config": "a hidden folder",
        "node_modules/left-pad/index.js": "installed",
        "venv/pyvenv.cfg": "home = /usr",
        "venv/lib/site.py": "installed",
        "target/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55",
        "target/made.txt": "a cache",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "picture.txt").write_bytes(b"text, then\0zeros")
    (folder / "late.txt").write_bytes(b"x" * 9_000 + b"\0")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbfwith a byte order mark")
    (folder / "large.txt").write_bytes(b"word " * (index_files.LARGEST // 5 + 1))
    (folder / "link.md").symlink_to(folder / "sea.md")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    return folder


def opened(home: Path) -> TextIndex:
    header = read_header(choose(Paths.default(), "bundled").model)
    found = TextIndex.existing(folder_of(home / "index", header))
    assert found is not None
    return found


def names(home: Path, below: Path) -> set[str]:
    return {os.path.relpath(name, below) for name in opened(home).documents()}


def test_text_below_a_folder_is_indexed_and_nothing_else(command: Command, home: Path, notes: Path) -> None:
    said = command(notes)
    assert said.code == 0 and not said.err
    assert said.out.splitlines()[0] == (
        "files: 4 new, 0 changed, 0 unchanged, 0 gone; left out: 1 too large, 3 not text"
    )
    assert names(home, notes) == {"sea.md", "deep/fox.py", "deep/empty.txt", "marked.txt"}
    with closing(vocabulary()) as model:
        tokens = model.tokenize("The sea is wide and blue.\n", False)
        (row,) = opened(home).search(tokens[:3], least=3).ahead
        assert list(row[::-1][: len(tokens) - 3]) == tokens[3:]
        unmarked = model.tokenize("with a byte order mark", False)
        assert len(opened(home).search(unmarked[:2], least=2).ahead) == 1
    assert {path.stat().st_mode & 0o777 for path in (home / "index", *(home / "index").iterdir())} == {0o700}


def vocabulary() -> Any:
    from slipstream.models.llama.model import LlamaModel

    return LlamaModel(Path(choose(Paths.default(), "bundled").model), vocabulary_only=True)


@pytest.mark.slow
def test_a_second_run_reads_what_changed_and_drops_what_is_gone(command: Command, home: Path, notes: Path) -> None:
    command(notes)
    (notes / "sea.md").write_text("The sea is deep and grey.\n")
    os.utime(notes / "sea.md", ns=(1, 10**18))  # older than before is changed too
    (notes / "deep" / "fox.py").unlink()
    (notes / "deep" / "owl.py").write_text("owl = 1\n")
    (notes / "marked.txt").write_bytes(b"\0")
    said = command(notes)
    assert said.out.splitlines()[0] == (
        "files: 1 new, 1 changed, 1 unchanged, 2 gone; left out: 1 too large, 4 not text"
    )
    assert names(home, notes) == {"sea.md", "deep/owl.py", "deep/empty.txt"}
    with closing(vocabulary()) as model:
        found = opened(home)
        assert found.search(model.tokenize("wide and blue.", False), least=4).matched == 0
        assert found.search(model.tokenize("deep and grey.", False), least=4).matched >= 4
    once = found.size()
    assert "0 new, 0 changed, 3 unchanged, 0 gone" in command(notes).out
    assert opened(home).size() == once


@pytest.mark.slow
def test_single_files_and_overlapping_folders_are_taken_once(command: Command, home: Path, notes: Path) -> None:
    said = command(notes / "deep", notes / "deep" / ".." / "sea.md", notes, notes / ".secret")
    assert "files: 5 new, 0 changed, 3 unchanged, 0 gone" in said.out
    assert names(home, notes) == {"sea.md", "deep/fox.py", "deep/empty.txt", "marked.txt", ".secret"}
    said = command(notes / "deep")  # what lies outside of it stays
    assert "files: 0 new, 0 changed, 2 unchanged, 0 gone" in said.out
    assert len(names(home, notes)) == 5


@pytest.mark.slow
def test_list_shows_chats_and_topmost_folders(command: Command, home: Path, notes: Path, tmp_path: Path) -> None:
    assert command("--list").out == "nothing is indexed for Slipstream mini\n"
    assert not (home / "index").exists()
    other = tmp_path / "notes-too" / "one" / "a.txt"
    other.parent.mkdir(parents=True)
    other.write_text("One line.")
    command(notes, other)
    keep_chat(home)
    lines = [line.split() for line in command("--list").out.splitlines()]
    assert [line[:2] for line in lines] == [
        ["TEXT", "DOCUMENTS"], ["chats", "1"], [str(notes), "4"], [str(other.parent), "1"], ["all", "6"],
    ]  # fmt: skip
    tokens = [int(line[2].replace(",", "")) for line in lines[1:]]
    assert sum(tokens[:-1]) == tokens[-1] == opened(home).size().tokens


def keep_chat(home: Path) -> str:
    from slipstream.app.chats.reading import ChatReader
    from slipstream.app.engine.prompt import PromptBuilder
    from slipstream.models.chat_template.template import CHATML, ChatTemplate

    with closing(ChatStore(home / "chats.db")) as store, closing(vocabulary()) as model:
        chat = store.create().id
        store.add_user(chat, "Hello?")
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text="Good day to you.")
        prompts = PromptBuilder(ChatTemplate(CHATML), model.tokenize, [])
        reader = ChatReader(home / "chats.db")
        assert not PastChats(reader, opened(home), "f", prompts, model.n_vocab).catch_up()
    return chat


@pytest.mark.slow
def test_four_commands_at_once_lose_nothing(home: Path, notes: Path, tmp_path: Path) -> None:
    """Each indexes the same notes, which all find new or changed, and a folder of its own."""
    for turn in range(2):
        running = []
        for number in range(4):
            own = tmp_path / f"own {number}"
            own.mkdir(exist_ok=True)
            (own / f"{turn}.txt").write_text(f"The file {turn} of number {number}.")
            index = [sys.executable, "-m", "slipstream.app.cli.main", "drafters", "index", str(notes), str(own)]
            running.append(subprocess.Popen(index, stdout=subprocess.PIPE, text=True))
        said = [process.communicate(timeout=120)[0] for process in running]
        assert [process.returncode for process in running] == [0] * 4, said
        found = opened(home).documents()
        assert {Path(name).name for name in found if "own" in name} == {f"{n}.txt" for n in range(turn + 1)}
        assert len([name for name in found if "own" in name]) == 4 * (turn + 1)
        for path in notes.rglob("*"):
            if str(path) in found:
                assert found[str(path)].slots == found[str(path)].tokens + 1  # once
                path.write_text(f"It changed: {turn}.")
    assert len(found) == 8 + 4


@pytest.mark.slow
def test_remove_forgets_folders_that_are_gone(command: Command, home: Path, notes: Path, tmp_path: Path) -> None:
    command(notes)
    beside = tmp_path / "notes2"
    beside.mkdir()
    (beside / "a.txt").write_text("Its name begins like the other's.")
    command(beside)
    chat = keep_chat(home)
    theirs = TextIndex(home / "index" / "other", "other", 50)  # of another model
    from slipstream.drafters.text_index import TextPiece

    theirs.add([TextPiece(str(notes / "sea.md"), [1, 2, 3]), TextPiece("/elsewhere", [4, 5])])
    (notes / "deep" / "fox.py").unlink()
    assert command("--remove", notes / "deep").out == f"{notes / 'deep'}: 2 files removed\n"
    said = command("--remove", notes, "--remove", beside / "a.txt")
    assert said.out == f"{notes}: 2 files removed\n{beside / 'a.txt'}: 1 file removed\n"
    assert set(opened(home).documents()) == {f"chat:{chat}"}
    theirs.refresh()
    assert set(theirs.documents()) == {"/elsewhere"}
    said = command("--remove", notes)
    assert (said.code, said.out) == (2, "") and "is indexed" in said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing is asked"),
        (["--on", "--off"], "more than one thing"),
        ([".", "--list"], "more than one thing"),
        (["/no/such/place"], "/no/such/place: no such file or folder"),
        (["/dev/null"], "/dev/null: no such file or folder"),
        ([".", "-m", "none"], "no model named 'none'"),
    ],
)
def test_wrong_use_is_said_in_a_line(words: list[str], says: str, command: Command, home: Path) -> None:
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    assert says in said.err and said.err.count("\n") == 1
    assert not (home / "index").exists()


@pytest.mark.slow
def test_the_switch(command: Command, home: Path, notes: Path) -> None:
    paths = Paths.default()
    assert choose(paths).index == str(home / "index") and choose(paths).chats == str(home / "chats.db")
    assert command("--off").code == 0
    assert choose(paths).index is None and not is_on(paths.index)
    assert command("--off").code == 0
    said = command(notes)
    assert said.code == 0 and "4 new" in said.out and "--on switches it on" in said.err
    assert "--on" in command("--list").err
    assert command("--on").code == command("--on").code == 0
    assert choose(paths).index == str(home / "index")
    assert not command("--list").err


@pytest.mark.slow
def test_drafters_list_knows_whether_there_is_an_index(
    home: Path, notes: Path, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    def verdict() -> str:
        with pytest.raises(SystemExit):
            main(["drafters", "list"])
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("retrieval ")]
        return " ".join(line.split())

    assert "no: it needs indexed text, and there is none: slipstream drafters index FOLDER" in verdict()
    command(notes)
    assert verdict().endswith(" yes")
    command("--off")
    assert "no: " in verdict()
    command("--on")
    for file in (home / "index").glob("*/text.index"):
        file.write_text("broken")
    assert "no: " in verdict()
    said = command(notes)
    assert said.code == 1 and "is damaged" in said.err and "Delete that folder" in said.err


def test_unreadable_ones_are_counted(
    command: Command, home: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, walk = Path.open, os.scandir

    def refuse(path: Path, *mode: Any, **more: Any) -> Any:
        if path.name == "sea.md":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *mode, **more)

    def closed(path: str) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return walk(path)

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(os, "scandir", closed)
    said = command(notes)
    assert said.code == 0 and "1 new" in said.out and "2 unreadable" in said.out
    assert names(home, notes) == {"marked.txt"}


@pytest.mark.slow
def test_a_full_disk_is_an_error_in_words_and_keeps_what_was_there(
    command: Command, home: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(notes / "sea.md")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        said = command(notes)
    assert said.code == 1 and "no space left on device" in said.err and said.err.count("\n") == 1
    assert names(home, notes) == {"sea.md"}
    assert "3 new, 0 changed, 1 unchanged" in command(notes).out


def test_an_interrupted_run_goes_on(command: Command, home: Path, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_update, "_BATCH", 1)
    read = index_files.read_text

    def interrupted(file: Path, skipped: index_files.Skipped) -> str | None:
        if file.name == "sea.md":
            raise KeyboardInterrupt
        return read(file, skipped)

    with monkeypatch.context() as patch:
        patch.setattr(index_update, "read_text", interrupted)
        said = command(notes)
    assert (said.code, said.out) == (130, "") and "the same command goes on" in said.err
    assert 0 < len(names(home, notes)) < 4
    assert command(notes).code == 0
    assert names(home, notes) == {"sea.md", "deep/fox.py", "deep/empty.txt", "marked.txt"}


def test_progress_is_shown_on_a_terminal_alone(command: Command, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert re.search(r"\d files?, \d+ tokens?", command(notes).err)


KILLED = """
import sys
from slipstream.app.cli.main import main
from slipstream.app.library import index_update
index_update._BATCH = 300
print("ready", flush=True)
main(["drafters", "index", sys.argv[1]])
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_goes_on(command: Command, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(80):
        (folder / f"{number}.txt").write_text(f"The file of number {number} and more.\n" * 9)
    for seed in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout and process.stdout.readline() == b"ready\n"
        time.sleep(random.Random(seed).uniform(0.2, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        (folder / f"{seed}.txt").write_text(f"Another text of number {seed}.\n" * 9)
    assert command(folder).code == 0
    found = opened(home)
    assert len(found.documents()) == 80
    with closing(vocabulary()) as model:
        tokens = {n: len(model.tokenize((folder / f"{n}.txt").read_text(), False)) for n in range(80)}
    assert {name: document.tokens for name, document in found.documents().items()} == {
        str(folder / f"{number}.txt"): count for number, count in tokens.items()
    }
    assert "0 new, 0 changed, 80 unchanged, 0 gone" in command(folder).out
