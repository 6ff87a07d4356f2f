"""From replies to rows: pairs, sums, the best fixed choice, and the tables."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from slipstream.app.bench import figures
from slipstream.app.bench.drafters import BenchMeter, measure, turn_of
from slipstream.app.bench.estimate import Estimate
from slipstream.app.bench.figures import ALL_KINDS, BenchUpdate, Cell, Noise, rows_of
from slipstream.app.bench.intervals import Interval, TimedTokens
from slipstream.app.bench.prompts import PromptSet, asked
from slipstream.app.bench.report import advice, drafters_text
from slipstream.app.bench.turns import BenchTurn, ReplyPlan, WrittenReply
from slipstream.app.protocol.events import Done
from slipstream.app.speed import Speed
from slipstream.models.llama.library import PassCount


def reply(tokens: int, seconds: float, **given: object) -> WrittenReply:
    speed = Speed(tok_per_s=tokens / seconds, steps=tokens, tokens=tokens)
    done = Done(1, "length", "text", [], 9, 9, 0, 1.0, replace(speed, **given.pop("speed", {})), **given)  # type: ignore[arg-type]
    return WrittenReply(done, tuple(range(tokens)), PassCount(tokens, tokens, 1))


def cell(*ratios: float, tokens: int = 100, drafted: int = 50, steps: int = 50) -> Cell:
    """A drafter that was so many times faster than plain decoding, prompt by prompt."""
    made = Cell()
    for prompt, ratio in enumerate(ratios):
        made.add(
            prompt, reply(tokens, 1 / ratio, speed={"drafted": drafted, "steps": steps}), TimedTokens(tokens, 1.0), True
        )
    return made


def meter(
    plan: ReplyPlan, names: Sequence[str], on_update: Callable[[BenchUpdate], None] = lambda _: None
) -> BenchMeter:
    return BenchMeter("mini", plan, names, Estimate(turn_of(names), plan.tokens), on_update)


def test_a_machine_that_slows_down_all_the_while_changes_nothing() -> None:
    texts = [asked(f"{at}", "and?") for at in range(5)]
    plan = ReplyPlan(("a", "b", "c"), (PromptSet("chat", tuple(texts)),), temperatures=(0.0,))
    speeds, written = {"none": 1.0, "a": 2.0, "b": 0.5, "c": 1.25}, list[str]()

    def write(name: str, turn: BenchTurn) -> WrittenReply:
        written.append(name)
        tokens = 20 + 7 * turn.prompt
        return reply(tokens, tokens / speeds[name] * (1 + 0.03 * len(written)))

    cells, counts = measure(plan, 99, meter(plan, ["a", "b", "c"]), write, lambda _line: None)
    assert counts == {"chat": (5, 0)}
    assert len(written) == 5 * 2 * (3 + 4) and written[:3] == ["none", "a", "none"]
    firsts = [written[at + 1] for at in range(0, len(written), 7)]
    assert firsts == [*"abcabcabca"]  # nobody is always first
    for name in "abc":
        row = cells[name, "chat", 0.0].figures(name, "chat", 0.0)
        assert row.speedup and row.speedup.value == pytest.approx(speeds[name], rel=1e-12)
        assert row.by_prompt == pytest.approx([speeds[name]] * 5, rel=1e-12)
        assert (row.texts, row.equal_texts) == (10, 10)
    assert cells["none", "chat", 0.0].figures("none", "chat", 0.0).texts == 40


def test_the_sums_of_a_row() -> None:
    made = Cell()
    first = reply(
        10, 2.0, speed={"steps": 5, "drafted": 8, "accepted": 5}, by_depth=[[4, 3], [3, 2]],
        phases={"draft": 1.0, "evaluate": 10.0},
    )  # fmt: skip
    second = reply(
        20, 3.0, speed={"steps": 15, "drafted": 8, "accepted": 5}, by_depth=[[6, 3]],
        phases={"draft": 3.0, "evaluate": 20.0},
    )  # fmt: skip
    made.add(1, first, TimedTokens(10, 4.0), True)
    made.add(0, second, TimedTokens(20, 3.0), False)
    row = made.figures("lookup", "chat", 0.5)
    assert (row.tokens, row.texts, row.equal_texts) == (30, 2, 1)
    assert row.tok_per_s == pytest.approx(30 / 5) and row.tokens_per_step == 30 / 20
    assert row.speedup and row.speedup.value == pytest.approx(7 / 5)
    assert row.by_prompt == [None, None]  # each has fewer than 30 tokens
    assert row.acceptance == 10 / 16 and row.by_depth == [6 / 10, 2 / 3]
    assert row.phases == pytest.approx({"draft": 2.5, "evaluate": 17.5})  # by steps, not by replies
    assert row.first_token_ms == 1.0
    assert row.replayed == pytest.approx((9 + 19) / 30) and " 0.93 |" in drafters_text(report(row))


def test_turns_and_seeds_of_a_prompt_are_one_sample_and_repeated_runs_a_share() -> None:
    made = cell(1.0, 3.0)
    made.add(0, reply(100, 1.0), TimedTokens(100, 3.0), True)
    row = made.figures("lookup", "chat", 0.0)
    assert row.texts == 3 and row.by_prompt == pytest.approx([4 / 2, 3.0])
    made = Cell()
    for tokens in ((1, 2, 3, 4, 1, 2, 3, 4, 1, 2), tuple(range(20))):
        made.add(0, replace(reply(len(tokens), 1.0), tokens=tokens), TimedTokens(9, 1.0), True)
    row = made.figures("lookup", "chat", 0.0)
    assert row.repeated == pytest.approx(3 / 30) and " 10% |" in drafters_text(report(row))
    assert " repeated |" in drafters_text(report(row))


def test_the_best_fixed_choice_and_the_autopilot_against_it() -> None:
    cells = {
        ("none", "chat", 0.0): cell(1, 1, 1),
        ("lookup", "chat", 0.0): cell(0.9, 1.0, 0.8),
        ("auto", "chat", 0.0): cell(0.99, 1.0, 0.98),
        ("none", "copy", 0.0): cell(*[1] * 6),
        ("lookup", "copy", 0.0): cell(2.0, 3.0, 4.0, 2.0, 3.0, 4.0),
        ("auto", "copy", 0.0): cell(2.2, 3.3, 4.4, 2.2, 3.3, 4.4),
    }
    chat, copy, both = figures.best_fixed(cells)
    assert (chat.drafter, copy.drafter) == ("none", "lookup")  # never auto itself
    assert chat.speedup == Interval(1.0) and chat.auto == chat.auto_over_best  # plain decoding is its own measure
    over = copy.auto_over_best
    assert over and (over.value, over.low, over.high) == pytest.approx((1.1, 1.1, 1.1))
    assert both.kind == ALL_KINDS and both.drafter == "lookup"
    lookup = 9 / (1 / 0.9 + 1 / 1.0 + 1 / 0.8 + 2 / 2.0 + 2 / 3.0 + 2 / 4.0)
    auto = 9 / (1 / 0.99 + 1 / 1.0 + 1 / 0.98 + 2 / 2.2 + 2 / 3.3 + 2 / 4.4)
    assert both.speedup.value == pytest.approx(lookup) and both.auto and both.auto.value == pytest.approx(auto)
    assert both.auto_over_best and both.auto_over_best.value == pytest.approx(auto / lookup)
    without = {key: made for key, made in cells.items() if key[0] != "auto" and key[1] == "chat"}
    (alone,) = figures.best_fixed(without)
    assert alone.kind == "chat" and alone.auto is alone.auto_over_best is None


def test_what_drafted_nothing_is_never_the_best() -> None:
    cells = {
        ("none", "chat", 0.0): cell(1, 1),
        ("recycle", "chat", 0.0): cell(17.0, 2.0, drafted=0),
        ("lookup", "chat", 0.0): cell(1.2, 1.1),
    }
    (best,) = figures.best_fixed(cells)
    assert best.drafter == "lookup"
    auto = cells | {("auto", "chat", 0.0): cell(1.3, 1.2, drafted=0)}
    told = replace(report(*rows_of(auto, ["chat"], [0.0], ["none", "auto"])), best=figures.best_fixed(auto))
    assert "1.25x" not in drafters_text(told) and drafters_text(told).count("guessed nothing") == 3
    idle = next(row for row in rows_of(cells, ["chat"], [0.0], ["recycle"]))
    assert idle.idle and idle.gain is None and idle.speedup_text == "guessed nothing"


def test_the_rows_of_all_texts_have_the_figures_of_the_best_choice() -> None:
    cells = {
        (name, kind, 0.8): cell(own, 1.0) for kind in ("chat", "copy") for name, own in (("none", 1), ("lookup", 2))
    }
    rows = rows_of(cells, ["chat", "copy"], [0.8], ["none", "lookup"])
    assert [(row.kind, row.drafter) for row in rows[-2:]] == [(ALL_KINDS, "none"), (ALL_KINDS, "lookup")]
    best = figures.best_fixed(cells)
    assert best[-1].kind == ALL_KINDS and best[-1].speedup == rows[-1].speedup
    whole = replace(report(*rows), best=best)
    assert whole.overall == rows[-2:]
    assert rows_of(cells, ["chat"], [0.8], ["lookup"])[0].kind == "chat"  # one kind needs no row of all


def test_rows_are_told_as_they_are_measured_with_what_disturbed_them() -> None:
    kinds = (PromptSet("chat", (asked("x"), asked("y"))), PromptSet("copy", (asked("z"),)))
    plan = ReplyPlan(("a",), kinds, temperatures=(0.8,))
    told: list[BenchUpdate] = []
    seconds = {"none": [1.0, 1.5], "a": [0.5]}

    def write(name: str, _turn: BenchTurn) -> WrittenReply:
        seconds[name].append(seconds[name].pop(0))
        busy = {"busy": name == "none", "drafted": 9 * (name == "a")}
        return reply(40, seconds[name][-1], speed=busy)

    measured = meter(plan, ["a"], told.append)
    measure(plan, 99, measured, write, lambda _line: None)
    compared = [update for update in told if update.rows]
    assert [[row.kind for row in update.rows] for update in compared] == [
        ["chat"] * 2 + [ALL_KINDS] * 2, ["chat"] * 2 + [ALL_KINDS] * 2, ["copy"] * 2 + [ALL_KINDS] * 2
    ]  # fmt: skip
    assert compared[0].rows[1].speedup and compared[0].rows[1].speedup.value == pytest.approx(1.25 / 0.5)
    running = figures.RunningBench()
    for update in compared:
        running.take(update)
    assert [row.kind for row in running.rows] == ["chat", "chat", "copy", "copy", ALL_KINDS, ALL_KINDS]
    assert {row.drafter for row in running.rows} == {"none", "a"}
    assert measured.noise.spread == pytest.approx(1.5) and measured.noise.busy == 1.0
    assert [words.split(":")[0] for words in measured.noise.remarks()] == [
        "The machine was busy", "Two runs without a drafter differ by 1.50x"
    ]  # fmt: skip
    assert not Noise(1.04, 0.1).remarks()
    assert [figures.decoded(json.loads(json.dumps(figures.encoded(update)))) for update in told] == told


def rows_at(**ratios: Sequence[tuple[float, ...]]) -> list[figures.DrafterFigures]:
    """Rows of drafters whose prompts of chat and copy had these speed-ups."""
    named = {"none": [(1.0,) * 5] * 2, **ratios}
    cells = {
        (name, kind, 0.8): cell(*own, drafted=0 if name == "idle" else 50)
        for name, both in named.items()
        for kind, own in zip(("chat", "copy"), both, strict=True)
    }
    return rows_of(cells, ["chat", "copy"], [0.8], list(named))


EVEN, GAIN, LOSS = (0.97, 1.03, 0.99, 1.01, 1.0), (1.3, 1.31, 1.3, 1.29, 1.3), (0.8, 0.81, 0.8, 0.79, 0.8)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({"auto": [EVEN, EVEN], "lookup": [LOSS, EVEN]}, "Use auto or none: nothing gains on this model here."),
        ({"auto": [GAIN, GAIN], "lookup": [EVEN, EVEN]}, "Use auto: it is 1.3x faster here."),
        (
            {"auto": [GAIN, GAIN], "lookup": [EVEN, (2.0,) * 5]},
            "Use auto: it is 1.3x faster here; lookup is 2.0x faster on copy.",
        ),
        (
            {"auto": [EVEN, EVEN], "lookup": [LOSS, GAIN]},
            "lookup is 1.3x faster on copy; auto gains nothing over all texts.",
        ),
        (
            {"auto": [GAIN, GAIN], "lookup": [EVEN, (2.0,) * 5], "eagle3": [(1.6,) * 5] * 2},
            "Use eagle3: it is 1.6x faster here, auto 1.3x.",
        ),
        ({"auto": [LOSS, LOSS]}, "Use none: nothing gains on this model here, and auto is 0.8x as fast."),
        (
            {"auto": [(0.5, 1.2, 0.6, 1.1, 0.9), (0.5, 1.2, 0.6, 1.1, 0.9)]},
            "Use none: nothing gains on this model here, and auto was, perhaps by chance, 0.8x as fast.",
        ),
        ({"lookup": [LOSS, EVEN]}, "Nothing that was measured gains on this model here."),
        ({"auto": [(1.02,) * 5] * 2}, "Use auto or none: nothing gains on this model here."),
        (
            {"auto": [LOSS, LOSS], "lookup": [LOSS, GAIN]},
            "lookup is 1.3x faster on copy; auto is 0.8x as fast over all texts.",
        ),
    ],
)
def test_the_figures_end_in_one_sentence(ratios: dict[str, Sequence[tuple[float, ...]]], words: str) -> None:
    assert advice(rows_at(**ratios), Noise()) == words
    assert "measure again" in advice(rows_at(**ratios), Noise(busy=1.0))
    assert "faster" in words or "measure again" in advice(rows_at(**ratios), Noise(spread=1.2))


def test_temperatures_are_compared_apart_and_one_prompt_is_too_little() -> None:
    cells = {(name, "chat", 0.8): cell(2.0) for name in ("none", "auto")}
    assert advice(rows_of(cells, ["chat"], [0.8], ["none", "auto"]), Noise()).startswith("Too little was measured")
    cells = {(name, "chat", 0.8): cell(*GAIN, steps=99) for name in ("none", "auto")}  # hardly a guess was right
    assert advice(rows_of(cells, ["chat"], [0.8], ["none", "auto"]), Noise()).startswith("Use auto or none")
    cells = {(name, "chat", t): cell(t + 1, 1) for name in ("none", "lookup") for t in (0.0, 0.8)}
    assert [(row.kind, row.temperature) for row in figures.best_fixed(cells)] == [("chat", 0.0), ("chat", 0.8)]


def report(*rows: figures.DrafterFigures) -> figures.DrafterReport:
    return figures.DrafterReport(
        model="mini", promise="same text", rows=list(rows), best=[], unusable={"draft": "it needs a draft model"},
        prompts={"chat": 1, "copy": 8}, too_long={"chat": 2, "copy": 0}, seeds=[1], reply=16, typical=0.09,
        equal_texts=1, texts=1, memory_mb={},
    )  # fmt: skip


def test_the_table_and_what_has_to_be_said_with_it() -> None:
    row = figures.DrafterFigures(
        "lookup", "chat", 0.8, 41.26, Interval(1.2, 0.9, 1.5), [1.2], 1.0, None, [None], {"draft": 0.25}, 7.5, 10, 1, 1
    )
    text = drafters_text(report(row))
    said = (" guessed nothing ", " - ", " 0.250 |", " 7.5 |", "Texts equal: 1/1", "prompts: chat 1, copy 8;")
    assert not [words for words in said if words not in text]
    assert " 41.3 " not in text and " 41.3 " in drafters_text(report(replace(row, drafter="none")))
    lines = text.splitlines()
    assert "- Fewer than 5 prompts of chat: too few for a range; their figures are a rough guide." in lines
    assert "- Prompts of chat too long for the context: 2." in lines
    assert "- Left out: `draft`, it needs a draft model." in lines
    assert "- Typical acceptance (0.09) was on: it changes the text." in lines
    assert "peak MB" not in text


def test_memory_that_could_not_be_measured_is_a_dash() -> None:
    rows = [cell(1.0).figures(name, "chat", 0.0) for name in ("none", "lookup")]
    text = drafters_text(replace(report(*rows), memory_mb={"none": 66.2, "lookup": None}))
    plain, lookup = (line for line in text.splitlines() if line.startswith("| chat"))
    assert plain.endswith(" 66 |") and lookup.endswith(" - |")
