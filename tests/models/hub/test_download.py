from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.download_tests import NAME, QUICK, REPO, job, leftovers, quant, run_until
from tests.models.hub_facts import Fault
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import DownloadError, HubError, OfflineError
from slipstream.models.gguf.reader import read_header
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.types import Progress, RemoteFile

BODY = tiny_gguf()
PARTS = split_gguf("Tiny-BF16", 3)
TOKEN = "hf_secretsecretsecret"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(REPO, {NAME: BODY, **PARTS})
        server.adopt(monkeypatch, tmp_path / "home")
        yield server


def refusal(folder: Path, files: tuple[RemoteFile, ...] | None = None) -> str:
    with pytest.raises(DownloadError) as caught:
        job(folder, files).run()
    assert caught.value.hint
    return caught.value.title


def test_a_file_comes_whole_in_ranges_and_is_its_owners_alone(server: HubServer, folder: Path) -> None:
    reports: list[Progress] = []
    path = job(folder).run(reports.append)
    assert path == folder / "acme" / "Tiny-GGUF" / NAME and path.read_bytes() == BODY
    assert read_header(path).architecture == "llama"
    assert leftovers(folder) == [NAME] and server.sent == len(BODY)
    assert len(server.bodies()) >= 4 and all(seen.range for seen in server.bodies())
    assert [seen.path for seen in server.seen if "/resolve/" in seen.path][1:] == [], "the hub is asked once"
    done = [report.done for report in reports]
    assert done == sorted(done) and done[-1] == len(BODY) and reports[-1].phase == "finishing"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for place in (folder, path.parent, path.parent.parent):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_progress_tells_speed_and_time_left() -> None:
    assert Progress(25, 100, speed=5.0).left == 15.0
    assert Progress(25, 100).left is None


