"""What a model thinks: folded, counted, kept, and neither copied nor mistaken for the answer."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.app.tui.chat.test_hostile import HOSTILE, assert_inert
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from textual.geometry import Size

from slipstream.app.chats.reasoning import Thinking, begins_inside, split
from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Choice, Divided, Done, Piece, Stepped
from slipstream.app.protocol.requests import Generate
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.bars import StatusBar
from slipstream.app.tui.chat.reply import ThinkingHead, ThinkingView
from slipstream.app.tui.parts.format import footnote
from slipstream.models.chat_template import left_open

ANSWER = "The sea is wide and blue."
REPLY = f"<think>\nThe user asks about the sea.\nI will be brief.\n</think>\n\n{ANSWER}"
KINDS = {
    "qwen": (REPLY, 0),
    "deepseek": (REPLY.removeprefix("<think>\n"), 12),
    "magistral": (REPLY.replace("<think>", "[THINK]").replace("</think>", "[/THINK]"), 0),
    "gemma": (REPLY.replace("<think>", "<|channel>thought").replace("</think>", "<channel|>"), 0),
    "gpt-oss": (
        "<|channel|>analysis<|message|>The user asks about the sea.\nI will be brief.<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{ANSWER}",
        0,
    ),
    "gpt-oss as llama.cpp writes it": (
        "<|channel|>analysis<|message|>The user asks about the sea.\nI will be brief."
        f"<|start|>assistant<|channel|>final<|message|>{ANSWER}",
        0,
    ),
}
THOUGHTS = "The user asks about the sea.\nI will be brief."
SPEED = Speed(44.0, 0.5, 1.5, 40.0, drafted=20, accepted=10, steps=40, tokens=60)
PLAIN = Speed(800.0, None, 1.0, 800.0, steps=60, tokens=60)
STEADY = Speed(40.0, None, 1.0, 40.0, steps=60, tokens=60)


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_told_from_the_thoughts_however_it_comes_in_pieces(kind: str) -> None:
    text, thought = KINDS[kind]
    parts = split(text, begins_inside(text, thought))
    assert (parts.thoughts, parts.answer) == (THOUGHTS, ANSWER)
    for size in (1, 2, 3, 7, 50):
        mind = Thinking(thought > 0)
        fed = [mind.feed(text[at : at + size]) for at in range(0, len(text), size)] + [mind.finish()]
        assert "".join(thoughts for thoughts, _ in fed).strip() == THOUGHTS
        assert "".join(answer for _, answer in fed) == ANSWER


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_divided_until_the_answer_begins(kind: str) -> None:
    text, thought = KINDS[kind]
    mind = Thinking(thought > 0)
    chunks = [text[at : at + 7] for at in range(0, len(text), 7)]
    steps = [(chunk, mind.divide([Piece(chunk, "plain")])) for chunk in chunks]
    assert "".join(step.reasoning for _, step in steps if step).strip() == THOUGHTS
    said = ["".join(piece.text for piece in step.answer) if step else chunk for chunk, step in steps]
    assert "".join(said) == ANSWER
    assert steps[0][1] is not None and steps[-1][1] is None


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<thi", Divided("", [Piece("<thi", "plain")], False)),
        ("<think>\nWell, </th", Divided("</th", [], False)),
        (REPLY, None),
    ],
)
def test_half_a_mark_at_the_end_of_a_reply_is_text(text: str, rest: Divided | None) -> None:
    mind = Thinking()
    mind.divide([Piece(text, "plain")])
    assert mind.divide_rest([]) == rest


def test_a_prompt_that_opens_a_thinking_part_is_known_and_other_replies_are_not_divided() -> None:
    mind = Thinking()
    assert mind.divide([Piece("The sea", "plain")]) is None
    assert mind.divide([Piece(" has <think> in it.", "plain")]) is None
    assert left_open("<|Assistant|><think>\n") == "<think>"
    assert not left_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not left_open("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "text",
    [
        "Use <think> and </think> around it.", "  indented", "<thinker> is a tag", "<", "<|channel", "\n", "",
        "[THIN] ice", "</think> closes it",
    ],
)  # fmt: skip
def test_what_only_looks_like_thinking_is_the_answer(text: str) -> None:
    assert split(text).answer == text and not split(text).thoughts


@given(st.text(alphabet="<think>/[THINK]|channel \nfial", max_size=80), st.booleans(), st.integers(1, 9))
def test_no_character_is_lost_or_made_up(text: str, opened: bool, size: int) -> None:
    whole = Thinking(opened)
    thoughts, answer = whole.feed(text)
    end = whole.finish()
    pieces = Thinking(opened)
    parts = [pieces.feed(text[at : at + size]) for at in range(0, len(text), size)] + [pieces.finish()]
    assert "".join(part for part, _ in parts) == thoughts + end[0]
    assert "".join(part for _, part in parts) == answer + end[1]
    if not whole.thought:
        assert answer + end[1] == text


def head(chat: Driver, at: int = -1) -> str:
    return chat.replies()[at].query_one(ThinkingHead).render().plain


def view(chat: Driver) -> ThinkingView:
    return chat.replies()[-1].thinking


async def test_thoughts_stream_in_one_line_and_fold_when_the_answer_begins(open_chat: Open) -> None:
    async with open_chat(Script(REPLY, hold=len("<think>\nThe user asks about"))) as chat:
        await chat.say("Tell me", wait=False)
        await chat.until(lambda: "asks about" in chat.replies()[-1].text)
        assert head(chat).startswith("▸ thinking  ") and " tokens · " in head(chat)
        assert head(chat).endswith(chat.replies()[-1].text.split()[-1])
        assert ANSWER not in chat.shown()
        chat.engine.go()
        await chat.until(chat.idle)
        assert head(chat).startswith("▸ thought for ") and "tokens" in head(chat)
        assert "The user asks" not in chat.shown() and ANSWER in chat.shown() and chat.replies()[-1].text == REPLY


@pytest.mark.parametrize("how", ["ctrl+t", "t", "mouse"])
async def test_they_open_and_fold_by_key_and_mouse(open_chat: Open, how: str) -> None:
    async with open_chat(Script(REPLY)) as chat:
        await chat.say("Tell me")
        if how == "t":
            await chat.press("ctrl+up")
        for opened in (True, False):
            if how == "mouse":
                await chat.pilot.click(ThinkingHead)
            else:
                await chat.press(how)
            await chat.pilot.pause()
            assert view(chat).opened is opened
            assert ("I will be brief" in " ".join(chat.toasts()) + chat.shown()) is opened
            assert ANSWER in chat.shown()


async def test_they_are_kept_with_the_message(open_chat: Open, store: ChatStore) -> None:
    text, _ = KINDS["deepseek"]
    async with open_chat(Script(text, opened=True)) as chat:
        await chat.say("Tell me")
        before = head(chat)
        assert "thought for" in before and ANSWER in chat.shown()
    (kept,) = store.list_chats()
    async with open_chat(chat=kept.id) as chat:
        await chat.until(lambda: chat.shows(2))
        assert head(chat) == before and "The user asks" not in chat.shown() and ANSWER in chat.shown()
        await chat.press("ctrl+t")
        await chat.until(lambda: "The user asks" in " ".join(chat.toasts()) + chat.shown())


async def test_a_reply_that_is_stopped_amid_its_thoughts_goes_on_there(open_chat: Open) -> None:
    begun = "<think>\nThe user asks about the sea.\n"
    async with open_chat(Script(REPLY, hold=len(begun)), Script("I will be brief.\n</think>\n\n" + ANSWER)) as chat:
        await chat.say("Tell me", wait=False)
        await chat.until(lambda: view(chat).empty is False)
        await chat.press("escape")
        await chat.until(chat.idle)
        assert not chat.replies()[-1].answer and "The user asks" in chat.shown()  # there is no answer to see instead
        await chat.press("ctrl+g")
        await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle())
        assert chat.replies()[-1].answer == ANSWER and head(chat).startswith("▸ thought for")


LACK = "no answer, only thoughts"
UNCLOSED = {  # a reply, whether its prompt opened the thoughts, and how it ended
    **{f"after {mark}": (f"{mark}\nThe user asks.", False, "stop") for mark in ("<think>", "[THINK]", "<seed:think>")},
    "opened by the prompt": ("The user asks.", True, "stop"),
    "at its longest": ("<think>The user asks.", False, "length"),
    "with a full context": ("<think>The user asks.", False, "context"),
    "closed and nothing more": ("<think>The user asks.</think>", False, "stop"),
    "closed and spaces": ("<think>The user asks.</think>\n\n", False, "stop"),
    "half a mark": ("<think>The user asks.</thi", False, "stop"),
    "in a channel": ("<|channel|>analysis<|message|>The user asks.", False, "stop"),
    "a second time": ("<think>\n</think><think>The user asks.", False, "stop"),
}


@pytest.mark.parametrize("kind", UNCLOSED)
async def test_thoughts_that_never_close_are_shown_as_all_there_is(
    open_chat: Open, store: ChatStore, kind: str
) -> None:
    text, opened, reason = UNCLOSED[kind]
    async with open_chat(Script(text, opened=opened, reason=reason)) as chat:
        await chat.say("Tell me")
        assert "The user asks." in chat.shown() and " ".join(chat.shown().split()).count(LACK) == 1
    (kept,) = store.list_chats()
    async with open_chat(chat=kept.id) as chat:  # and where it is opened again
        await chat.until(lambda: chat.shows(2))
        assert "The user asks." in chat.shown() and " ".join(chat.shown().split()).count(LACK) == 1


async def test_the_answer_alone_is_copied(open_chat: Open) -> None:
    async with open_chat(Script(REPLY)) as chat:
        await chat.say("Tell me")
        await chat.press("ctrl+y")
        assert chat.app.clipboard == ANSWER
        chat.app.copy_to_clipboard("")
        await chat.press("ctrl+up", "c")
        assert chat.app.clipboard == ANSWER


async def test_they_are_inert_folded_and_open(open_chat: Open) -> None:
    async with open_chat(Script(f"<think>{HOSTILE}", hold=9), size=(140, 40)) as chat:
        await chat.say("x", wait=False)
        await chat.until(lambda: "thinking" in head(chat))
        assert_inert(chat)
        chat.engine.go()
        await chat.until(chat.idle)
        assert view(chat).opened
        assert_inert(chat)
        assert "[@click=app.exit()]click[/]" in " ".join(chat.shown().split())


async def test_without_thoughts_there_is_nothing_to_open(open_chat: Open) -> None:
    async with open_chat(Script(f"<think>\n\n</think>\n\n{ANSWER}")) as chat:
        await chat.say("Tell me")
        assert not view(chat).display
        await chat.press("ctrl+t")
        await chat.until(lambda: chat.toasts() == ["The last reply has no thoughts."])
        assert ANSWER in chat.shown()


async def test_a_key_ends_the_thoughts_that_are_under_way(open_chat: Open) -> None:
    async with open_chat(Script(REPLY, hold=30)) as chat:
        await chat.press("alt+a")
        await chat.until(lambda: "The model is not thinking now" in " ".join(chat.toasts()) + chat.shown())
        await chat.say("x", wait=False)
        await chat.until(lambda: bool(chat.replies()) and chat.replies()[-1].thinking.under_way)
        await chat.press("alt+a")
        await chat.until(lambda: chat.engine.unthought == [1])
        chat.engine.go()
        await chat.until(chat.idle)


def test_where_the_thoughts_were_ended_is_kept_with_the_reply() -> None:
    done = Done(1, "cancelled", "x", [], 0, 0, 0, 0.0, Speed(tokens=9), thoughts_closed=5)
    figures = Figures.unpacked(Figures.of(done).packed())
    assert figures and figures.thoughts_closed == 5 and "thoughts ended at 5 tokens" in footnote(figures, "draft", "")
    assert figures.followed_by(Figures()).thoughts_closed == Figures().followed_by(figures).thoughts_closed == 5


def choice(drafter: str, plain_ms: float = 25.0, trial: bool = False, check: float = 1.1) -> Choice:
    return Choice(drafter, 0 if drafter == "none" else 6, 2.9, 4.1, plain_ms, trial, check)


def stepped(drafter: str, speed: Speed, chosen: Choice | None) -> Stepped:
    return Stepped(1, [], [5], drafter, 6, 3, 12.0, speed, 4.1, chosen)


@pytest.mark.parametrize(
    ("drafter", "steps", "words"),
    [
        ("auto", [stepped("lookup", SPEED, choice("lookup"))], "lookup is guessing"),
        ("auto", [stepped("lookup", SPEED, choice("lookup", trial=True))], "trying lookup"),
        ("auto", [stepped("none", SPEED, choice("none"))], "paused: no drafter is right often enough now"),
        (
            "auto",
            [stepped("none", STEADY, choice("none", check=1.86))],
            "not guessing: checking 2 tokens costs as much as writing 1.9",
        ),
        (
            "auto",
            [stepped("none", STEADY, choice("none", check=11.9))],  # measured on a busy machine
            "not guessing: checking 2 tokens costs as much as writing 2",
        ),
        ("auto", [stepped("none", PLAIN, choice("none", 1.2))], "not guessing: a token takes only 1 ms"),
        ("auto", [stepped("lookup", SPEED, choice("lookup")), stepped("none", SPEED, None)], "lookup is guessing"),
        ("lookup", [stepped("none", PLAIN, None)], "lookup found nothing to guess yet"),
        ("none", [stepped("none", PLAIN, None)], "not guessing: no drafter is chosen (Ctrl-D)"),
    ],
)
def test_the_strip_says_why(monkeypatch: pytest.MonkeyPatch, drafter: str, steps: list[Stepped], words: str) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(80, 3))
    strip = StatusBar(lambda: drafter)
    strip.promise("same text")
    strip.begin(drafter)
    for step in steps:
        strip.step(step)
    first, second, about = str(strip.render()).splitlines()
    drafted = steps[-1].speed.drafted
    assert (about if drafted else second).startswith(f" {words}") and about.endswith("text identical ✓")
    assert ("with drafter" in first and "without" in second) == bool(drafted)


def quick(generate: Generate, text: str) -> Iterator[Stepped]:
    """A reply of a model whose tokens are too short to gain: the autopilot guesses nothing."""
    words = text.split(" ")
    for at, word in enumerate(words, 1):
        speed = Speed(800.0, None, 1.0, 800.0, steps=at, tokens=at)
        yield Stepped(
            generate.request, [Piece(word, "plain")], [at], "none", 0, 0, 1.2, speed, 1.0, choice("none", 1.2)
        )


@pytest.mark.parametrize("bundled", [True, False])
async def test_the_bundled_one_hints_at_others(open_chat: Open, monkeypatch: pytest.MonkeyPatch, bundled: bool) -> None:
    hint = "Guessing gains more on a larger model. Ctrl-L lists larger ones."
    monkeypatch.setattr("tests.app.tui.scripted.play", quick)
    async with open_chat(drafter="auto") as chat:
        if bundled:
            chat.screen.model.load = replace(choose(Paths.default()), drafter="auto")
        for text in ("one", "two"):
            await chat.say(text)
            assert "not guessing: a token takes only 1 ms" in chat.shown()
        assert chat.toasts().count(hint) == bundled


async def test_a_model_that_gains_does_not_hint_at_others(open_chat: Open) -> None:
    async with open_chat(drafter="auto") as chat:
        chat.screen.model.load = replace(choose(Paths.default()), drafter="auto")
        await chat.say("one")
        assert not chat.toasts()


@pytest.mark.parametrize(
    ("speed", "first", "second"),
    [
        (Speed(44.0, tokens=60, drafted=9, busy=True), "44 tok/s  measuring", "– tok/s  machine is busy"),
        (Speed(44.0, tokens=60, drafted=9, unsteady_tok_per_s=40.0), "44 tok/s  measuring", "40 tok/s  unsteady"),
        (replace(SPEED, noise=0.04), "44 tok/s  1.1x faster", "40 tok/s  measured here"),
        (replace(SPEED, noise=0.06), "44 tok/s  same speed", "40 tok/s  measured here"),  # within its own noise
        (replace(STEADY, busy=True), "40 tok/s  machine is busy", ""),
    ],
)
def test_load_and_noise_are_said_once(monkeypatch: pytest.MonkeyPatch, speed: Speed, first: str, second: str) -> None:
    monkeypatch.setattr(StatusBar, "size", Size(80, 3))
    strip = StatusBar(lambda: "auto")
    strip.begin("auto")
    strip.step(stepped("lookup", speed, None))
    lines = [line.rstrip() for line in str(strip.render()).splitlines()]
    assert lines[0].endswith(first) and lines[1].endswith(second) and len(lines) == 3
