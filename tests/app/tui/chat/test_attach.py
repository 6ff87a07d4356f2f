"""Files that go into a message."""

import base64
import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.chat.test_prompt import paste, sent
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.models.tiny_mmproj import write_picture
from textual.notifications import Notify

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.images import read_attached
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Lora
from slipstream.app.tui.chat.attach import (
    MOST_BYTES,
    folded,
    mentioned,
    pasted_image,
    path_completions,
    read_attachment,
    unattached,
)
from slipstream.app.tui.chat.message import Question
from slipstream.models.errors import UsageError

LABEL = "[cat.png, 48 × 32 pixels, 1 kB]"
SEEING = replace(
    LOADED, images=True, lora=[Lora("/x/style.gguf", 0.5)], reasoning=["off", "on"], reasoning_default="on",
    n_ctx_trained=40_960, n_ctx_longest=131_072,
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "my notes").mkdir(parents=True)
    (folder / "notes.txt").write_text("The sea.\r\nIt is wide.\n", "utf-8", newline="")
    (folder / "my notes" / "of rivers.md").write_text("```\ncode\n```\n", "utf-8")
    (folder / "море.txt").write_text("Море широкое.", "utf-8")
    (folder / "photo.bin").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "large.txt").write_bytes(b"x" * (MOST_BYTES + 1))
    (folder / ".hidden").write_text("x", "utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my pictures").mkdir()
    monkeypatch.chdir(tmp_path / "my pictures")
    return write_picture(tmp_path / "my pictures" / "cat.png")


def names(line: str) -> list[str]:
    return [found.path for found in path_completions(line)[1]]


def test_names_complete_what_was_typed() -> None:
    everything = ["my notes/", "large.txt", "latin.txt", "notes.txt", "photo.bin", "море.txt"]
    assert names("@") == everything
    assert names("see @NO") == ["notes.txt"]
    assert names("@my no") == ["my notes/"]
    assert names("see @my notes/of ri") == ["my notes/of rivers.md"]
    assert names("and @М") == ["море.txt"]
    assert names("@.hi") == [".hidden"]
    assert names("@no and @l") == ["large.txt", "latin.txt"]
    assert path_completions("see @no")[0] == 4
    for line in ("", "no", "me@no", "@ no", "@nothing", "@nowhere/x", "@notes.txt/", "@no\0", "@~nobody-here/"):
        assert names(line) == []


def test_files_that_a_text_names_are_found() -> None:
    text = "@notes.txt, (@notes.txt) and @море.txt? not me@notes.txt nor @nobody @my"
    assert [text[begin:end] for begin, end, _ in mentioned(text)] == ["@notes.txt", "@море.txt"]


def test_names_that_look_like_paths_and_are_no_files_are_told_from_words() -> None:
    text = "@/no/typo, @note.txt and @~/nothing (@my/x) or @./my: @notes.txt"
    assert unattached(text) == [(name, "no such file") for name in ("/no/typo", "note.txt", "~/nothing", "./my")]
    Path("src").mkdir()
    assert unattached("@src/ @src") == [("src/", "it is a folder")]
    assert unattached("/".join(["@", *(["x" * 250] * 40)]))[0][1] == "no such file"
    words = '@nobody me@no/where @3.50 @app.get("/x") @dataclasses.dataclass @property. @{a/b} @ @/no\0'
    assert unattached(words) == [("/no\0", "no such file")]


