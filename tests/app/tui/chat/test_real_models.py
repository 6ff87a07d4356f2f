"""What real models bring, on the smallest screen and on a large one: images, adapters, formulas, levels, contexts."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.chat.test_attach_image import LABEL
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.models.tiny_mmproj import write_picture

from slipstream.app.protocol.requests import Lora
from slipstream.models.errors import UsageError

SEEING = replace(
    LOADED, images=True, lora=[Lora("/x/style.gguf", 0.5)], reasoning=["off", "on"], reasoning_default="on",
    n_ctx_trained=40_960, n_ctx_longest=131_072,
)  # fmt: skip


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_all_of_it_is_on_the_screen(
    open_chat: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "cat.png")
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
    open_chat: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "cat.webp")
    error = UsageError("Tiny cannot see images: no mmproj file is known for it.", "Name it with --mmproj FILE.")
    async with open_chat(engine=ScriptedEngine([Script(fails=error)]), size=size) as chat:
        await chat.press(*"see @cat.webp", "space", "enter")
        await chat.until(lambda: bool(chat.notices()) and chat.idle())
        assert "--mmproj FILE." in chat.shown() and "cat.webp" in chat.screen.prompt.text
