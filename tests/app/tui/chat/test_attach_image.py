"""Images that go into a message: typed, pasted, sent, shown, edited and exported."""

import base64
import json
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.tui.chat.test_prompt import paste
from tests.app.tui.conftest import Open
from tests.models.tiny_mmproj import write_picture

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.images import read_attached
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.attach import pasted_image
from slipstream.models.errors import UsageError

LABEL = "[cat.png, 48 × 32 pixels, 1 kB]"


@pytest.fixture(autouse=True)
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my pictures").mkdir()
    monkeypatch.chdir(tmp_path / "my pictures")
    return write_picture(tmp_path / "my pictures" / "cat.png")


def test_a_pasted_path_is_known_as_terminals_write_it(picture: Path) -> None:
    place = str(picture)
    for text in (place, f"'{place}' ", f'"{place}"', place.replace(" ", "\\ "), f"file://{place.replace(' ', '%20')}"):
        assert pasted_image(text) == place, text
    for text in (
        "",
        "cat",
        f"see {place}",
        f"{place}\n{place}",
        f"{place}x",
        str(picture.parent),
        "https://x.org/a.png",
    ):
        assert pasted_image(text) is None, text


async def test_an_image_is_attached_sent_shown_and_kept(open_chat: Open, store: ChatStore, picture: Path) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.press(*"see @cat", "tab")
        assert prompt.text == f"see {LABEL} "
        await paste(chat, f"'{picture}'")
        assert prompt.text == f"see {LABEL} {LABEL} "
        await chat.press("enter")
        await chat.until(lambda: bool(chat.engine.asked) and chat.idle())
        said = chat.engine.asked[-1].messages[-1]
        ((sha256, place),) = said.images.items()
        assert said.content.count(f"({'image:' + sha256})") == 2
        assert Path(place).read_bytes() == picture.read_bytes() and Path(place) != picture
        assert LABEL in chat.shown() and "image:" not in chat.shown()
        assert store.list_chats()[0].title == "See"
        picture.unlink()
        await chat.press("up")  # recalled for another message
        assert prompt.text == f"see {LABEL} {LABEL} " and prompt.message == said.content


async def test_what_is_no_image_stays_text(open_chat: Open, picture: Path) -> None:
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    async with open_chat() as chat:
        await paste(chat, str(picture))
        assert chat.screen.prompt.text == str(picture)
        assert "is damaged" in " ".join(chat.toasts())


def test_an_export_holds_the_images_and_an_import_brings_them_back(store: ChatStore, tmp_path: Path) -> None:
    image = read_attached(Path("cat.png"))
    kept = store.images.keep(image.raw, image.facts.sha256)
    chat = store.create().id
    store.add_user(chat, f"{image.mark} What is it?")
    assert store.get(chat).title == "What is it?"
    assert LABEL in exported(store, [chat], "md")
    text = exported(store, [chat], "json")
    store.delete(chat)
    store.erase_deleted(0)
    assert not kept.exists()
    with closing(ChatStore(tmp_path / "other" / "chats.db")) as other:
        (brought,) = import_chats(other, text.encode(), "it")
        (place,) = other.images.found(other.messages(brought.id)[0].content).values()
        assert Path(place).read_bytes() == image.raw
        values = json.loads(text)
        values["chats"][0]["images"][image.facts.sha256] = base64.b64encode(b"another").decode()
        with pytest.raises(UsageError, match="an image is damaged"):
            import_chats(other, json.dumps(values).encode(), "it")


def test_an_image_leaves_with_the_last_message_that_names_it(store: ChatStore) -> None:
    image = read_attached(Path("cat.png"))
    kept = store.images.keep(image.raw, image.facts.sha256)
    chats = [store.create().id for _ in range(2)]
    for chat in chats:
        store.add_user(chat, image.mark)
    for chat in chats:
        assert kept.exists()
        store.delete(chat)
        store.erase_deleted(0)
    assert not kept.exists()
