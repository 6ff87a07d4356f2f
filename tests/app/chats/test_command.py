"""``slipstream chats``."""

import json
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from tests.app.commands import Command, commands

from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import HOME_VARIABLE
from slipstream.app.speed import Speed


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))

    return commands(capsys, "chats")


@pytest.fixture
def foxes(tmp_path: Path) -> str:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        chat = store.create().id
        store.add_user(chat, "About foxes")
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text="They eat \x1b[31m voles.", tokens=[1])
        store.pin(chat)
        return chat


def test_chats_are_listed_without_a_command_too_and_renamed(run: Command, foxes: str) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert out.startswith(foxes) and out.endswith("* About foxes\n")
    assert run("rename", foxes, "Red ones") == (0, "", "")
    (line,) = run("list", "--json")[1].splitlines()
    listed = json.loads(line)
    assert (listed["id"], listed["title"], listed["pinned"]) == (foxes, "Red ones", True)
    assert run() == run("list") and foxes in run()[1]
    assert run("--json") == run("list", "--json") == run("--json", "list") and json.loads(run("--json")[1])


@pytest.mark.parametrize("words", [["list"], ["search", "fox"]])
def test_an_empty_list_is_one_for_a_program_too(run: Command, words: list[str]) -> None:
    assert run(*words, "--json") == (0, "[]\n", "")


def test_a_chat_is_found_by_its_title_and_by_the_beginning_of_it(run: Command, foxes: str, tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        garden, other = store.create("Garden plans").id, store.create("Garden fence").id
        whole = store.create("GARDEN").id
    shown = run("show", foxes)
    assert shown[0] == 0
    for name in ("About foxes", "about FOXES", "abo", "  About  f"):
        assert run("show", name) == shown
    assert run("export", "abo", foxes, "About foxes")[1] == shown[1]
    assert run("show", "garden")[1].startswith("# GARDEN\n")  # a whole title counts above a beginning
    code, out, err = run("show", "garden ")
    assert code == 0 and out.startswith("# GARDEN\n")
    code, out, err = run("delete", "garden p", "gard")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith('slipstream: "gard" matches 3 chats. Use the id of one, the first word here: ')
    assert all(f"{chat} (" in err for chat in (garden, other, whole)) and foxes not in err
    assert run("rename", "garden f", "The fence") == (0, "", "")
    assert run("show", other)[1].startswith("# The fence\n")
    assert run("show", "")[0] == 2


def test_what_only_begins_so_is_deleted_if_confirmed(run: Command, foxes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("delete", "About")
    assert code == 2 and f"of {foxes} (About foxes). Deleting is for good" in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for answer, code in (("\n", 1), ("y\n", 0)):
        stdin = StringIO(answer)
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert foxes in run("list")[1]
        ended, out, err = run("delete", "about")
        assert (ended, out) == (code, "") and f"Delete {foxes} (About foxes) for good? [y/N] " in err
    assert foxes not in run("list")[1]


def test_a_whole_title_or_yes_deletes_at_once(run: Command, foxes: str, tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        other = store.create("Garden plans").id
    assert run("delete", "about foxes") == (0, "", "") and run("delete", "gard", "--yes") == (0, "", "")
    assert not {foxes, other} & set(run("list")[1].split())


def test_a_chat_of_an_older_version_without_a_title_is_listed_by_its_id(run: Command, tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        chat = store.create().id
    assert run("list")[1].split()[-1] == chat


def test_thoughts_are_shown_only_when_asked_for(run: Command, tmp_path: Path) -> None:
    def reply(question: str, text: str, figures: Figures | None = None) -> None:
        store.add_user(chat, question)
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text=text, tokens=[1], figures=figures)

    with closing(ChatStore(tmp_path / "chats.db")) as store:
        chat = store.create("Sea").id
        reply("one", "<think>\nShort.\n</think>\n\nBlue.")
        reply("two", "Waves.\n</think>\n\nWide.", Figures(Speed(tokens=9, thought=4)))
        reply("three", "<think>\n\n</think>\n\nDeep.")
        reply("four", "<think>\nOn and on")
    out = run("show", "sea")[1]
    assert "think" not in out.replace("--thoughts", "") and not {"Short.", "Waves."} & set(out.splitlines())
    assert "\n*It thought first; --thoughts shows what.*\n\nBlue.\n" in out
    assert "\n*It thought for 4 tokens first; --thoughts shows what.*\n\nWide.\n" in out
    assert "## Reply\n\nDeep.\n" in out
    assert "\n*It thought first; --thoughts shows what.*\n\n*No answer, only thoughts.*\n" in out
    out = run("show", "sea", "--thoughts")[1]
    assert "<summary>Thoughts</summary>\n\nWaves.\n\n</details>\n\nWide.\n" in out
    assert run("export", "sea")[1] == out


def test_search(run: Command, foxes: str) -> None:
    assert run("search", "VOLE", "eat") == (0, f"{foxes}  About foxes\n    m: They eat ␛[31m voles.\n", "")
    found = [json.loads(line) for line in run("search", "fox", "--json")[1].splitlines()]
    assert [(hit["chat"], hit["role"]) for hit in found] == [(foxes, ""), (foxes, "user")]
    assert found[1]["spans"] == [[6, 11]]
    assert len(found) > 1 and run("search", "fox")[1].count(foxes) == 1  # its title once, above its messages
    assert run("search", "owls") == (0, "", 'slipstream: no matches for "owls".\n')
    assert run("search", "fox", "--limit", "0")[0] == 2


def test_show(run: Command, foxes: str) -> None:
    _, out, _ = run("show", foxes)
    assert out.startswith("# About foxes\n")
    assert "## You\n\nAbout foxes\n\n## Reply by m\n\nThey eat \x1b[31m voles.\n" in out  # no terminal: as it is
    code, out, err = run("show", "zzzzzz")
    assert (code, out) == (2, "")
    assert (
        err == f'slipstream: there is no chat "zzzzzz". The newest are: {foxes} (About foxes). '
        "slipstream chats list shows all.\n"
    )


def test_a_chat_is_exported_deleted_and_imported(run: Command, foxes: str, tmp_path: Path) -> None:
    shown = run("show", foxes)
    file = tmp_path / "chats.json"
    assert run("export", "-o", str(file)) == (0, "", "")  # by the file's ending
    assert run("export", foxes, "--format", "json")[1] == file.read_text("utf-8")
    assert run("export")[1].startswith("# About foxes\n")
    assert run("delete", foxes, "zzzzzz")[0] == 2 and run("delete", foxes) == (0, "", "")
    assert run("list") == (0, "", "slipstream: no chats are kept yet.\n")
    assert b"voles" not in (tmp_path / "chats.db").read_bytes()
    assert run("import", str(file)) == (0, f"{foxes}  About foxes\n", "")
    assert run("show", foxes) == shown


def test_what_cannot_be_imported_says_why(run: Command, tmp_path: Path) -> None:
    code, _, err = run("import", str(tmp_path / "none.json"))
    assert (code, err) == (
        1,
        f"slipstream: cannot read {tmp_path}/none.json: no such file or directory. Check the path of the file.\n",
    )
    (tmp_path / "bad.json").write_text("{}")
    code, _, err = run("import", str(tmp_path / "bad.json"))
    assert code == 2 and "it has neither chats nor conversations" in err
