"""A hung engine is told from a slow one, and neither is blamed for a laptop that slept."""

from dataclasses import replace

import pytest

from slipstream.app.engine.process.recovery import end_of
from slipstream.app.engine.process.watchdog import EVERY, Heartbeat, Limits, SuspendClock, Watchdog
from slipstream.app.platform.processes import work_done
from slipstream.app.protocol.events import Beat, Done, Frame, Hello, Loaded, Loading, Prefilling
from slipstream.app.speed import Speed
from slipstream.drafters.crash_note import CrashNote

pytestmark = pytest.mark.program

LIMITS = Limits(start=120, silent=30, still=30, stuck=600, stop=20)
DONE = Done(1, "cancelled", "", [], 1, 1, 0, 1.0, Speed())


class Machine:
    """An engine whose thread does what a test says, the seconds it takes, and who waits for it."""

    def __init__(self) -> None:
        self.now = self.work = 0.0
        self.asked = True
        self.told: list[Beat] = []
        self.pulse = Heartbeat(self.told.append, lambda: self.asked, lambda: self.now, lambda: self.work)

    def go(self, seconds: int, works: bool = False, comes_further: bool = False) -> Beat:
        for _ in range(seconds):
            self.now += EVERY
            self.work += EVERY if works else 0.0001
            if comes_further:
                self.pulse.progress()
            self.pulse.beat()
        return self.told[-1]


def waited(patience: Watchdog, seconds: int, *events: Frame) -> str:
    """What is said after so many seconds, each of which brings the same events."""
    with patience.waiting():
        for _ in range(seconds):
            for event in events:
                patience.received(event)
            said = patience.verdict(1.0)
            if said:
                return said
    return ""


def test_work_is_neither_quiet_nor_still_nor_is_sleep() -> None:
    assert Machine().go(1000, comes_further=True) == Beat(0, 0)
    machine = Machine()
    assert machine.go(50, works=True) == Beat(50, 0) and machine.go(7) == Beat(57, 7)
    assert machine.go(1, comes_further=True) == Beat(0, 0)
    machine = Machine()
    machine.go(3)
    machine.now += 36_000
    assert machine.go(1).still <= 3 + 2 * EVERY


def test_only_who_is_asked_beats_and_rest_does_not_count_but_work_does() -> None:
    machine = Machine()
    machine.asked = False
    with pytest.raises(IndexError):
        machine.go(100)
    machine.asked = True
    assert machine.go(3) == Beat(3, 3)
    before = work_done()
    while work_done() == before:
        sum(range(100_000))


def test_a_slow_engine_is_waited_for_and_one_that_does_nothing_or_comes_no_further_is_given_up() -> None:
    assert waited(Watchdog(LIMITS), 10_000, Beat(0, 0)) == ""
    assert waited(Watchdog(LIMITS), 10_000, Beat(599, 0)) == ""
    assert waited(Watchdog(LIMITS), 10_000, Beat(29, 29)) == ""
    assert waited(Watchdog(LIMITS), 10_000, Prefilling(1, 1, 9), Beat(1, 1)) == ""
    assert "nothing at all for 30 seconds" in waited(Watchdog(LIMITS), 1, Beat(31, 30))
    assert "no further for 10 minutes" in waited(Watchdog(LIMITS), 1, Beat(600, 0))


def test_a_silent_engine_is_given_up_unless_it_starts_or_a_file_is_tried_elsewhere() -> None:
    assert waited(Watchdog(LIMITS), 119) == ""
    assert "no sign of life for 120 seconds" in waited(Watchdog(LIMITS), 120)
    patience = Watchdog(LIMITS)
    patience.received(Hello())
    assert waited(patience, 29) == "" and "no sign of life for 30 seconds" in waited(patience, 30)
    patience = Watchdog(LIMITS)
    patience.received(Loading(None))
    assert waited(patience, 1000, Beat(999, 999)) == "" and "no sign of life" in waited(patience, 30)
    patience.received(Loading(0.1))
    assert "nothing at all" in waited(patience, 1, Beat(999, 999))


def test_one_that_was_asked_to_stop_is_given_up_sooner_until_it_has_answered() -> None:
    patience = Watchdog(LIMITS)
    patience.stop_asked()
    assert waited(patience, 19, Beat(100, 0)) == ""
    patience.stop_asked()  # pressed again: the time goes on
    assert "did not stop within 20 seconds" in waited(patience, 1, Beat(100, 0))
    patience.received(DONE)
    assert waited(patience, 100, Beat(100, 0)) == ""
    patience = Watchdog(LIMITS)
    patience.stop_asked()
    assert waited(patience, 100, Beat(5, 0)) == ""


def test_one_that_does_nothing_after_a_stop_hangs_and_its_gpu_is_blamed() -> None:
    watchdog = Watchdog(LIMITS)
    watchdog.stop_asked()
    assert waited(watchdog, 19, Beat(100, 25)) == ""
    verdict = waited(watchdog, 1, Beat(100, 25))
    assert "nothing at all for 25 seconds" in verdict
    assert end_of(-9, "", verdict, CrashNote("", True)).cause == "gpu"


def test_only_who_waits_blames_and_time_counts_once_for_two() -> None:
    patience = Watchdog(LIMITS)
    patience.received(Beat(1000, 1000))
    assert patience.verdict(1000.0) == ""
    with patience.waiting():
        assert patience.verdict(1.0) != ""
    assert patience.verdict(1000.0) == ""
    patience = Watchdog(LIMITS)
    with patience.waiting():
        assert waited(patience, 100) == "" and "120 seconds" in waited(patience, 20)


def test_a_laptop_that_slept_is_not_blamed() -> None:
    now = 0.0
    clock = SuspendClock(2.0, lambda: now)
    patience = Watchdog(LIMITS)
    patience.received(Hello())
    with patience.waiting():
        for _ in range(10):  # it wakes up ten times for a second, after eight hours
            now += 8 * 3600
            assert patience.verdict(clock.passed()) == ""
        for _ in range(30):
            now += 1
            said = patience.verdict(clock.passed())
        assert "no sign of life" in said


FAR = Loaded("m", "llama", 512, "", "mac:50052", "", [], 1.0, machines=["mac:50052"])


def test_a_load_onto_other_machines_is_waited_for_and_a_stop_there_soon_ends() -> None:
    patience = Watchdog(LIMITS)
    patience.expect_machines(True)
    assert waited(patience, 10, Beat(119, 119)) == "" and "nothing at all" in waited(patience, 1, Beat(120, 120))
    assert patience.longest == 120
    patience.received(FAR)  # from now on they compute, which may take long
    assert waited(patience, 10, Beat(299, 299)) == "" and "nothing at all" in waited(patience, 1, Beat(300, 300))
    patience.received(replace(FAR, machines=[]))  # none of them was taken
    assert "nothing at all for 30 seconds" in waited(patience, 1, Beat(30, 30))
    far = FAR
    for loaded, seconds in ((far, 2), (replace(far, machines=[]), 20)):
        patience = Watchdog(LIMITS)
        patience.received(loaded)
        patience.stop_asked()
        assert waited(patience, seconds - 1, Beat(25, 25)) == "" and waited(patience, 1, Beat(25, 25)) != ""
    patience = Watchdog(LIMITS)
    patience.received(far)
    assert waited(patience, 10, Beat(299, 299)) == "" and "nothing at all" in waited(patience, 1, Beat(300, 300))
    patience.stop_asked()
    assert waited(patience, 15, Beat(25, 0)) == ""  # it computes
