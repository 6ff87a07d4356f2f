"""A home of the release with the bundled weights before: its chats go on, and what was made for them is set aside.

``old_home.tar.xz`` was made by that release: three replies with ``slipstream run --chat`` in two chats, of which one
has its KV cache; SPACE masks by ``slipstream drafters train space -m bundled --tokens 20000``; a file indexed by
``slipstream drafters index``.
"""

import json
import os
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slipstream.app.chats.store import ChatStore
from slipstream.app.library.drafter_status import standing
from slipstream.app.library.heads_files import file_in
from slipstream.app.platform.paths import Paths
from slipstream.models.gguf.reader import read_header

OLD_HOME = Path(__file__).with_name("old_home.tar.xz")
BUNDLED = Paths.default({"SLIPSTREAM_HOME": "/"}).bundled
TARGET = BUNDLED / "slipstream-mini-q8_0.gguf"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(OLD_HOME) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "oldhome"


def slipstream(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.app.cli.main", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
        timeout=120, env={**os.environ, "SLIPSTREAM_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def reply(home: Path, chat: str) -> dict[str, Any]:
    asked = ("run", "--json", "--chat", chat, "--seed", "5", "--temp", "0.8", "--max-tokens", "24", "-p", "And then?")
    summary: dict[str, Any] = json.loads(slipstream(home, *asked).splitlines()[-1])
    return summary


def said(home: Path) -> dict[str, list[str]]:
    with closing(ChatStore(home / "chats.db")) as store:
        return {chat.id: [message.content for message in store.messages(chat.id)] for chat in store.list_chats()}


@pytest.mark.program
def test_a_chat_goes_on_with_the_new_weights_and_without_the_old_cache(home: Path) -> None:
    (state,) = (home / "states").glob("*.state")
    before, kept = said(home), state.read_bytes()
    assert {chat: len(texts) for chat, texts in before.items()} == {"trip": 4, "dinner": 2}
    first = reply(home, "dinner")
    assert first["text"] and first["prefilled_tokens"] == first["prompt_tokens"]
    assert state.read_bytes() != kept  # made anew
    after = said(home)
    assert after["dinner"] == [*before["dinner"], "And then?", first["text"]] and after["trip"] == before["trip"]
    second = reply(home, "dinner")
    assert second["text"] and second["prefilled_tokens"] < second["prompt_tokens"]


def test_heads_of_the_old_weights_are_named_and_the_bundled_ones_serve(home: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(home)})
    own, bundled = (
        [file for file in standing(TARGET, paths).of("space") if file.path.is_relative_to(folder)]
        for folder in (paths.heads, paths.bundled)
    )
    assert [file.why_not for file in own] == ["trained for another version of it"]
    assert any(not file.why_not for file in bundled)
    assert standing(TARGET, paths).tokens == 0  # an index of an earlier version is not read


def test_training_again_sets_the_old_heads_aside(home: Path) -> None:
    paths, said = Paths.default({"SLIPSTREAM_HOME": str(home)}), list[str]()
    (old,) = paths.heads.glob("*.gguf")
    held = old.read_bytes()
    out = file_in(paths.heads, read_header(TARGET), "space", said.append)
    assert out == old and not out.exists()
    (aside,) = paths.heads.glob("*.gguf")
    assert aside.read_bytes() == held and aside.name in said[0] and "another" in said[0]
