"""Chats reach the index through the engine's own process, idle or ending, and leave it when they are deleted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.app.chats.deletion_hooks import switch
from slipstream.app.chats.recording import recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done, Loaded
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.drafters.text_index import TextIndex

pytestmark = pytest.mark.program

ASKED = "Tell me about the sea"


def indexed(paths: Paths) -> set[str]:
    """Names of all that is indexed."""
    found = [TextIndex.existing(folder) for folder in paths.index.iterdir() if folder.is_dir()]
    return {name for index in found if index for name in index.documents()}


def reply(engine: Engine, store: ChatStore, loaded: Loaded, chat: str, number: int, drafter: str) -> Done:
    store.add_user(chat, ASKED)
    message = store.begin_reply(chat, model=loaded.name, fingerprint=loaded.fingerprint, drafter=drafter, seed=1)
    ask = Generate(number, [Message("user", ASKED)], Sampling(seed=1), drafter, max_tokens=40)
    (done,) = [event for event in recorded(engine.reply(ask), store, message.id) if isinstance(event, Done)]
    return done


def test_an_idle_engine_indexes_what_it_wrote_and_drafts_from_it(tmp_path: Path) -> None:
    paths = Paths.default({HOME_VARIABLE: str(tmp_path)})
    with (
        closing(ChatStore(paths.chats, index=paths.index)) as store,
        closing(Engine(paths.logs / "engine.log")) as engine,
    ):
        loaded = engine.load(choose(paths))
        offer = next(offer for offer in loaded.drafters if offer.name == "retrieval")
        assert not offer.usable and "indexed text" in offer.why_not
        chat, again = store.create().id, store.create().id
        first = reply(engine, store, loaded, chat, 1, "none")
        patience = time.monotonic() + 60
        while f"chat:{chat}" not in indexed(paths):
            assert time.monotonic() < patience, "it was never indexed"
            time.sleep(0.1)
        second = reply(engine, store, loaded, again, 2, "retrieval")
        assert second.text == first.text
        assert second.speed.accepted > 20 and second.speed.steps < first.speed.steps / 2
        store.delete(chat)
        assert f"chat:{chat}" not in indexed(paths)
        store.delete(again)
        assert reply(engine, store, loaded, store.create().id, 3, "none").text == first.text
        engine.close()
        assert not {f"chat:{chat}", f"chat:{again}"} & indexed(paths)


@pytest.mark.slow
def test_one_reply_is_indexed_before_the_command_ends_unless_the_index_is_off(tmp_path: Path) -> None:
    paths = Paths.default({HOME_VARIABLE: str(tmp_path)})

    def run(*more: str) -> None:
        words = ["run", "-p", ASKED, "--max-tokens", "9", *more]
        program = [sys.executable, "-c", "from slipstream.app.cli.main import main; main()", *words]
        environment = {**os.environ, HOME_VARIABLE: str(tmp_path)}
        subprocess.run(program, stdin=subprocess.DEVNULL, check=True, timeout=300, env=environment)

    run()
    assert not indexed(paths)  # it was not kept
    run("--chat", "sea")
    assert indexed(paths) == {"chat:sea"}
    switch(paths.index, on=False)
    run("--chat", "moon")
    assert indexed(paths) == {"chat:sea"}
    switch(paths.index, on=True)
    run()  # takes up what was left
    assert indexed(paths) == {"chat:sea", "chat:moon"}