def test_a_file_is_read_into_a_fence_of_its_own() -> None:
    read = read_attachment("notes.txt")
    assert read.fenced == "\nnotes.txt:\n```txt\nThe sea.\nIt is wide.\n```\n"
    assert (read.bytes, read.tokens, read.label) == (22, 6, "notes.txt, 22 B, about 6 tokens")
    assert "\n````md\n```\ncode\n```\n````\n" in read_attachment("my notes/of rivers.md").fenced
    assert read_attachment("море.txt").tokens > len("Море широкое.") / 2
    Path("wide.txt").write_text("wide", "utf-16")
    Path("empty").touch()
    assert read_attachment("wide.txt").text == "wide"
    assert read_attachment("empty").fenced == "\nempty:\n```\n\n```\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("photo.bin", "zero bytes"), ("latin.txt", "not UTF-8 text: byte 3"), ("large.txt", "too large"),
        ("missing.txt", "no such file"), ("my notes", "not a file"), ("no\0name", "cannot attach"),
    ],
)  # fmt: skip
def test_what_cannot_be_attached_is_refused_in_words(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_attachment(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="not a file"):
        read_attachment("pipe")
    assert mentioned("@pipe") == []


def told(chat: Driver) -> str:
    return " ".join(chat.toasts()[-1:])


def all_told(chat: Driver) -> list[str]:
    return [message.notification.message for message in chat.log if isinstance(message, Notify)]


async def test_files_are_completed_attached_and_sent(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.press(*"see @my", "tab")  # a folder: goes on
        assert prompt.text == "see @my notes/"
        assert "of rivers.md" in chat.shown()
        await chat.press("enter")
        assert prompt.text == "see [my notes/of rivers.md, 13 B, about 4 tokens] " and not prompt.choices.open
        await chat.press(*"and @мо", "tab")
        first = "\nmy notes/of rivers.md:\n````md\n```\ncode\n```\n````\n"
        second = "\nморе.txt:\n```txt\nМоре широкое.\n```\n"
        assert prompt.message == f"see {first} and {second} "
        assert await sent(chat) == f"see {first} and {second} "


async def test_a_sent_file_is_folded_until_space_or_a_click(open_chat: Open, store: ChatStore) -> None:
    async with open_chat() as chat:
        chat.screen.prompt.put("see @notes.txt please")
        text = await sent(chat)
        question = chat.screen.query_one(Question)
        assert question.content.plain == "see [notes.txt, 2 lines, 20 B] please" and question.text == text
        await chat.press("ctrl+up", "ctrl+up")
        await chat.until(lambda: chat.app.focused is question)
        assert "All of it" in chat.shown().splitlines()[-1]
        await chat.press("space")
        assert question.content.plain == text and "It is wide." in chat.shown()
    (kept,) = store.list_chats()
    async with open_chat(chat=kept.id) as chat:
        question = chat.screen.query_one(Question)
        assert "It is wide." not in chat.shown() and "[notes.txt, 2 lines, 20 B]" in chat.shown()
        await chat.pilot.click(question)
        assert question.content.plain == text


def test_all_attached_files_are_folded_and_no_code_that_was_typed() -> None:
    both = read_attachment("my notes/of rivers.md").fenced + read_attachment("море.txt").fenced
    assert folded(f"a{both}b") == "a[my notes/of rivers.md, 3 lines, 12 B][море.txt, 1 line, 24 B]b"
    Path("empty").touch()
    assert folded(read_attachment("empty").fenced) == "[empty, 1 line, 0 B]"
    for typed in ("main.py:\n```python\nx\n```\n", "```\nx\n```", "notes.txt:\n```txt\nnot closed", "a:\nb"):
        assert folded(typed) == typed


async def test_a_name_that_was_typed_whole_is_attached_when_it_is_sent(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.screen.prompt.put("@notes.txt and @notes.txt, or @nobody?\nalso @море.txt")
        text = await sent(chat)
        assert text.count("It is wide.") == 2 and text.count("@") == 1
        assert "Море широкое." in text and text.index("@nobody?") < text.index("also")


@pytest.mark.slow
async def test_a_name_that_was_typed_by_hand_gets_its_mark_when_it_ends(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.press(*"@notes.txt", "space", "o", "k")
        mark = "[notes.txt, 22 B, about 6 tokens]"
        assert prompt.text == f"{mark} ok"
        await chat.press("space", *"(@notes.txt", "space")  # no name of its own
        assert prompt.text == f"{mark} ok (@notes.txt "
        prompt.put("")
        await chat.press(*"see @notes.txt,", "space", *"or @notes.txt", "escape", "ctrl+j", "x")
        assert prompt.text == f"see {mark}, or {mark}\nx" and prompt.message.count("It is wide.") == 2
        prompt.put("see @notes.txtwell")
        prompt.move_cursor((0, len("see @notes.txt")))
        await chat.press("space")
        assert prompt.text == f"see {mark} well" and prompt.cursor_location == (0, len(f"see {mark} "))
        prompt.put("")
        await chat.press(*"@my", "space", *"no", "tab")  # a name goes on with the space
        assert prompt.text == "@my notes/"
        prompt.put("")
        await chat.press(*"@photo.bin", "space")
        assert "zero bytes" in told(chat) and prompt.text == "@photo.bin "
        prompt.put("")
        await chat.press(*"/rename @notes.txt", "space")
        assert prompt.text == "/rename @notes.txt "


@pytest.mark.slow
async def test_a_name_of_no_file_is_told_once_and_sent_as_text(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.press(*"see @/no/typo", "space")
        assert all_told(chat) == ["@/no/typo: no such file; it is sent as text."]
        await chat.press(*"and", "space", *"@note.txt")
        assert await sent(chat) == "see @/no/typo and @note.txt"
        chat.screen.prompt.put("@note.txt and @/no/typo")
        assert await sent(chat) == "@note.txt and @/no/typo"
        first, second = "@/no/typo: no such file; it is sent as text.", "@note.txt: no such file; it is sent as text."
        assert all_told(chat) == [first, second]


async def test_what_is_attached_at_the_last_moment_is_told(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.screen.prompt.put("see @notes.txt and @.hidden")
        await sent(chat)
        assert all_told(chat) == ["Attached: notes.txt, 22 B, about 6 tokens; .hidden, 1 B, about 1 token."]


async def test_esc_closes_the_list_and_the_command_attaches_too(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.press(*"@no", "escape")
        assert not prompt.choices.open
        assert await sent(chat) == "@no"
        prompt.put("/attach notes.txt")
        await chat.press("enter")
        await chat.until(lambda: prompt.text == "[notes.txt, 22 B, about 6 tokens] ")
        prompt.put("/attach photo.bin")
        await chat.press("enter")
        await chat.until(lambda: "not text" in told(chat))
        assert prompt.text == "/attach photo.bin"


def test_a_pasted_path_is_known_as_terminals_write_it(picture: Path) -> None:
    place = str(picture)
    for text in (place, f"'{place}' ", f'"{place}"', place.replace(" ", "\\ "), f"file://{place.replace(' ', '%20')}"):
        assert pasted_image(text) == place, text
    for text in ("", "cat", f"see {place}", f"{place}\n{place}", f"{place}x", str(picture.parent), "https://x/a.png"):
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


def test_an_export_holds_the_images_and_an_import_brings_them_back(store: ChatStore, picture: Path) -> None:
    image = read_attached(picture)
    kept = store.images.keep(image.raw, image.facts.sha256)
    chat = store.create().id
    store.add_user(chat, f"{image.mark} What is it?")
    assert store.get(chat).title == "What is it?"
    assert LABEL in exported(store, [chat], "md")
    text = exported(store, [chat], "json")
    store.delete(chat)
    store.erase_deleted(0)
    assert not kept.exists()
    with closing(ChatStore(picture.with_name("other.db"))) as other:
        (brought,) = import_chats(other, text.encode(), "it")
        (place,) = other.images.found(other.messages(brought.id)[0].content).values()
        assert Path(place).read_bytes() == image.raw
        values = json.loads(text)
        values["chats"][0]["images"][image.facts.sha256] = base64.b64encode(b"another").decode()
        with pytest.raises(UsageError, match="an image is damaged"):
            import_chats(other, json.dumps(values).encode(), "it")


def test_an_image_leaves_with_the_last_message_that_names_it(store: ChatStore, picture: Path) -> None:
    image = read_attached(picture)
    kept = store.images.keep(image.raw, image.facts.sha256)
    chats = [store.create().id for _ in range(2)]
    for chat in chats:
        store.add_user(chat, image.mark)
    for chat in chats:
        assert kept.exists()
        store.delete(chat)
        store.erase_deleted(0)
    assert not kept.exists()


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_all_that_real_models_bring_is_on_the_screen(
    open_chat: Open, picture: Path, size: tuple[int, int]
) -> None:
    engine = ScriptedEngine([Script("It is $\\frac{a}{b}$ wide.")], loaded=SEEING)
    async with open_chat(engine=engine, size=size) as chat:
        await chat.until(lambda: "slipstream-mini + style ×0.5" in chat.shown())
        await chat.press(*"see @cat.png", "space")
        assert LABEL in chat.shown()
        await chat.press("enter")
        await chat.until(lambda: len(chat.texts()) == 2 and chat.idle())
        shown = chat.shown()
        assert LABEL in shown and "a/b wide." in shown and "image:" not in shown
        await command(chat, "/think off")
        await chat.until(lambda: "think" in "".join(chat.toasts()[-1:]).lower())
        assert engine.asked[-1].messages[-1].images
        await command(chat, "/context")
        await chat.until(lambda: chat.toasts()[-1:] == ["Context: 1,024 tokens. Trained on 40,960; 131,072 at most."])


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_the_cure_of_a_model_that_sees_nothing_is_read_whole(
    open_chat: Open, picture: Path, size: tuple[int, int]
) -> None:
    picture.rename("cat.webp")
    error = UsageError("Tiny cannot see images: no mmproj file is known for it.", "Name it with --mmproj FILE.")
    async with open_chat(engine=ScriptedEngine([Script(fails=error)]), size=size) as chat:
        await chat.press(*"see @cat.webp", "space", "enter")
        await chat.until(lambda: bool(chat.notices()) and chat.idle())
        assert "--mmproj FILE." in chat.shown() and "cat.webp" in chat.screen.prompt.text
