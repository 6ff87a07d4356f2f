from dataclasses import replace

from slipstream.app.engine.process.worker import Event, Throttle
from slipstream.app.protocol.events import Divided, Piece, Prefilling, Stepped
from slipstream.app.speed import Speed


def step(number: int, drafted: int = 0) -> Stepped:
    pieces = [Piece(str(number), "plain")]
    return Stepped(1, pieces, [number], "draft" if drafted else "none", drafted, drafted, 1.0, Speed(tokens=number))


def test_without_a_pace_every_step_is_an_event() -> None:
    heard: list[Event] = []
    pace = Throttle(heard.append, 0.0)
    for number in range(5):
        pace(step(number))
    assert len(heard) == 5


def test_quick_steps_are_joined_and_nothing_is_lost() -> None:
    heard: list[Event] = []
    pace = Throttle(heard.append, 60_000.0)
    pace(Prefilling(1, 1, 2))
    for number, drafted in enumerate([0, 3, 0, 2, 0]):
        pace(step(number, drafted))
    assert len(heard) == 2  # the first step at once: somebody is waiting for it
    pace.flush()
    pace.flush()
    first, rest = heard[1:]
    assert isinstance(first, Stepped) and first.tokens == [0]
    assert rest == Stepped(
        1, [Piece(str(n), "plain") for n in (1, 2, 3, 4)], [1, 2, 3, 4], "draft", 5, 5, 4.0, Speed(tokens=4)
    )


def test_joined_steps_keep_reasoning_apart_from_the_answer() -> None:
    heard: list[Event] = []
    pace = Throttle(heard.append, 60_000.0)
    pace(step(0))
    pace(replace(step(1), divided=Divided("because", [], True)))
    pace(replace(step(2), divided=Divided("", [Piece("so", "plain")], False)))
    pace(step(3))
    pace.flush()
    last = heard[-1]
    assert isinstance(last, Stepped)
    assert last.divided == Divided("because", [Piece("so", "plain"), Piece("3", "plain")], False)
