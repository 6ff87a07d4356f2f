"""How full the context is, what the model no longer reads, and a model's own context."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.chat.bars import gauge
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.transcript import ContextLine
from slipstream.models.errors import SlipstreamError

TEXT = "The sea is wide and blue."


def used(chat: Driver) -> int:
    return chat.screen.top_bar.used


def lines(chat: Driver) -> list[str]:
    return [str(line.content) for line in chat.screen.query(ContextLine)]


def below_line(chat: Driver) -> str:
    children = list(chat.screen.transcript.column.children)
    places = [at for at, child in enumerate(children) if isinstance(child, ContextLine)]
    if not places:  # it is on its way
        return ""
    after = children[places[0] + 1]
    return after.text if isinstance(after, ReplyView) else str(getattr(after, "content", ""))


@pytest.mark.parametrize(
    ("tokens", "words", "style"),
    [
        (0, "──────── 0 / 1,000", "$primary"),
        (10, "━─────── 10 / 1,000", "$primary"),
        (500, "━━━━──── 500 / 1,000", "$primary"),
        (801, "━━━━━━── 801 / 1,000", "$warning"),
        (960, "━━━━━━━━ 960 / 1,000", "$error"),
        (1200, "━━━━━━━━ 1,200 / 1,000 too long", "$error"),
    ],
)
def test_the_gauge_warns_when_it_is_nearly_full(tokens: int, words: str, style: str) -> None:
    drawn = gauge(tokens, 1000)
    assert drawn.plain == words
    assert all(span.style in (style, f"bold {style}", "$foreground 30%", "$foreground 70%") for span in drawn.spans)
    assert any(style in str(span.style) for span in drawn.spans) or not tokens


async def test_what_is_typed_and_attached_is_counted_as_it_grows(open_chat: Open) -> None:
    async with open_chat(Script(TEXT), ahead=False) as chat:
        chat.screen.prompt.put("one two three")
        await chat.until(lambda: used(chat) == 3)
        chat.screen.prompt.put("word " * 300)
        await chat.until(lambda: used(chat) == 300)
        assert "300 / 1,024" in chat.shown()
        assert not any(prepare.read for prepare in chat.engine.prepared)  # reading ahead is off; counting is not
        await chat.press("enter")
        await chat.until(chat.idle)
        await chat.until(lambda: used(chat) == 306)


@pytest.mark.slow
async def test_a_reply_counts_while_it_is_written(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=12)) as chat:
        await chat.say("Hello", wait=False)
        await chat.until(lambda: used(chat) > 21)
        assert used(chat) < 27
        chat.engine.go()
        await chat.until(chat.idle)


@pytest.mark.slow
async def test_a_line_stands_where_the_model_begins_to_read(open_chat: Open, store: ChatStore) -> None:
    engine = ScriptedEngine([Script(TEXT), Script(TEXT), Script(TEXT, dropped=2)])
    async with open_chat(engine=engine) as chat:
        await chat.say("first")
        await chat.say("second")
        assert not lines(chat)
        engine.leaves_out = (2, 200)
        await chat.say("third")
        assert lines(chat) == ["▲ above this line the model no longer reads: 2 messages, 200 tokens"]
        assert below_line(chat) == "second"
        engine.leaves_out = (4, 400)
        await chat.press(*"And")
        await chat.until(lambda: below_line(chat) == "third")  # while it is typed: nobody is surprised later
        assert "4 messages, 400 tokens" in lines(chat)[0]
        engine.leaves_out = (0, 0)
        await chat.press(*" so")
        await chat.until(lambda: not lines(chat))
    (kept,) = store.list_chats()
    engine = ScriptedEngine(hold_load=True)
    async with open_chat(engine=engine, chat=kept.id) as chat:  # kept with the reply
        await chat.until(lambda: bool(lines(chat)))
        assert below_line(chat) == "second" and "older messages left out: 2" in chat.footnote()
        engine.go_load()
    async with open_chat(chat=kept.id) as chat:
        await chat.press("ctrl+n")
        await chat.until(lambda: not lines(chat))


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
