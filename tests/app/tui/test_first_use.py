"""The first minutes: a model's file is checked before its first use, and the first reply shows guesses."""

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import Script, ScriptedEngine

from slipstream.app.speed import Speed
from slipstream.app.tui.engine_service import LoadProgress
from slipstream.app.tui.parts.format import guesses_in_words

pytestmark = pytest.mark.program


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_the_check_is_told_and_then_the_load(open_chat: Open, size: tuple[int, int]) -> None:
    engine = ScriptedEngine(hold_load=True)
    async with open_chat(engine=engine, size=size) as chat:
        chat.app.screen.post_message(LoadProgress(None))
        await chat.until(lambda: chat.screen.prompt.border_subtitle == "checking the file")
        assert "checking the file of" in chat.shown() and "before its first use" in chat.shown()
        chat.app.screen.post_message(LoadProgress(0.5))
        await chat.until(lambda: chat.screen.prompt.border_subtitle == "loading the model 50 %")
        assert "checking" not in chat.shown()
        chat.app.screen.post_message(LoadProgress(0.95))
        await chat.until(lambda: chat.screen.prompt.border_subtitle == "measuring this machine, once")
        await chat.press(*"Hi", "enter")
        chat.app.screen.post_message(LoadProgress(None))
        await chat.until(lambda: "will be sent when the model is loaded: checking the file" in chat.shown())
        engine.go_load()


async def test_the_first_example_shows_guesses_once_and_says_what_they_gained(open_chat: Open) -> None:
    text = " ".join(["word"] * 60)
    async with open_chat(Script(text), Script("Short."), drafter="auto", size=(100, 30)) as chat:
        assert "See it guess: Tell me a story about a kite." in chat.shown()
        await chat.press("tab", "enter")
        await chat.until(lambda: len(chat.engine.asked) == 1 and chat.idle())
        await chat.until(lambda: bool(chat.notices()))
        assert chat.engine.asked[0].drafter == "draft" and chat.texts()[0] == "Tell me a story about a kite."
        assert chat.replies()[0].coloured and "extra by it" in chat.shown()
        speed = chat.screen.status.speed
        words, verdict = chat.notices()[0].removeprefix("i ").split("\n")
        right = f"were guessed, {speed.accepted} of them right ({100 * speed.accepted / speed.drafted:.0f} %): "
        assert words.startswith(f"{speed.drafted} tokens (words or parts of words) {right}")
        step = "tokens per step instead of 1. A step is one run of the model; draft ("
        assert f" {speed.tokens_per_step:.1f} {step}" in words
        assert verdict.strip() == "That is 1.7x faster on this machine."
        await chat.say("And now?")
        assert chat.engine.asked[1].drafter == "auto" and not chat.replies()[1].coloured
        assert [each.max_tokens for each in chat.engine.asked] == [300, 0]  # a reply that repeats itself ends
        assert "extra by it" not in chat.shown() and len(chat.notices()) == 1
    for on in (False, True, False):  # its colours are not remembered, those of F3 are
        async with open_chat(drafter="auto") as chat:
            assert "See it guess" not in chat.shown() and "Tell me about the sea." in chat.shown()
            assert chat.screen.transcript.coloured == chat.screen.drafts.display == chat.engine.watched == on
            await chat.press("f3", "f4")


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (
            Speed(40.0, 0.5, 1.5, 60.0, drafted=40, accepted=20, steps=40, tokens=60),
            "Slower here: a step with guesses takes 2.2",
        ),
        (Speed(400.0, 0.5, 1.5, None, drafted=9, accepted=5, tokens=90, unsteady_tok_per_s=500.0), "only 2 ms without"),
        (Speed(600.0, 0.5, 1.5, None, drafted=9, accepted=5, tokens=90, unsteady_tok_per_s=500.0), "vary too much"),
        (Speed(40.0, 0.5, 1.5, 39.0, drafted=40, accepted=20, steps=40, tokens=60), "No faster here: a step with"),
        (Speed(40.0, 0.5, 1.5, 60.0, drafted=9, accepted=5, steps=9, tokens=20), "The reply is too short to say"),
        (Speed(40.0, 0.5, 1.5, None, drafted=9, accepted=5, steps=9, tokens=90), "Speeds vary too much now to say"),
        (
            Speed(40.0, 0.5, 1.5, None, drafted=9, accepted=5, steps=9, tokens=90, busy=True),
            "keep this machine too busy",
        ),
        (Speed(40.0, None, 1.0, 40.0, steps=60, tokens=60), "Ctrl-D lists the drafters"),
    ],
)
def test_a_reply_with_guesses_says_why_it_was_no_faster(speed: Speed, words: str) -> None:
    assert words in guesses_in_words(speed, "F6 fetches it.")[1]
