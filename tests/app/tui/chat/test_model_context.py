"""A model's own context: said, chosen, kept for this model alone, and taken back where it cannot be had."""

from dataclasses import replace
from pathlib import Path

from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine

from slipstream.app.protocol.requests import Load
from slipstream.app.settings.file import SettingsFile
from slipstream.models.errors import SlipstreamError

LONG = replace(LOADED, n_ctx=8192, n_ctx_trained=40_960, n_ctx_longest=131_072)


def own(tmp_path: Path) -> dict[str, int]:
    return dict(SettingsFile(tmp_path / "settings.toml").settings.contexts)


async def test_a_context_is_kept_for_this_model_alone(open_chat: Open, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script()], loaded=LONG)
    async with open_chat(engine=engine) as chat:
        await command(chat, "/context")
        await chat.until(lambda: chat.toasts()[-1:] == ["Context: 8,192 tokens. Trained on 40,960; 131,072 at most."])
        engine.loaded = replace(LONG, n_ctx=131_072, rope="YaRN x4")
        await command(chat, "/context 131072")
        await chat.until(lambda: len(engine.loads) == 2 and chat.screen.model.loaded is not None)
        assert [load.n_ctx for load in engine.loads] == [0, 131_072]
        await chat.until(lambda: "".join(chat.toasts()[-1:]).startswith("Context: 131,072 tokens, by YaRN x4."))
        assert own(tmp_path) == {"mini.gguf": 131_072}
        await chat.say("Hello.")
        settings = chat.app.settled.file.settings
        assert (settings.loading(Load("/x/mini.gguf")).n_ctx, settings.loading(Load("other.gguf")).n_ctx) == (
            131_072,
            0,
        )
        await command(chat, "/context auto")
        await chat.until(lambda: len(engine.loads) == 3)
        assert engine.loads[-1].n_ctx == 0 and own(tmp_path) == {}


async def test_what_is_no_context_is_refused_and_stays_typed(open_chat: Open, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script()], loaded=LONG)
    async with open_chat(engine=engine) as chat:
        for words, title in (
            ("200000", "A context of 200,000 tokens is too long for slipstream-mini."),
            ("much", "Not a valid context: much."),
            ("-5", "ontexts.mini.gguf is -5; it must be a whole number from 0 to 1,048,576."),
        ):
            await command(chat, f"/context {words}")
            await chat.until(lambda title=title: any(title in toast for toast in chat.toasts()))  # type: ignore[misc]
            assert chat.screen.prompt.text == f"/context {words}"
        assert len(engine.loads) == 1 and own(tmp_path) == {}


async def test_a_context_that_cannot_be_loaded_is_taken_back(open_chat: Open, tmp_path: Path) -> None:
    engine = ScriptedEngine([Script()], loaded=LONG)
    async with open_chat(engine=engine) as chat:
        await command(chat, "/context 4096")
        await chat.until(lambda: len(engine.loads) == 2 and chat.screen.model.loaded is not None)
        engine.load_fails = [SlipstreamError("it does not fit this machine.", "A context of 9,000 tokens would fit.")]
        await command(chat, "/context 100000")
        await chat.until(lambda: len(engine.loads) == 4 and chat.screen.model.loaded is not None)
        assert [load.n_ctx for load in engine.loads] == [0, 4096, 100_000, 4096]
        assert own(tmp_path) == {"mini.gguf": 4096}
        assert any("does not fit" in words for words in chat.notices())
