"""The benchmark screen: what it asks for, how it runs beside the chat, what it shows and keeps."""

import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.app.tui.chat.test_hostile import HOSTILE, assert_inert
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_commands import Commands, result, scripted
from textual.widgets import Input, Static

from slipstream.app.bench import UNFINISHED
from slipstream.app.bench.figures import ALL_KINDS, BenchUpdate, DrafterFigures, Noise, encoded
from slipstream.app.bench.intervals import Interval
from slipstream.app.bench.results import StoredResult, delete, keep, kept_results, place_for, recover, unfinished
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import DrafterOffer
from slipstream.app.tui.bench.form import SIZES, BenchForm, BenchPlan
from slipstream.app.tui.bench.result import BenchResult, BenchView, bars_legend
from slipstream.app.tui.bench.screen import BenchScreen
from slipstream.models.errors import SlipstreamError

WHEN = datetime(2026, 3, 4, 5, 6, 7)


def row(drafter: str, value: float, acceptance: float | None = 0.5) -> DrafterFigures:
    ratio = Interval(value, value - 0.1, value + 0.1)
    return DrafterFigures(
        drafter, ALL_KINDS, 0.8, 40.0, ratio, [value], 1.5, acceptance, [0.5], {"draft": 1.0}, 9.0, 96, 2, 2
    )


update = BenchUpdate(
    "Small model", ("draft", "lookup", "recycle"), "lookup", "chat", 0.25, 33.0,
    (row("draft", 1.7), row("recycle", 17.0, acceptance=None)), Noise(1.4, 0.5),
)  # fmt: skip


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = scripted(tmp_path, monkeypatch)
    made.lines = (json.dumps(encoded(update)),)
    made.written = result(tmp_path / "written.json")
    return made


def benches(tmp_path: Path) -> Path:
    return tmp_path / "benches"


def kept_before(tmp_path: Path, day: int = 4, **facts: bool) -> Path:
    return result(benches(tmp_path) / f"2026-03-{day:02} 05.06.07.json", **facts)


async def opened(chat: Driver) -> BenchScreen:
    await chat.press("f8")
    screen = chat.on(BenchScreen)
    await chat.until(lambda: screen.view.ready)
    return screen


def said(chat: Driver) -> str:
    return " ".join(str(static.content) for static in chat.app.screen.query(Static))


def running(chat: Driver) -> bool:
    job = chat.screen.jobs.job
    return job is not None and bool(job.line or job.progress)


@pytest.mark.slow
async def test_a_benchmark_has_the_machine_for_itself(open_chat: Open, tmp_path: Path, commands: Commands) -> None:
    async with open_chat(size=(140, 40)) as chat:
        screen = await opened(chat)
        assert "No benchmark was run from here yet." in screen.view.words
        await chat.press("n")
        assert chat.on(BenchForm).chosen() == BenchPlan(drafters=("draft", "lookup"))
        assert "has the model for itself" in said(chat)
        await chat.press("enter")
        await chat.until(lambda: running(chat) and "25 %" in screen.view.note)
        assert screen.view.note.startswith("━━━") and "Benchmark: 25 %, about 35 s left" in screen.view.note
        assert isinstance(chat.app.screen, BenchResult)  # what is measured is seen at once
        await chat.until(lambda: "1.7" in chat.shown())
        words = said(chat)
        assert "Measuring Small model" in words and "writing chat with lookup" in words
        assert "recycle guessed nothing" in words and "17.0" not in words and "lookup  …" in words
        assert "The machine was busy" in words and "differ by 1.40x" in words
        await chat.press("escape")
        assert isinstance(chat.app.screen, BenchScreen) and "now" in chat.shown() and "1.7x" in said(chat)
        assert chat.engine.closed and chat.screen.model.loaded is None  # one model is in memory
        (asked,) = commands.asked
        words = " ".join(asked)
        assert asked[0] == "bench" and commands.nice == 0
        for part in (f"-m {Path('mini.gguf').absolute()}", "--drafters draft,lookup", "--prompts=chat", "--no-memory"):
            assert part in words
        assert "--temp 0.8 --limit 5 --tokens 32" in words
        assert not screen.check_action("new", ())
        await chat.press("escape", "ctrl+d")
        await chat.until(lambda: chat.toasts() == ["Benchmark running · F8: progress."])
        await chat.say("sent meanwhile", wait=False)  # it waits
        assert len(chat.engine.loads) == 1 and not chat.engine.asked
        assert "will be sent afterwards" in str(chat.screen.prompt.border_subtitle)
        commands.go()
        await chat.until(lambda: len(chat.engine.asked) == 1 and chat.idle())
        assert len(chat.engine.loads) == 2 and chat.engine.asked[0].messages[-1].content == "sent meanwhile"
        (file,) = benches(tmp_path).iterdir()
        assert file.suffix == ".json" and file.stat().st_mode & 0o777 == 0o600
        screen = await opened(chat)
        await chat.until(lambda: len(screen.view.rows) == 1)
        assert "Small model" in chat.shown() and "lookup 1.9x, rough" in chat.shown()
        assert screen.view.note == "The benchmark is done; Enter opens it."
        await chat.press("n")
        assert chat.on(BenchForm).chosen().drafters == ("draft", "lookup")