def test_a_split_model_is_one_job_and_its_first_file_comes_last(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[str] = []
    move = os.replace

    def replaced(source: Path, target: Path) -> None:
        placed.append(Path(target).name)
        move(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    path = job(folder, quant("BF16").files).run()
    assert path and placed == sorted(PARTS, reverse=True) and path.name == min(PARTS)
    assert leftovers(folder) == sorted(PARTS)
    assert len(read_header(path).parts) == 3


def test_a_pause_costs_nothing(server: HubServer, folder: Path) -> None:
    for count in (1, 70_001, 100_000):
        run_until(server, job(folder), count) if count == 1 else run_more(server, folder, count)
        (partial,) = partials(folder)
        assert (partial.done, partial.total) == (server.sent, len(BODY))
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and server.sent == len(BODY)
    assert partials(folder) == []


def run_more(server: HubServer, folder: Path, total: int) -> None:
    """Goes on to that many bytes in all, and pauses."""
    reports: list[Progress] = []
    server.hold_after(total)
    assert job(folder).run(reports.append, lambda: reports[-1].done >= total) is None
    server.hang_up()
    server.hold_after(None)


def test_an_interrupt_keeps_what_came(server: HubServer, folder: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 150_000:
            raise KeyboardInterrupt

    server.hold_after(150_000)
    with pytest.raises(KeyboardInterrupt):
        job(folder).run(interrupt)
    server.hang_up()
    server.hold_after(None)
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and server.sent == len(BODY)


def test_what_rotted_on_the_disk_is_fetched_again_and_nothing_else(server: HubServer, folder: Path) -> None:
    run_until(server, job(folder), 200_000)
    part = quant().files[0].path_in(folder).with_name(f"{NAME}.part")
    raw = bytearray(part.read_bytes())
    raw[1000] ^= 1
    part.write_bytes(raw)
    start = server.sent
    path = job(folder).run()
    assert path and path.read_bytes() == BODY
    assert 0 < server.sent - start - (len(BODY) - 200_000) <= QUICK.interval


@pytest.mark.parametrize("damage", ["cut line", "garbage", "empty", "another file", "part gone"])
def test_a_journal_that_is_not_whole(server: HubServer, folder: Path, damage: str) -> None:
    run_until(server, job(folder), 200_000)
    path = quant().files[0].path_in(folder)
    journal, part = path.with_name(f"{NAME}.journal"), path.with_name(f"{NAME}.part")
    raw = journal.read_bytes()
    if damage == "part gone":
        part.unlink()
    else:
        other = raw.replace(hashlib.sha256(BODY).hexdigest().encode(), b"0" * 64)
        bent = {"cut line": raw[:-9], "garbage": b"\xff\x00{]" * 9, "empty": b"", "another file": other}
        journal.write_bytes(bent[damage])
    start = server.sent
    assert job(folder).run() == path and path.read_bytes() == BODY and leftovers(folder) == [NAME]
    again = server.sent - start - (len(BODY) - 200_000)
    assert again <= QUICK.interval if damage == "cut line" else again == 200_000


def test_a_journal_goes_on_behind_a_line_that_was_cut_off(server: HubServer, folder: Path) -> None:
    run_until(server, job(folder), 150_000)
    journal = quant().files[0].path_in(folder).with_name(f"{NAME}.journal")
    journal.write_bytes(journal.read_bytes()[:-9])
    reports: list[Progress] = []
    server.hold_after(250_000)
    assert job(folder).run(reports.append, lambda: server.sent == 250_000 and reports[-1].done > 230_000) is None
    server.hang_up()
    server.hold_after(None)
    path = job(folder).run()
    assert path and path.read_bytes() == BODY and server.sent - len(BODY) <= QUICK.interval


def test_what_lies_in_the_way_does_not_get_into_the_file(server: HubServer, folder: Path) -> None:
    part = quant().files[0].path_in(folder).with_name(f"{NAME}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * (len(BODY) + 1000))
    path = job(folder).run()
    assert path and path.read_bytes() == BODY


def test_a_part_that_grew_is_cut_to_its_size(server: HubServer, folder: Path) -> None:
    run_until(server, job(folder), 100_000)
    with quant().files[0].path_in(folder).with_name(f"{NAME}.part").open("ab") as part:
        part.write(b"x" * len(BODY))
    path = job(folder).run()
    assert path and path.read_bytes() == BODY


def test_a_file_that_is_there_and_right_is_not_fetched(server: HubServer, folder: Path) -> None:
    path = job(folder).run()
    start = server.sent
    assert job(folder).run() == path and server.sent == start and leftovers(folder) == [NAME]


def test_a_wrong_file_in_the_place_is_replaced_once_the_right_one_is_whole(server: HubServer, folder: Path) -> None:
    path = quant().files[0].path_in(folder)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(len(BODY)))
    with path.open("rb") as still_in_use:
        job(folder).run()
        assert path.read_bytes() == BODY and still_in_use.read(9) == bytes(9)


def test_a_changed_file_whose_hash_was_listed_is_refused(server: HubServer, folder: Path) -> None:
    listed = quant().files
    run_until(server, job(folder), 100_000)
    server.add(REPO, {NAME: tiny_gguf(seed=2)})
    assert "was changed" in refusal(folder, listed)
    path = job(folder).run()
    assert path and path.read_bytes() == tiny_gguf(seed=2)


def test_a_changed_file_without_a_listed_hash_is_begun_anew(server: HubServer, folder: Path) -> None:
    unlisted = (replace(quant().files[0], sha256=None, revision="main"),)
    run_until(server, job(folder, unlisted), 100_000)
    server.add(REPO, {NAME: tiny_gguf(seed=2)})
    reports: list[Progress] = []
    path = job(folder, unlisted).run(reports.append)
    assert path and path.read_bytes() == tiny_gguf(seed=2)


@pytest.mark.parametrize("place", [0, 70_000, len(BODY) - 1])
def test_a_file_that_nobody_has_a_hash_of_is_begun_anew_when_it_changes(
    server: HubServer, folder: Path, place: int
) -> None:
    server.silent = True
    unlisted = (replace(quant().files[0], sha256=None),)
    server.fault = Fault("changed", place, 1)
    reports: list[Progress] = []
    path = job(folder, unlisted).run(reports.append)
    assert path and path.read_bytes() == BODY
    assert server.sent > len(BODY)


def test_a_file_that_never_stops_changing(server: HubServer, folder: Path) -> None:
    server.silent = True
    unlisted = (replace(quant().files[0], sha256=None),)
    server.fault = Fault("changed", len(BODY) - 1)
    assert "changes on the hub while it is fetched" in refusal(folder, unlisted)


def test_a_file_that_lies_in_git_itself(server: HubServer, folder: Path) -> None:
    name = "plain-F32.gguf"
    server.add(REPO, {name: BODY}, plain=frozenset({name}))
    (file,) = quant().files
    assert file.sha256 is None
    path = job(folder, (file,)).run()
    assert path and path.read_bytes() == BODY


def test_a_hub_without_ranges_sends_a_file_once(server: HubServer, folder: Path) -> None:
    server.add(REPO, {"plain-F32.gguf": BODY}, plain=frozenset({"plain-F32.gguf"}))
    path = job(folder).run()
    assert path and path.read_bytes() == BODY
    assert len([seen for seen in server.seen if "/resolve/" in seen.path]) <= QUICK.connections


def test_a_host_that_redirects_once_more(server: HubServer, folder: Path) -> None:
    server.extra_hop = True
    path = job(folder).run()
    assert path and path.read_bytes() == BODY


def test_the_token_goes_to_the_hub_alone(
    server: HubServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server.adopt(monkeypatch, folder, TOKEN)
    server.add(REPO, {NAME: BODY}, gated="auto")
    server.accepted = frozenset({TOKEN})
    server.extra_hop = True
    server.fault = Fault("expired", 100_000, 1)
    with caplog.at_level(logging.DEBUG):
        assert job(folder).run()
    store = [seen for seen in server.seen if seen.host == "store"]
    assert len(store) > 4 and not any("authorization" in seen.headers for seen in store)
    resolved = [seen for seen in server.seen if "/resolve/" in seen.path]
    assert len(resolved) >= 2 and all(seen.headers["authorization"] == f"Bearer {TOKEN}" for seen in resolved)
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert {seen.headers["user-agent"] for seen in server.seen} == {"slipstream"}
    assert TOKEN not in caplog.text and TOKEN not in "".join(capfd.readouterr()) and TOKEN.encode() not in kept


def test_proxies_are_used(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = quant().files
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    path = job(folder, files).run()
    assert path and path.read_bytes() == BODY
    assert {seen.proxied for seen in server.seen if "/resolve/" in seen.path} == {"hub.invalid"}


def test_a_gated_file_says_where_its_licence_is(server: HubServer, folder: Path) -> None:
    server.add(REPO, {NAME: BODY}, gated="manual")
    with pytest.raises(HubError, match=f"Accept it at {server.endpoint}/{REPO}"):
        job(folder).run()


def test_a_hub_that_asks_to_wait_long_is_not_waited_for(server: HubServer, folder: Path) -> None:
    files = quant().files
    server.refuse = (429, {"Retry-After": "4000"})
    with pytest.raises(DownloadError, match=r"failed \(429\)\..*resume in 67 minutes"):
        job(folder, files).run()


def test_no_network_is_said_soon(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = quant().files
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(DownloadError, match=r"cannot reach 127.0.0.1.*, 3 times in a row"):
            job(folder, files, replace(QUICK, tries=1000)).run()


def test_offline_is_said_at_once_and_opens_no_socket(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = job(folder)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = job(folder, download.files)
    for name in ("socket", "socketpair", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    with pytest.raises(OfflineError, match="offline mode is on"):
        offline.run()
    assert leftovers(folder) == []


def test_giving_up_says_what_is_gone_and_what_stays(server: HubServer, folder: Path) -> None:
    run_until(server, job(folder), 200_000)
    gone = job(folder).discard()
    assert gone.kept == () and gone.freed >= 200_000
    assert leftovers(folder) == [] and list(folder.iterdir()) == []
    path = job(folder).run()
    gone = job(folder).discard()
    assert gone.kept == (path,) and gone.freed == 0 and leftovers(folder) == [NAME]


def test_what_was_begun_is_found_again(server: HubServer, folder: Path) -> None:
    assert partials(folder) == []
    run_until(server, job(folder, quant("BF16").files), 100_000)
    (partial,) = partials(folder)
    assert partial.files == quant("BF16").files and (partial.done, partial.total) == (100_000, quant("BF16").size)
    (folder / "acme" / "stray.gguf.journal").write_bytes(b"{}\n")
    assert partials(folder) == [partial]


def test_a_file_of_no_bytes(server: HubServer, folder: Path) -> None:
    server.add(REPO, {"empty-F32.gguf": b""})
    path = job(folder).run()
    assert path and path.read_bytes() == b""


def test_the_library_is_loaded_only_when_the_hub_is_asked(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from slipstream.models.hub.downloads import Downloads; "
        "from slipstream.models.hub.repositories import Hub; "
        "queue = Downloads(Hub(offline=True)); queue.restore(pathlib.Path(sys.argv[1])); queue.close(); "
        "print([n for n in ('huggingface_hub', 'httpx2', 'asyncio') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
