"""The queue: what runs, waits, stops, fails and is found again."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.download_tests import BODY, NAME, PARTS, QUICK, REPO, SMALL, leftovers, quant
from tests.models.hub_server import HubServer

from slipstream.models.hub.downloads import Download, Downloads
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import Quant, QueuedDownload


class Watch:
    def __init__(self) -> None:
        self.heard: list[QueuedDownload] = []
        self._changed = threading.Condition()

    def __call__(self, job: QueuedDownload) -> None:
        with self._changed:
            self.heard.append(job)
            self._changed.notify_all()

    def until(self, wanted: Callable[[QueuedDownload], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.heard)), timeout=60)

    def states(self, id: str) -> list[str]:
        states = [job.state for job in self.heard if job.id == id]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def queue(server: HubServer, watch: Watch) -> Iterator[Downloads]:
    queue = Downloads(Hub(), at_once=1, tuning=QUICK, on_change=watch)
    yield queue
    server.hang_up()
    server.hold_after(None)
    queue.close()


def hold(server: HubServer, queue: Downloads, watch: Watch, folder: Path, chosen: Quant, count: int) -> str:
    server.hold_after(server.sent + count)
    id = queue.add(chosen.files, folder).id
    watch.until(lambda job: job.id == id and job.progress.done == count)
    return id


def test_jobs_run_in_turn_and_end_in_place(server: HubServer, queue: Downloads, watch: Watch, folder: Path) -> None:
    ids = [queue.add(quant(label).files, folder).id for label in ("F32", "Q8_0", "BF16")]
    assert [queue.wait(id).state for id in ids] == ["done"] * 3
    assert [job.id for job in queue.jobs()] == ids
    assert queue.job(ids[0]).path.read_bytes() == BODY and queue.job(ids[1]).path.read_bytes() == SMALL
    for id in ids:
        assert watch.states(id)[-2:] == ["running", "done"] and queue.job(id).progress.done > 0
    running: set[str] = set()
    for job in watch.heard:
        (running.add if job.state == "running" else running.discard)(job.id)
        assert len(running) <= 1


def test_a_pause_keeps_what_came_for_later(server: HubServer, queue: Downloads, watch: Watch, folder: Path) -> None:
    first = hold(server, queue, watch, folder, quant("F32"), 100_000)
    second = queue.add(quant("Q8_0").files, folder).id
    assert queue.job(second).state == "queued"
    queue.pause(first)
    paused = queue.wait(first)
    assert paused.state == "paused" and paused.progress.done == 100_000
    server.hang_up()
    server.hold_after(None)
    assert queue.wait(second).state == "done"
    queue.resume(first)
    assert queue.wait(first).state == "done" and queue.job(first).path.read_bytes() == BODY
    assert server.sent == len(BODY) + len(SMALL)


def test_a_job_in_line_can_pause_and_go_on(server: HubServer, queue: Downloads, watch: Watch, folder: Path) -> None:
    first = hold(server, queue, watch, folder, quant("F32"), 1000)
    second = queue.add(quant("Q8_0").files, folder).id
    queue.pause(second)
    assert queue.job(second).state == "paused" and queue.add(quant("Q8_0").files, folder).state == "queued"
    server.hold_after(None)
    assert [queue.wait(id).state for id in (first, second)] == ["done", "done"]


def test_a_job_that_is_told_to_go_on_while_it_stops_goes_on(
    server: HubServer, queue: Downloads, watch: Watch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Download.run

    def stopped(download: Download, *arguments: Any) -> Path | None:
        path = run(download, *arguments)
        if path is None:  # it has stopped, and the queue does not know yet
            server.hang_up()
            server.hold_after(None)
            queue.resume(first)
        return path

    first = f"{REPO}/{NAME}"
    monkeypatch.setattr(Download, "run", stopped)
    id = hold(server, queue, watch, folder, quant("F32"), 100_000)
    queue.pause(id)
    assert queue.wait(id).state == "done" and leftovers(folder) == [NAME]
    assert watch.states(id)[-1] == "done" and "paused" not in watch.states(id)


def test_cancelling_removes_and_says_what_came(server: HubServer, queue: Downloads, watch: Watch, folder: Path) -> None:
    id = hold(server, queue, watch, folder, quant("BF16"), 100_000)
    assert queue.cancel(id) >= 100_000 and queue.job(id).state == "cancelled" and leftovers(folder) == []
    server.hang_up()
    server.hold_after(None)
    assert queue.add(quant("BF16").files, folder).state in ("queued", "running") and queue.wait(id).state == "done"
    queue.cancel(id)
    assert len(leftovers(folder)) == 3 and queue.job(id).state == "done"


def test_the_queue_outlives_the_program(server: HubServer, queue: Downloads, watch: Watch, folder: Path) -> None:
    id = hold(server, queue, watch, folder, quant("BF16"), 100_000)
    queue.close()
    server.hang_up()
    server.hold_after(None)
    later = Downloads(Hub(), tuning=QUICK)
    (job,) = later.restore(folder)
    assert (job.id, job.state, job.progress.done) == (id, "paused", 100_000)
    assert job.progress.total == quant("BF16").size and later.restore(folder) == [job]
    later.resume(id)
    assert later.wait(id).state == "done" and leftovers(folder) == sorted(PARTS)
    assert server.sent == job.progress.total
    later.close()


def test_a_failure_is_told_and_the_next_one_runs(server: HubServer, queue: Downloads, folder: Path) -> None:
    chosen, other = quant("F32"), quant("Q8_0")
    server.add(REPO, {"Tiny-Q8_0.gguf": SMALL})
    ids = [queue.add(one.files, folder).id for one in (chosen, other)]
    failed, done = (queue.wait(id) for id in ids)
    assert failed.state == "failed" and failed.error and f"has no file {NAME}" in failed.error[0]
    assert done.state == "done" and done.error is None
    server.add(REPO, {NAME: BODY})
    queue.resume(ids[0])
    mended = queue.wait(ids[0])
    assert mended.state == "done" and mended.error is None


def test_a_fault_of_ours_does_not_leave_a_job_running_for_ever(
    server: HubServer, queue: Downloads, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = quant()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("slipstream.models.hub.transfer.Transfer._take", broken)
    job = queue.wait(queue.add(chosen.files, folder).id)
    assert job.state == "failed" and job.error and "ZeroDivisionError" in job.error[0]
