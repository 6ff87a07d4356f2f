"""How full the context is, what the model no longer reads, a model's own context, and ``/compact``."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.tui.chat.test_slash import command
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine

from slipstream.app.chats.compaction import ASKED
from slipstream.app.chats.recording import LEAD
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.chat.bars import gauge
from slipstream.app.tui.chat.message import Summary
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.transcript import ContextLine
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError

TEXT = "The sea is wide and blue."
SUMMARY = "They talked of the sea."


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


async def talk(chat: Driver, turns: int = 8) -> None:
    for number in range(turns):
        await chat.say(f"question {number}")


def summaries(chat: Driver) -> list[str]:
    return [summary.text for summary in chat.screen.query(Summary)]


def sent(chat: Driver) -> list[str]:
    return [message.content for message in chat.engine.asked[-1].messages]


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_it_is_written_shown_and_undone(open_chat: Open, store: ChatStore, size: tuple[int, int]) -> None:
    async with open_chat(size=size) as chat:
        await talk(chat)
        before = chat.texts()
        chat.engine.scripts = [Script(SUMMARY, hold=5)]
        await command(chat, "/compact")
        await chat.until(lambda: "summarizing 12 messages" in chat.shown() or "writing" in chat.shown())
        await chat.until(lambda: "They" in chat.shown())
        assert sent(chat)[-1] == ASKED and sent(chat)[0] == "question 0"
        assert chat.engine.asked[-1].overflow == "stop" and not summaries(chat)
        chat.screen.prompt.put("too soon")
        await chat.press("enter")
        assert chat.screen.prompt.text == "too soon"
        chat.screen.prompt.put("")
        chat.engine.go()
        await chat.until(lambda: summaries(chat) == [SUMMARY])
        assert chat.idle() and chat.texts() == before and "Esc stops" not in chat.shown()
        await chat.until(lambda: chat.toasts()[-1:] == ["12 messages summarized; /compact undo brings them back."])
        assert "summary: the model reads this" in chat.shown()
        chat.engine.scripts = [Script()]
        await chat.say("question 9")
        assert sent(chat)[0] == f"{LEAD}{SUMMARY}\n\nquestion 6" and len(sent(chat)) == 5
    number = store.list_chats()[0].id
    async with open_chat(chat=number, size=size) as chat:
        assert summaries(chat) == [SUMMARY]
        await command(chat, "/compact undo")
        await chat.until(lambda: not summaries(chat))
        await chat.say("question 10")
        assert sent(chat)[0] == "question 0" and "question 9" in sent(chat)
        await command(chat, "/compact undo")
        await chat.until(lambda: chat.toasts()[-1:] == ["This chat has no summary."])


@pytest.mark.parametrize(
    "error",
    [None, SlipstreamError("the device failed.", ""), EngineDiedError("it ended.", "")],
    ids=["esc", "error", "end"],
)
async def test_esc_and_errors_change_nothing(open_chat: Open, error: SlipstreamError | None) -> None:
    async with open_chat() as chat:
        await talk(chat)
        before = chat.texts()
        chat.engine.scripts = [Script(SUMMARY, hold=5, fails=error), Script()]
        await command(chat, "/compact")
        await chat.until(lambda: "They" in chat.shown())
        if error:
            chat.engine.go()
            await chat.until(lambda: any("The chat is as it was." in words for words in chat.notices()))
        else:
            await chat.press("escape")
            await chat.until(lambda: chat.toasts()[-1:] == ["Stopped; nothing was changed."])
        await chat.until(chat.idle)
        assert chat.texts() == before and not summaries(chat)
        await chat.say("go on")
        assert sent(chat)[0] == "question 0" and sent(chat)[-1] == "go on"


async def test_what_cannot_be_is_said(open_chat: Open) -> None:
    async with open_chat() as chat:
        await command(chat, "/compact")
        await chat.until(lambda: any("too little in this chat" in words for words in chat.toasts()))
        await command(chat, "/compact now")
        await chat.until(lambda: any("takes nothing, or undo" in words for words in chat.toasts()))
        assert chat.screen.prompt.text == "/compact now"


def settle(tmp_path: Path, overflow: str) -> None:
    (tmp_path / "settings.toml").write_text(f'[reply]\noverflow = "{overflow}"\n')


class Full(ScriptedEngine):
    """Refuses chats of more than a number of messages, as an engine does with ``stop``."""

    most = 9

    def reply(self, generate):  # type: ignore[no-untyped-def]
        if generate.overflow == "stop" and len(generate.messages) > self.most:
            self.asked.append(generate)
            raise ContextFullError(
                "the context is full: this chat has 900 tokens, and 512 fit.", "/compact makes room."
            )
        return super().reply(generate)


async def test_a_full_chat_is_summarized_by_itself(open_chat: Open, tmp_path: Path) -> None:
    settle(tmp_path, "compact")
    async with open_chat(engine=Full([Script("Blue.")])) as chat:
        await talk(chat, 5)
        chat.engine.scripts = [Script(SUMMARY, hold=5), Script("Yes.")]
        chat.screen.prompt.put("Is it?")
        await chat.press("enter")
        await chat.until(lambda: "They" in chat.shown())
        await chat.until(lambda: any("older messages are summarized first" in words for words in chat.toasts()))
        chat.engine.go()
        await chat.until(lambda: bool(summaries(chat)) and chat.idle() and chat.texts()[-1] == "Yes.")
        assert chat.texts()[-2:] == ["Is it?", "Yes."] and chat.texts().count("Is it?") == 1
        assert sent(chat)[0].startswith(LEAD) and sent(chat)[-1].endswith("Is it?")
        assert chat.screen.prompt.text == "" and not chat.notices()


async def test_a_summary_that_fails_leaves_the_question_typed(open_chat: Open, tmp_path: Path) -> None:
    settle(tmp_path, "compact")
    async with open_chat(engine=Full([Script("Blue.")])) as chat:
        await talk(chat, 5)
        chat.engine.scripts = [Script(SUMMARY, fails=SlipstreamError("the device failed.", ""))]
        chat.screen.prompt.put("Is it?")
        await chat.press("enter")
        await chat.until(lambda: any("device failed" in words for words in chat.notices()) and chat.idle())
        assert chat.screen.prompt.text == "Is it?" and "Is it?" not in chat.texts()


async def test_stop_keeps_the_text_and_sends_nothing(open_chat: Open, tmp_path: Path, store: ChatStore) -> None:
    settle(tmp_path, "stop")
    async with open_chat(engine=Full([Script("Blue.")])) as chat:
        await talk(chat, 5)
        chat.engine.leaves_out = (2, 40)
        chat.screen.prompt.put("Is it?")
        await chat.until(lambda: any("a message would not be sent" in words for words in chat.toasts()))
        await chat.press("enter")
        await chat.until(lambda: any("the context is full" in words.lower() for words in chat.notices()))
        assert chat.screen.prompt.text == "Is it?" and "Is it?" not in chat.texts()
        assert len(store.messages(store.list_chats()[0].id)) == 10