@pytest.mark.slow
async def test_the_form_says_what_lacks_and_checks_a_file(open_chat: Open, tmp_path: Path, commands: Commands) -> None:
    async with open_chat() as chat:
        await opened(chat)
        await chat.press("n")
        screen = chat.on(BenchForm)
        await chat.press("f1")
        assert "to the other column" in said(chat)
        await chat.press("escape", "left")
        assert screen.query_one("#sets").has_focus
        await chat.press("right", "space", "down", "space", "enter")
        assert isinstance(chat.app.screen, BenchForm) and "Choose at least one drafter." in said(chat)
        await chat.press("space")
        assert screen.chosen().drafters == ("lookup",)
        for name, keys in (("sets", ["down", "space"]), ("sampling", ["space"]), ("size", ["down", "space"])):
            screen.query_one(f"#{name}").focus()
            await chat.press(*keys)
        screen.query_one("#file", Input).value = str(tmp_path / "own.txt")
        await chat.press("enter")
        await chat.until(lambda: "own.txt" in said(chat) and screen.query_one("#estimate").has_class("wrong"))
        (tmp_path / "own.txt").write_text("Tell me of the sea.\n")
        await chat.press("enter")
        await chat.until(lambda: running(chat))
        words = " ".join(commands.asked[0])
        assert f"--prompts=chat --prompts=copy --prompts={tmp_path / 'own.txt'}" in words
        assert "--temp 0,0.8" in words and "--limit 5 --tokens 96" in words
        commands.go()
        await chat.until(lambda: chat.screen.jobs.job is None and chat.screen.model.loaded is not None)


@pytest.mark.slow
async def test_it_is_cancelled_with_what_was_measured(open_chat: Open, tmp_path: Path, commands: Commands) -> None:
    commands.written = None
    async with open_chat() as chat:
        screen = await opened(chat)
        await chat.press("n", "enter")
        await chat.until(lambda: running(chat))
        result(Path(commands.asked[0][-1]), stopped=True)
        await chat.press("c")
        await chat.until(lambda: len(screen.results) == 1 and chat.screen.model.loaded is not None)
        assert screen.view.note == "Cancelled; what was measured until then is kept."
        assert isinstance(chat.app.screen, BenchResult)
        await chat.until(lambda: "STOPPED before its end" in said(chat))
        await chat.press("escape", "n", "enter")
        await chat.until(lambda: running(chat))
        await chat.press("c")
        await chat.until(lambda: chat.screen.jobs.job is None and chat.screen.model.loaded is not None)
        await chat.until(lambda: screen.view.note == "Cancelled before anything was measured.")
        assert len(list(benches(tmp_path).iterdir())) == 1


async def test_what_a_killed_chat_measured_is_kept(open_chat: Open, tmp_path: Path, commands: Commands) -> None:
    left = result(benches(tmp_path) / f"{UNFINISHED}1234", stopped=True)
    (benches(tmp_path) / f"{UNFINISHED}5678").touch()
    os.utime(left, (WHEN.timestamp(), WHEN.timestamp()))
    with unfinished(benches(tmp_path)) as held:
        result(held)
        async with open_chat() as chat:
            await chat.until(lambda: any("was cut short" in words for words in chat.toasts()))
            screen = await opened(chat)
            assert [kept.when for kept in screen.results] == [WHEN]
            assert screen.results[0].report
        assert {path.name for path in benches(tmp_path).iterdir()} == {held.name, "2026-03-04 05.06.07.json"}
    assert recover(benches(tmp_path)) == [] and not held.exists()


