"""A chat that is opened again is not read again, and what is kept of it goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.driver import Driver

from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.app import ChatApp

pytestmark = pytest.mark.program

STORY = " ".join(f"On day {day} the fox met {day + 3} geese, and none was afraid." for day in range(16))


def states(store: ChatStore) -> list[str]:
    state = store.state("any")
    return sorted(path.name for path in state.parent.iterdir()) if state and state.parent.exists() else []


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ChatStore]:
    with closing(ChatStore(tmp_path / "chats.db", tmp_path / "states")) as store:
        yield store


def test_states_go_with_their_chats_even_those_that_came_after(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    with closing(ChatStore(tmp_path / "chats.db", folder)) as store:
        stays, leaves = store.create().id, store.create().id
        for name in (f"{stays}.state", f"{leaves}.state", "+0123.state", f".{stays}.state.99"):
            (folder / name).write_bytes(b"x")
        store.delete(leaves)
        assert f"{leaves}.state" in states(store)  # it can be brought back
        store.erase_deleted(0.0)
        assert states(store) == [f".{stays}.state.99", f"{stays}.state"]  # the system prompt may have been its own
        (folder / f"{leaves}.state").write_bytes(b"x")  # an engine that was just closing
        (folder / "notes.txt").write_bytes(b"x")
    assert {path.name for path in folder.iterdir()} == {f"{stays}.state", "notes.txt"}
    (folder / f"{leaves}.state").write_bytes(b"x")  # an engine that outlived the interface
    ChatStore(tmp_path / "chats.db", folder).close()
    assert {path.name for path in folder.iterdir()} == {f"{stays}.state", "notes.txt"}


def opened(tmp_path: Path, store: ChatStore, chat: str | None, system: str = "") -> tuple[ChatApp, Engine]:
    load = replace(choose(Paths.default({})), derived=None, index=None, chats=None, drafter="lookup")
    load = replace(load, states=str(tmp_path / "states"), spare_cores=1)
    engine = Engine(tmp_path / "logs" / "engine.log")
    values: dict[str, bool | int | float | str] = {"reply.max_tokens": 40, "reply.system": system, "ahead.read": False}
    settled = SettingsFile(tmp_path / "settings.toml", values)
    return ChatApp(engine, load, store, chat, Sampling(seed=7), settings=settled), engine


async def said(tmp_path: Path, store: ChatStore, chat: str | None, *texts: str, system: str = "") -> None:
    """Opens the chat with the bundled model, says something, and leaves."""
    app, _ = opened(tmp_path, store, chat, system)
    async with app.run_test(size=(80, 24)) as pilot:
        driver = Driver(app, pilot, None, store, [])  # type: ignore[arg-type]
        await driver.until(lambda: driver.screen.model.loaded is not None)
        for text in texts:
            there = len(figures(store))
            driver.screen.prompt.put(text)
            words = len(text.split())
            await driver.until(lambda: driver.screen.top_bar.used >= words)  # noqa: B023 (awaited here)
            await pilot.press("enter")
            await driver.until(lambda: len(figures(store)) > there and driver.idle())  # noqa: B023 (awaited here)


def figures(store: ChatStore) -> list[Figures]:
    return [m.figures for chat in store.list_chats() for m in store.messages(chat.id) if m.figures]


async def test_a_chat_that_is_reopened_is_not_read_again_and_says_the_same(tmp_path: Path, kept: ChatStore) -> None:
    await said(tmp_path, kept, None, STORY)
    (chat,) = kept.list_chats()
    assert states(kept) == [f"{chat.id}.state"]
    await said(tmp_path, kept, chat.id, "And what came then?")
    first, second = figures(kept)
    assert first.prefilled_tokens == first.prompt_tokens
    assert second.prefilled_tokens < 40 < first.prompt_tokens < second.prompt_tokens
    texts = [message.content for message in kept.messages(chat.id)]
    folder = tmp_path / "other"
    with closing(ChatStore(folder / "chats.db")) as unkept:  # the same, with no state kept
        await said(folder, unkept, None, STORY)
        (again,) = unkept.list_chats()
        await said(folder, unkept, again.id, "And what came then?")
        assert figures(unkept)[1].prefilled_tokens == second.prompt_tokens
        assert [message.content for message in unkept.messages(again.id)] == texts


async def test_a_damaged_state_only_means_reading_again(tmp_path: Path, kept: ChatStore) -> None:
    await said(tmp_path, kept, None, STORY)
    (chat,) = kept.list_chats()
    path = tmp_path / "states" / f"{chat.id}.state"
    path.write_bytes(path.read_bytes()[:-100])
    await said(tmp_path, kept, chat.id, "And what came then?")
    assert figures(kept)[1].prefilled_tokens == figures(kept)[1].prompt_tokens
    kept.delete(chat.id)
    kept.erase_deleted(0.0)
    assert not states(kept)


def test_bench_and_other_commands_keep_no_states() -> None:
    assert choose(Paths.default({})).states is None
    assert Load("m.gguf").states is None
