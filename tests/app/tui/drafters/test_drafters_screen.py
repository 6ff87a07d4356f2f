"""The drafters screen: what it shows, what it refuses, the work it begins, and what the status line says."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.cli.test_drafters_command import WIDTH, write
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_commands import Commands, scripted
from tests.models.conftest import small_model
from textual.widgets import Input, Static

from slipstream.app.library.drafter_status import Standing
from slipstream.app.library.learned_gains import DrafterGains
from slipstream.app.library.load_request import drafting_arguments, load_of, model_name
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import DrafterOffer
from slipstream.app.settings.disabled_drafters import left_out
from slipstream.app.tui.drafters.screen import NO_TORCH, TRAINED, DraftersScreen, TrainScreen
from slipstream.app.tui.drafters.view import CANNOT, NO_TEXT, DraftersView, costs_words
from slipstream.app.tui.jobs import Job, Jobs
from slipstream.app.tui.parts.dialogs import LineScreen
from slipstream.drafters.resources import Resources
from slipstream.drafters.retrieval import METHOD
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads import matching_heads
from slipstream.models.types import Abilities

WHY = "it needs indexed text, and there is none: slipstream drafters index FOLDER makes it of your own texts"
OFFERS = [
    DrafterOffer("none", True, about="no guessing: the model writes alone"),
    DrafterOffer("draft", True, about="a smaller model writes ahead"),
    DrafterOffer("lookahead", True, about="the model guesses phrases ahead of itself in the same pass"),
    DrafterOffer("space", False, "it needs space heads, and this model has none", "masks guess what follows"),
    DrafterOffer("retrieval", False, WHY, "what followed the same words in your past chats and files"),
]


def engine(*scripts: Script) -> ScriptedEngine:
    return ScriptedEngine(list(scripts) or [Script()], loaded=replace(LOADED, drafters=OFFERS))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return scripted(tmp_path, monkeypatch)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mini.gguf"
    path.write_bytes(small_model().number("llama.embedding_length", WIDTH).bytes())
    return path


def engine_of(model: Path, *scripts: Script) -> ScriptedEngine:
    fingerprint = read_header(model).fingerprint
    return ScriptedEngine(list(scripts) or [Script()], loaded=replace(LOADED, drafters=OFFERS, fingerprint=fingerprint))


async def go_to(chat: Driver, name: str) -> DraftersScreen:
    screen = await opened(chat)
    if screen.view.unfold(name):
        screen.browser.draw()
    screen.browser.rows.highlighted = screen.view.find(name)
    await chat.pilot.pause()
    return screen


def told(screen: DraftersScreen) -> str:
    return screen.view.note


def said(screen: DraftersScreen) -> str:
    return " ".join(str(static.content) for static in screen.query(Static))


def row_of(chat: Driver, name: str) -> str:
    lines = chat.shown().splitlines()  # the advice stands above the rows, and may begin with a name
    return next(line for line in lines if line.strip(" ●✗").startswith(f"{name} ") and " faster " not in line)


async def opened(chat: Driver) -> DraftersScreen:
    await chat.press("ctrl+d")
    await chat.until(lambda: chat.on(DraftersScreen).view.standing is not None)
    return chat.on(DraftersScreen)


async def test_a_drafter_is_chosen_from_the_list_for_the_next_reply(open_chat: Open) -> None:
    async with open_chat(engine=engine()) as chat:
        screen = await opened(chat)
        assert screen.browser.key == "draft"
        for offer in OFFERS[:2]:
            assert offer.about in row_of(chat, offer.name)
        assert "● draft" in chat.shown()
        await chat.press("down", "enter")
        assert not isinstance(chat.app.screen, DraftersScreen) and chat.screen.model.drafter == "lookahead"
        await chat.say("x")
        assert [request.drafter for request in chat.engine.asked] == ["lookahead"]
        await opened(chat)
        assert "● lookahead" in chat.shown() and "● draft" not in chat.shown()


@pytest.mark.parametrize("size", [(80, 24), (140, 40), (40, 12)])
async def test_one_that_does_not_serve_says_why_and_cannot_be_chosen(open_chat: Open, size: tuple[int, int]) -> None:
    async with open_chat(engine=engine(), size=size) as chat:
        screen = await opened(chat)
        await chat.press("end")
        assert screen.browser.key == CANNOT and "space (masks guess what follows): it needs" in said(screen)
        assert "retrieval" not in [screen.view.key(row) for row in screen.view.rows]
        await chat.press("enter")
        assert screen.browser.key == "retrieval"
        shown = "\n".join(str(static.content) for static in screen.query(Static))
        assert WHY in shown
        assert "f indexes a folder" in shown
        await chat.until(lambda: "retrieval" in chat.shown().partition("Not for this model")[2])
        await chat.press("enter")
        assert isinstance(chat.app.screen, DraftersScreen)
        await chat.until(lambda: chat.toasts() == ["retrieval cannot guess for this model."])
        await chat.press("escape")
        assert chat.screen.model.drafter == "draft"


async def test_a_chain_that_the_chat_began_with_can_be_chosen_again(open_chat: Open) -> None:
    async with open_chat(engine=engine(), drafter="lookup+draft") as chat:
        await chat.press("f2")
        assert chat.screen.model.drafter == "none"
        await go_to(chat, "lookup+draft")
        assert "what this chat began with" in row_of(chat, "lookup+draft")
        await chat.press("enter")
        assert chat.screen.model.drafter == "lookup+draft"


@pytest.mark.slow
@pytest.mark.parametrize("size", [(140, 40), (80, 24), (60, 12), (40, 12)])
async def test_typical_acceptance_is_marked_on_the_status_line(open_chat: Open, size: tuple[int, int]) -> None:
    async with open_chat(size=size, typical=0.09) as chat:
        await chat.say("x")
        bottom = " ".join(chat.shown().splitlines()[-3:])
        assert "changes the text" in bottom and "text identical" not in bottom
        assert "typical: changes the text" in chat.footnote()
        assert [request.sampling.typical for request in chat.engine.asked] == [0.09]
    async with open_chat(size=size) as chat:
        await chat.say("x")
        assert "changes the text" not in chat.shown() and "typical" not in chat.footnote()


async def test_what_each_gained_here_is_shown_with_its_heads(open_chat: Open, model: Path, tmp_path: Path) -> None:
    write(tmp_path / "heads" / "mini-space.gguf", model)
    write(tmp_path / "heads" / "old-space.gguf", model, target="0" * 64)
    (tmp_path / "heads" / "broken.gguf").write_bytes(b"GGUF")
    async with open_chat(engine=engine_of(model, Script("word " * 90))) as chat:
        await chat.say("x")
        screen = await go_to(chat, "draft")
        assert "1.7x" in row_of(chat, "draft")
        assert "1.7x in your chats" in said(screen) and "draft was 1.7x faster in your chats." in chat.shown()
        assert "│" in row_of(chat, "draft") and "━  chats  " in row_of(chat, "draft")
        assert "━" in row_of(chat, "draft") and "1.7x" not in row_of(chat, "lookahead")
        rows = [line.strip(" ●").split(" ")[0] for line in chat.shown().splitlines()[2:] if " faster " not in line]
        names = [name for name in rows if name in ("draft", "none", "No", "lookahead", "space", "retrieval")]
        assert names[:4] == ["draft", "none", "No", "lookahead"]  # by gain, then the rest, whose last row is folded
        assert "▸ Not for this model: space, retrieval" in chat.shown()
        await chat.press("end", "enter", "up")
        assert screen.browser.key == "space"
        words = said(screen)
        assert "t trains it here" in words and "first guess right 61 % of the time" in words
        assert str(tmp_path / "heads" / "mini-space.gguf") in words
        assert "Not supported: trained for another version of it." in words


def test_each_gain_has_its_source_and_the_sources_are_aligned() -> None:
    names = ("none", "draft", "lookup", "recycle")
    view = DraftersView([DrafterOffer(name, True, about="what it does") for name in names], "draft", 40.0)
    measured = DrafterGains({"draft": 1.7}, {"lookup": 1.2}, {"lookup": 1.1, "recycle": 1.05})
    both = replace(measured, benchmark={"draft": 1.5})  # it measures all alike
    assert both.known["draft"] == 1.5 and replace(both, busy_benchmark=True).known["draft"] == 1.7
    view.take(Standing(gains=measured))
    rows = {row.plain[2:].split(" ")[0]: row.plain for row in view.lines(76)}
    assert "1.7x" in rows["draft"] and "1.2x" in rows["lookup"] and "1.1x" in rows["recycle"]
    at = rows["draft"].index("chats")
    assert rows["lookup"][at:] == "bench  what it does" and rows["recycle"][at:] == "auto   what it does"
    assert rows["none"][at:] == "       what it does"  # it is what the others are compared with
    assert not any("bench" in row.plain for row in view.lines(60))
    view.take(Standing(gains=DrafterGains({}, {"lookup": 1.3, "recycle": 1.2}, {}, chance=frozenset({"lookup"}))))
    assert view.lines(76)[0].plain == "recycle was 1.2x faster here."  # the other figure may be chance


def test_a_file_whose_rows_are_dear_gets_advice() -> None:
    view = DraftersView([DrafterOffer("auto", True, about="picks")], "auto", 40.0)
    view.take(Standing(costs={1: 1.0, 4: 2.6}, advice="Q4_0 of the same model would gain."))
    details = "\n".join(block.plain for row in view.rows for block in view.details(row))
    assert "writing 2.6" in details and "Q4_0 of the same model would gain." in details


def test_figures_of_a_busy_machine_are_marked() -> None:
    names = ("none", "draft", "lookup", "recycle")
    view = DraftersView([DrafterOffer(name, True, about="what it does") for name in names], "draft", None)
    measured = DrafterGains(
        {"draft": 1.7}, {"lookup": 1.2}, {"recycle": 1.1}, frozenset({"draft"}), busy_benchmark=True
    )
    view.take(Standing(gains=measured))
    rows = {row.plain[2:].split(" ")[0]: row.plain for row in view.lines(76)}
    assert "chats, busy  what" in rows["draft"] and "bench, busy  what" in rows["lookup"]
    assert "auto         what" in rows["recycle"]
    details = "\n".join(block.plain for row in view.rows for block in view.details(row))
    assert "1.7x in your chats (machine busy)." in details and "1.2x in the last benchmark (machine busy)." in details
    assert "1.1x as the autopilot measured." in details


def test_a_figure_within_the_noise_of_the_benchmark_is_no_advice() -> None:
    view = DraftersView(
        [DrafterOffer(name, True, about="guesses") for name in ("none", "auto", "lookup")], "auto", 50.0
    )
    for chats, benchmark, chance, advice, words in (
        (1.0, {"lookup": 1.1}, {"lookup"}, "", "Use auto or none: nothing"),
        (1.0, {"lookup": 1.1}, set[str](), "", "lookup was 1.1x faster here."),
        (1.0, {"lookup": 1.1}, set[str](), "The benchmark's advice.", "The benchmark's advice."),
        (0.9, {"lookup": 1.1}, {"lookup"}, "", "Use none: nothing"),
        (1.2, {"lookup": 1.1}, {"lookup"}, "The benchmark's advice.", "Use auto: it was 1.2x faster in your chats."),
        (1.2, {"auto": 0.5}, {"auto"}, "The benchmark's advice.", "Use auto: it was 1.2x faster in your chats."),
        (1.2, {"auto": 0.5}, set[str](), "The benchmark's advice.", "The benchmark's advice."),
    ):
        gains = DrafterGains({"auto": chats}, benchmark, {}, chance=frozenset(chance), advice=advice)
        view.take(Standing(gains=gains))
        said, *rows = (line.plain for line in view.lines(100))
        assert said.startswith(words)
        assert ("bench, chance" in "\n".join(rows)) == ("lookup" in chance)


def test_a_drafter_that_auto_used_is_not_said_to_be_unmeasured_alone() -> None:
    view = DraftersView([DrafterOffer("lookup", True, about="copies"), DrafterOffer("mtp", False, "why", "l")], "x", 9)
    view.take(Standing(gains=DrafterGains({}, {}, {}, tried=frozenset({"lookup"}))))
    assert "used by auto: copies" in "\n".join(line.plain for line in view.lines(100))
    details = [block.plain for row in view.rows for block in view.details(row)]
    assert any(words.startswith("auto used it at some steps, too few for a speed") for words in details)
    by_name = Standing(gains=DrafterGains({}, {}, {}, tried=frozenset({"lookup"}), uncompared=frozenset({"lookup"})))
    view.take(by_name)
    assert "used by auto" not in "\n".join(line.plain for line in view.lines(100))
    assert "It wrote in your chats, but" in "\n".join(block.plain for block in view.details(view.rows[1]))
    assert any("mtp (l): why." in words for words in details)


def test_text_that_was_indexed_since_the_load_is_told() -> None:
    why = METHOD.lacks(Resources(Abilities(9, 64, 8, 1, 8, 4)))
    offer = DrafterOffer("retrieval", False, why, "what followed the same words")
    assert WHY.startswith(NO_TEXT) and offer.why_not.startswith(NO_TEXT)
    for standing, came in (
        (Standing(documents=1, tokens=510), True),
        (Standing(documents=1, tokens=510, index_on=False), False),
        (Standing(), False),
    ):
        view = DraftersView([offer], "draft", None)
        view.take(standing)
        assert came != view.unfold("retrieval")
        at = view.find("retrieval")
        assert at is not None
        words = "\n".join(block.plain for block in view.details(view.rows[at]))
        assert ("text was indexed since the model was loaded" in words) == came != ("there is none" in words)
        assert ("Enter loads the model again" in words) == came == view.text_came(offer)


@pytest.mark.slow
async def test_one_is_switched_off_for_auto_and_on_again(open_chat: Open, model: Path, tmp_path: Path) -> None:
    file, fingerprint = tmp_path / "drafters.toml", read_header(model).fingerprint
    async with open_chat(engine=engine_of(model)) as chat:
        screen = await go_to(chat, "lookahead")
        assert " off: " not in row_of(chat, "lookahead")
        await chat.press("space")
        await chat.until(lambda: " off: " in row_of(chat, "lookahead"))
        assert left_out(file, fingerprint) == {"lookahead"}
        assert "off for auto" in said(screen)
        await chat.press("space")
        await chat.until(lambda: " off: " not in row_of(chat, "lookahead"))
        assert not left_out(file, fingerprint)
        for name in ("none", "retrieval"):  # plain decoding is always there, the other never
            if screen.view.unfold(name):
                screen.browser.draw()
            screen.browser.rows.highlighted = screen.view.find(name)
            await chat.press("space")
        assert not left_out(file, fingerprint)
        file.write_text("off = 3")
        screen.browser.rows.highlighted = screen.view.find("draft")
        await chat.press("space")
        await chat.until(lambda: any("is broken: off is no table" in hint for hint in chat.toasts()))
        assert file.read_text() == "off = 3"


@pytest.mark.slow
async def test_training_goes_on_beside_the_chat_and_its_heads_are_loaded(
    open_chat: Open, model: Path, tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "slipstream.app.library.drafter_status.find_spec", lambda name: name
    )  # as if torch were installed
    made = tmp_path / "made.gguf"
    write(made, model)
    commands.copies = [(made, tmp_path / "heads" / "mini-space.gguf")]
    (tmp_path / "heads").mkdir()
    async with open_chat(engine=engine_of(model)) as chat:
        screen = await go_to(chat, "space")
        await chat.press("t")
        chat.on(TrainScreen).query_one("#tokens", Input).value = "0"
        await chat.press("enter")
        chat.on(TrainScreen).query_one("#tokens", Input).value = "9000"
        await chat.press("enter")
        await chat.until(lambda: "Training space: step 1 of 4" in told(screen))
        assert commands.asked == [
            ["drafters", "train", "space", "-m", str(model), "--on", "answers", "--tokens", "9000"]
        ]
        assert commands.nice > 0
        assert not any(screen.check_action(action, ()) for action in ("train", "import", "index", "load"))
        await chat.press("escape")
        await chat.say("meanwhile")  # the chat does not wait
        screen = await go_to(chat, "space")
        assert "Training space: step 1 of 4" in told(screen)
        commands.go()
        await chat.until(lambda: "Training space is done: outcome of it." in told(screen))
        await chat.until(lambda: bool(screen.view.standing and screen.view.standing.of("space")))
        await chat.press("enter")  # the loaded model knows nothing of it yet
        await chat.until(lambda: len(chat.engine.loads) == 2 and chat.screen.model.loaded is not None)
        load = chat.engine.loads[-1]
        assert load.drafter == "space" and str(tmp_path / "heads" / "mini-space.gguf") in load.heads
        assert not chat.screen.drafters.fresh


@pytest.mark.slow
async def test_work_is_cancelled_and_says_what_is_kept(
    open_chat: Open, model: Path, commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "texts").mkdir()
    async with open_chat(engine=engine_of(model)) as chat:
        screen = await go_to(chat, "retrieval")
        await chat.press("f")
        assert isinstance(chat.app.screen, LineScreen)
        await chat.press(*"./texts", "enter")
        await chat.until(lambda: "Indexing: step 1 of 4" in told(screen))
        assert commands.asked == [["drafters", "index", "./texts", "-m", str(model), "--progress"]]
        await chat.press("x", "n")
        assert chat.screen.jobs.job
        await chat.press("x", "y")
        await chat.until(lambda: chat.screen.jobs.job is None)
        assert told(screen) == "Indexing was cancelled. What was read is kept; the same folder goes on."
        assert not chat.screen.drafters.fresh


@pytest.mark.slow
async def test_work_that_fails_says_why_wherever_one_is(open_chat: Open, model: Path, commands: Commands) -> None:
    commands.held, commands.error = False, "there is no such file \x1b[31m."
    async with open_chat(engine=engine_of(model)) as chat:
        screen = await go_to(chat, "space")
        await chat.press("i")
        await chat.press(*"/x", "enter")
        await chat.until(lambda: "/x: no such file or folder." in chat.shown())
        assert not commands.asked
        chat.on(LineScreen).query_one(Input).value = str(model)  # what was typed is still there
        await chat.press("enter")
        await chat.until(lambda: "Importing heads failed" in told(screen))
        assert told(screen) == "Importing heads failed: there is no such file ␛[31m."
        assert commands.asked == [["drafters", "import", str(model), "-m", str(model)]]
        commands.held = True
        await chat.press("i")
        await chat.press("/", "enter")
        await chat.until(lambda: chat.screen.jobs.job is not None and bool(chat.screen.jobs.job.line))
        await chat.press("escape")
        commands.go()
        await chat.until(lambda: any("Importing heads failed" in hint for hint in chat.toasts()))


async def test_without_torch_training_says_what_is_missing(
    open_chat: Open, model: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.app.library.drafter_status.find_spec", lambda name: None)
    async with open_chat(engine=engine_of(model)) as chat:
        await go_to(chat, "space")
        await chat.press("t")
        await chat.until(lambda: chat.toasts() == [NO_TORCH])
        assert not commands.asked


async def test_a_command_ends_when_whoever_began_it_is_gone() -> None:
    """Nobody stops it: only its pipe closes, as the system closes it when the chat is killed."""
    program = (
        "from slipstream.app.cli import main as cli; cli.make_parser = lambda: __import__('signal').pause(); cli.main()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "--supervised", "0", stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin
    process.stdin.close()
    assert await process.wait() != 0


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("step 3 of 4", 0.75), ("own answers: 1,000 of 2,000 tokens", 0.5),
        ("step 10  tokens 0.1M  25.5%  3 min left", 0.255), ("0 of 0", None), ("trying", None),
    ],
)  # fmt: skip
def test_how_far_work_is(line: str, share: float | None) -> None:
    job = Job("Working", line)
    assert job.share == (None if share is None else pytest.approx(share))
    assert str(job).endswith(f"Working: {line}") and ("━" in str(job)) == bool(share)


def test_a_loaded_model_is_named_to_commands(tmp_path: Path) -> None:
    paths = Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})
    bundled = choose(paths)
    assert model_name(bundled, paths) == "bundled"
    own = load_of(paths, tmp_path / "a.gguf", str(tmp_path / "b.gguf"), None, 0, heads=[tmp_path / "c.gguf"])
    assert model_name(own, paths) == str(tmp_path / "a.gguf")
    assert drafting_arguments(own, paths) == [
        "--draft-model", str(tmp_path / "b.gguf"), "--heads", str(tmp_path / "c.gguf")
    ]  # fmt: skip


def test_what_can_be_trained_is_what_the_command_trains() -> None:
    assert TRAINED == matching_heads.TRAINED


async def test_a_command_gets_no_secrets_and_says_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden")
    program = "import os; print('HF_TOKEN' in os.environ, 'PATH' in os.environ)"
    with monkeypatch.context() as patch:
        patch.setattr("slipstream.app.tui.jobs.command", lambda *_: [sys.executable, "-c", program])
        assert (await Jobs(lambda: None).run("Indexing", [])).said == ("False True",)
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    jobs = Jobs(lambda: None)
    ended = await jobs.run("Indexing", ["drafters", "index", "/nowhere/at/all", "-m", "bundled"])
    assert ended.code == 2 and not ended.said and "no such file or folder" in ended.error
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SlipstreamError, match="the command's process cannot be started: no such file"):
        await jobs.run("Indexing", [])


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({2: 1.5, 4: 2.1}, "Checking 2 tokens at once costs as much as writing 1.5, 4 as writing 2.1; drafting"),
        ({2: 1.9, 4: 11.9, 8: 21.1}, "Checking 2 tokens at once costs as much as writing 1.9; drafting"),
        ({4: 11.9}, "What checking several tokens costs was not measured on a quiet machine yet."),
        ({}, ""),
    ],
)
def test_a_cost_is_told_in_words_and_an_impossible_one_is_not(costs: dict[int, float], words: str) -> None:
    assert costs_words(costs).partition(" comes on top.")[0] == words