@pytest.mark.slow
async def test_it_fails_in_words_and_the_chat_goes_on(open_chat: Open, tmp_path: Path, commands: Commands) -> None:
    commands.held, commands.error, commands.written = False, "there is no memory left.", None
    async with open_chat() as chat:
        screen = await opened(chat)
        await chat.press("n", "enter")
        await chat.until(lambda: "The benchmark failed: there is no memory left." in screen.view.note)
        await chat.press("escape")
        await chat.until(lambda: chat.screen.model.loaded is not None)
        await chat.say("go on")
        assert len(chat.engine.asked) == 1
        assert not list(benches(tmp_path).iterdir())


@pytest.mark.slow
async def test_it_does_not_begin_while_a_reply_is_written(open_chat: Open, commands: Commands) -> None:
    async with open_chat(Script(hold=3), Script()) as chat:
        await chat.say("x", wait=False)
        await chat.held("The ")
        await opened(chat)
        await chat.press("n", "enter")
        await chat.until(lambda: any("A reply is being written" in words for words in chat.toasts()))
        assert not commands.asked and not chat.engine.closed
        chat.engine.go()
        await chat.until(chat.idle)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (140, 40), (40, 12)])
async def test_results_are_listed_opened_and_deleted(open_chat: Open, tmp_path: Path, size: tuple[int, int]) -> None:
    older = kept_before(tmp_path)
    newer = kept_before(tmp_path, day=9)
    broken = benches(tmp_path) / "2026-03-07 05.06.07.json"
    broken.write_text('{"machine": {}}')
    async with open_chat(size=size) as chat:
        screen = await opened(chat)
        assert [kept.path for kept in screen.results] == [newer, broken, older]
        assert "09 Mar 05:06" in chat.shown()
        await chat.press("enter")
        assert isinstance(chat.app.screen, BenchResult)
        words = said(chat)
        for part in ("auto", "1.70x [1.60, 1.80]", "Same text as without a drafter: 8 of 8", "a rough guide", "medusa"):
            assert part in words, part
        assert all(len(line) == size[0] for line in chat.shown().splitlines())
        await chat.press("escape", "down")
        assert "damaged" in said(chat)
        await chat.press("enter")
        assert isinstance(chat.app.screen, BenchScreen)  # there is nothing to open
        await chat.press("x", "n", "x", "y")
        await chat.until(lambda: len(screen.view.rows) == 2)
        assert newer.exists() and not broken.exists() and older.exists()


@pytest.mark.parametrize(
    ("prompts", "noise", "unsure"),
    [(5, Noise(), False), (4, Noise(), True), (5, Noise(spread=1.4), True), (5, Noise(busy=0.5), True)],
)
def test_unsure_figures_are_called_rough(tmp_path: Path, prompts: int, noise: Noise, unsure: bool) -> None:
    kept_before(tmp_path)
    (kept,) = kept_results(benches(tmp_path))
    assert kept.report
    report = replace(kept.report, prompts={"chat": 5, "copy": prompts}, noise=noise)
    view = BenchView()
    view.rows = [replace(kept, report=report)]
    figures = [column.cell(view.rows[0]) for column in view.columns[-2:]]
    assert [cell.plain for cell in figures] == ["1.7x", "lookup 1.9x, rough" if unsure else "lookup 1.9x"]
    no_ranges = [replace(row, speedup=Interval(1.9)) for row in report.rows]
    assert ["[low, high]" in bars_legend(rows).plain for rows in (report.rows, no_ranges)] == [True, False]
    chance = [replace(row, speedup=Interval(1.9, 0.9, 2.9)) for row in report.rows]
    view.rows = [replace(kept, report=replace(report, rows=chance))]
    assert view.columns[-1].cell(view.rows[0]).plain.startswith("none")


