"""``slipstream chats``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.app import cli
from slipstream.app.chats.store import ChatStore
from slipstream.app.paths import HOME_VARIABLE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["chats", *words])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


@pytest.fixture
def foxes(tmp_path: Path) -> str:
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        chat = store.create().id
        store.add_user(chat, "About foxes")
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text="They eat \x1b[31m voles.", tokens=[1])
        store.pin(chat)
        return chat


def test_list_and_rename(run: Run, foxes: str) -> None:
    code, out, _ = run("list")
    assert code == 0
    assert out.startswith(foxes) and out.endswith("* About foxes\n")
    assert run("rename", foxes, "Red ones") == (0, "", "")
    (line,) = run("list", "--json")[1].splitlines()
    listed = json.loads(line)
    assert (listed["id"], listed["title"], listed["pinned"]) == (foxes, "Red ones", True)


def test_search(run: Run, foxes: str) -> None:
    assert run("search", "VOLE", "eat") == (0, f"{foxes}  About foxes\n    assistant: They eat ␛[31m voles.\n", "")
    found = [json.loads(line) for line in run("search", "fox", "--json")[1].splitlines()]
    assert [(hit["chat"], hit["role"]) for hit in found] == [(foxes, ""), (foxes, "user")]
    assert found[1]["spans"] == [[6, 11]]
    assert len(found) > 1 and run("search", "fox")[1].count(foxes) == 1  # its title once, above its messages
    assert run("search", "owls") == (0, "", 'slipstream: nothing has "owls".\n')
    assert run("search", "fox", "--limit", "0")[0] == 2


def test_show(run: Run, foxes: str) -> None:
    _, out, _ = run("show", foxes)
    assert out.startswith("# About foxes\n")
    assert "## You\n\nAbout foxes\n\n## Reply\n\nThey eat \x1b[31m voles.\n" in out  # no terminal: as it is
    code, out, err = run("show", "zzzzzz")
    assert (code, out) == (2, "")
    assert (
        err == f'slipstream: there is no chat "zzzzzz". The newest are: {foxes} (About foxes). '
        "slipstream chats list shows all.\n"
    )


def test_a_chat_is_exported_deleted_and_imported(run: Run, foxes: str, tmp_path: Path) -> None:
    shown = run("show", foxes)
    file = tmp_path / "chats.json"
    assert run("export", "--format", "json", "-o", str(file)) == (0, "", "")
    assert run("export", foxes, "--format", "json")[1] == file.read_text("utf-8")
    assert run("export")[1].startswith("# About foxes\n")
    assert run("delete", foxes, "zzzzzz")[0] == 2
    assert run("delete", foxes) == (0, "", "")
    assert run("list") == (0, "", "slipstream: no chats are kept yet.\n")
    assert b"voles" not in (tmp_path / "chats.db").read_bytes()
    assert run("import", str(file)) == (0, f"{foxes}  About foxes\n", "")
    assert run("show", foxes) == shown


def test_what_cannot_be_imported_says_why(run: Run, tmp_path: Path) -> None:
    code, _, err = run("import", str(tmp_path / "none.json"))
    assert (code, err) == (
        1,
        f"slipstream: cannot read {tmp_path}/none.json: no such file or directory. Give a file that is there.\n",
    )
    (tmp_path / "bad.json").write_text("{}")
    code, _, err = run("import", str(tmp_path / "bad.json"))
    assert code == 2 and "it has neither chats nor conversations" in err