@pytest.mark.slow
async def test_the_real_command_measures_the_bundled_model(open_chat: Open, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Hello!\n")
    async with open_chat() as chat:
        chat.screen.model.load = replace(choose(Paths.default()), drafter="draft")
        plan = BenchPlan((str(tmp_path / "own.txt"),), ("lookup",), (0.0,), "small")
        chat.screen.benchmark.begin(plan)
        await chat.until(lambda: running(chat))
        await chat.until(lambda: not chat.screen.model.unavailable)
        (kept,) = kept_results(benches(tmp_path))
        assert kept.report and [row.drafter for row in kept.report.rows] == ["none", "lookup"]
        assert kept.report.reply == SIZES["small"][1] and not kept.report.memory_mb
        assert chat.screen.benchmark.news == "The benchmark is done; Enter opens it."


def test_how_long_it_takes_is_guessed_from_its_size() -> None:
    plan = BenchPlan(("chat",), ("auto", "lookup"), (0.0,), "small")
    assert plan.seconds({"none": 10.0}) == pytest.approx(5 + 1.3 * 5 * 5 * 32 / 10)
    assert plan.seconds({"none": 10.0}, load=20.0) == pytest.approx(30 + 1.3 * 5 * 5 * 32 / 10)
    assert plan.seconds({"none": 0.0}) > plan.seconds({"none": 10.0}) > plan.seconds({"none": 100.0})
    slow = {"none": 10.0, "lookup": 1.0}  # as it was measured before
    assert plan.seconds(slow) == pytest.approx(5 + 1.3 * 5 * 32 * (4 / 10 + 1 / 1)) and not plan.lacks
    assert "prompts" in replace(plan, prompts=()).lacks and "drafter" in replace(plan, drafters=()).lacks
    assert "drawn" in replace(plan, temperatures=()).lacks


def test_what_is_kept_is_whole_and_never_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "benches"
    place = place_for(folder, WHEN)
    assert keep(tmp_path / "never", place) is None
    (tmp_path / "empty").touch()
    assert keep(tmp_path / "empty", place) is None and not (tmp_path / "empty").exists()
    kept = keep(result(tmp_path / "new"), place)
    assert kept and kept.report and kept.when == WHEN and kept.processor == "A processor"
    second = place_for(folder, WHEN)
    assert second != place and keep(result(tmp_path / "new"), second)
    assert [found.when for found in kept_results(folder)] == [WHEN, WHEN]
    delete(kept)
    delete(kept)  # it is gone: so it should be
    assert [found.path for found in kept_results(folder)] == [second]
    (tmp_path / "file").touch()
    with pytest.raises(SlipstreamError, match="cannot write"):
        keep(result(tmp_path / "new"), tmp_path / "file" / "x.json")


@pytest.mark.parametrize("wrong", ["", "[]", "{}", "null", "\xff", "[" * 100_000, '{"drafters": {"rows": 1}}'])
def test_a_damaged_result_is_named_and_harms_nothing(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "x.json").write_bytes(wrong.encode("latin-1"))
    (kept,) = kept_results(tmp_path)
    assert kept.report is None and kept.problem


def test_every_field_of_a_result_may_be_wrong(tmp_path: Path) -> None:
    """Whatever stands in one place, a result is either whole or said to be damaged; both can be listed."""
    whole = json.loads(result(tmp_path / "2026-01-01 00.00.00.json").read_text())
    found: list[StoredResult] = []
    for name in (*whole["drafters"], *(("rows", 0, key) for key in whole["drafters"]["rows"][0])):
        for value in (None, "x", [], {"value": "x"}, 1e999, [None]):
            broken = json.loads(json.dumps(whole))
            if isinstance(name, str):
                broken["drafters"][name] = value
            else:
                broken["drafters"]["rows"][0][name[2]] = value
            (tmp_path / "2026-01-01 00.00.00.json").write_text(json.dumps(broken))
            found += kept_results(tmp_path)
    assert sum(kept.report is None for kept in found) > len(found) / 2


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_hostile_names_are_shown_as_text(
    open_chat: Open, tmp_path: Path, commands: Commands, size: tuple[int, int]
) -> None:
    place = kept_before(tmp_path)
    hostile = json.loads(place.read_text())
    report = hostile["drafters"]
    hostile["machine"]["processor"] = report["model"] = report["promise"] = HOSTILE
    report["unusable"], report["prompts"] = {HOSTILE: HOSTILE}, {HOSTILE: 1}
    for row in (*report["rows"], *report["best"]):
        row["kind"] = row["drafter"] = HOSTILE
    place.write_text(json.dumps(hostile))
    offer = DrafterOffer(HOSTILE.replace("\0", ""), True, about=HOSTILE)  # no argument of a command holds the other
    loaded = replace(LOADED, name=HOSTILE, device=HOSTILE, drafters=[offer])
    commands.lines, commands.error, commands.written = (offer.name,), offer.name, None
    async with open_chat(engine=ScriptedEngine(loaded=loaded), size=size) as chat:
        screen = await opened(chat)
        assert screen.results[0].report
        assert_inert(chat)
        await chat.press("enter")
        assert_inert(chat)
        await chat.press("escape", "n")
        assert_inert(chat)
        await chat.press("enter")
        await chat.until(lambda: running(chat))
        assert_inert(chat)
        commands.go()
        await chat.until(lambda: "failed" in screen.view.note and chat.screen.model.loaded is not None)
        assert_inert(chat)
        await chat.press("escape", "ctrl+d")
        await chat.until(lambda: "Drafters for" in chat.shown())
        assert_inert(chat)
