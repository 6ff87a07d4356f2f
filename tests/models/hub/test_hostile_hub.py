"""A hub that keeps no rule: every answer ends in the right file or in one line, within a limit of time and of bytes."""

import json
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.models.download_tests import QUICK, leftovers
from tests.models.hub_server import HostileHub, HubServer, endless, raw

from slipstream.models.errors import HubError, SlipstreamError
from slipstream.models.hub import client
from slipstream.models.hub.address import is_web_address, safe_name
from slipstream.models.hub.downloads import Download
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import Progress, RemoteFile
from slipstream.models.hub.words import duration, retry_after

SIZE = 5_000
BODY = b"x" * SIZE
DIGITS = "9" * 5_000
HEAD = b"HTTP/1.1 200 X\r\n\r\n"
CALLS: dict[str, Callable[[Hub], object]] = {
    "search": lambda hub: hub.search("x"),
    "files": lambda hub: hub.files("a/b"),
    "card": lambda hub: hub.card("a/b"),
    "header": lambda hub: hub.header(RemoteFile("a/b", "main", "m.gguf", SIZE)),
}


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostileHub]:
    with HubServer() as server, HostileHub() as hostile:
        server.adopt(monkeypatch, tmp_path / "home")
        monkeypatch.setenv("HF_ENDPOINT", hostile.endpoint)
        monkeypatch.setattr(client, "_PAUSE_S", 0.001)
        hostile.lists(("README.md", SIZE), ("m.gguf", SIZE))
        yield hostile


def part(**headers: str) -> bytes:
    return raw(206, BODY, True, **{"Content_Range": f"bytes 0-{SIZE - 1}/{SIZE}", **headers})


def fetch(folder: Path, stall_s: float = 5.0) -> Path | None:
    (file,) = [file for file in Hub().files("a/b") if file.name == "m.gguf"]
    return Download(Hub(), [file], folder, replace(QUICK, stall_s=stall_s)).run()


def one_line(call: Callable[[], object]) -> SlipstreamError:
    """The error of a call that has to fail in words fit for one line."""
    with pytest.raises(SlipstreamError) as caught:
        call()
    error = caught.value
    assert error.title.isprintable() and error.hint and len(str(error)) < 600
    return error


def silence(hostile: HostileHub) -> Callable[[socket.socket], None]:
    def wait(connection: socket.socket) -> None:
        hostile.ended.wait()

    return wait


@pytest.mark.parametrize("call", ["search", "files"])
@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1:99999/x", f"http://127.0.0.1:{DIGITS}/", "http://127.0.0.1:²/", "http://127.0.0.1:0/"),
        *("http://[::1/", "file:///etc/passwd", "javascript:1", "ftp://127.0.0.1/", "http://u:p@127.0.0.1/"),
        *("/" + "a" * 60_000, "http://xn--\xff/"),
    ],
    ids=lambda location: location[:24],
)
def test_a_redirect_to_something_that_is_no_address(hostile: HostileHub, call: str, location: str) -> None:
    hostile.api = raw(302, Location=location)
    assert "no address" in one_line(lambda: CALLS[call](Hub())).title
    assert hostile.requests == 1


@pytest.mark.parametrize("location", ["", "/blob/a", "/api/models/a/b"])
def test_redirects_in_circles(hostile: HostileHub, tmp_path: Path, location: str) -> None:
    hostile.api = hostile.file = hostile.blob = raw(302, Location=location)
    download = Download(Hub(), [RemoteFile("a/b", "main", "m.gguf", SIZE)], tmp_path, QUICK)
    assert "circles" in one_line(download.run).title
    assert "circles" in one_line(lambda: Hub().files("a/b")).title


@pytest.mark.parametrize("location", ["http://127.0.0.1:99999/x", f"http://127.0.0.1:{DIGITS}/", "http://[::1/", "x:y"])
def test_a_download_that_is_redirected_to_no_address(hostile: HostileHub, tmp_path: Path, location: str) -> None:
    hostile.file = raw(302, Location=location)
    assert "no address" in one_line(lambda: fetch(tmp_path)).title


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *(("17", 17), (" 17 ", 17), ("0", 0), ("86400", 86_400)),
        *((DIGITS, None), ("²", None), ("-1", None), ("1e3", None), ("99999999999999999999", None), ("tomorrow", None)),
    ],
)
def test_how_long_a_hub_asks_to_wait(value: str, seconds: int | None) -> None:
    assert retry_after({"retry-after": value}) == seconds


def test_a_wait_until_a_date_or_a_limit_ends() -> None:
    assert retry_after({"ratelimit": '"api";r=0;t=55'}) == 55
    assert retry_after({"ratelimit": f'"api";r=0;t={DIGITS}'}) is None
    later = datetime.now(UTC) + timedelta(minutes=10)
    assert retry_after({"retry-after": format_datetime(later, usegmt=True)}) in range(590, 601)
    assert retry_after({"retry-after": format_datetime(later - timedelta(days=1))}) == 0
    assert retry_after({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}) == 366 * 86_400


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 minute"), (60, "1 minute"), (61, "2 minutes"), (7_200, "2 hours"), (86_400, "24 hours"),
        (10**7, "116 days"),
    ],
)  # fmt: skip
def test_a_wait_in_the_unit_of_people(seconds: int, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize("call", ["search", "files"])
@pytest.mark.parametrize("value", [DIGITS, "²", "99999999999999999999"])
def test_a_refusal_that_asks_for_an_odd_wait(hostile: HostileHub, call: str, value: str) -> None:
    hostile.api = raw(429, Retry_After=value)
    error = one_line(lambda: CALLS[call](Hub()))
    assert "too many requests (429)" in error.title and "in a few minutes" in error.hint


def test_a_download_says_when_to_resume(hostile: HostileHub, tmp_path: Path) -> None:
    hostile.file = raw(503, Retry_After="7200")
    assert "resume in 2 hours" in one_line(lambda: fetch(tmp_path)).hint
    hostile.file = raw(503, Retry_After="99999999999999999999")
    assert "failed (503)" in one_line(lambda: fetch(tmp_path)).title


@pytest.mark.parametrize("call", ["search", "files"])
@pytest.mark.parametrize(
    "body", [b"[" * 200_000, b'{"a":' * 5_000, b"9" * 5_000, b"\xff", b'[{"id": "\\ud800"}]'], ids=lambda b: repr(b[:9])
)
def test_json_that_is_none(hostile: HostileHub, call: str, body: bytes) -> None:
    hostile.api = raw(200, body)
    assert "something that is not a list" in one_line(lambda: CALLS[call](Hub())).title


@pytest.mark.parametrize("call", ["search", "files"])
@pytest.mark.parametrize("block", [b" " * 65_536, b"1," * 30_000, b"a" * 65_536], ids=["spaces", "numbers", "letters"])
def test_json_without_an_end(hostile: HostileHub, call: str, block: bytes) -> None:
    hostile.api = endless(HEAD + b'["', block)
    assert "more than 8 MB" in one_line(lambda: CALLS[call](Hub())).title


@pytest.mark.parametrize("call", ["search", "files"])
def test_packed_json_is_not_unpacked(hostile: HostileHub, call: str) -> None:
    packer = zlib.compressobj(1, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    hostile.api = raw(200, bomb, Content_Encoding="gzip")
    assert "packed bytes" in one_line(lambda: CALLS[call](Hub())).title


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 20", b"HTTP/1.1 200 X\r\nX-A: ", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 1", HEAD]
)
def test_a_hub_that_dribbles(hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, call: str, head: bytes) -> None:
    monkeypatch.setattr(client, "_PATIENCE_S", 0.3)
    if call in ("search", "files"):
        hostile.api = hostile.dribble(head)
    hostile.file = hostile.dribble(head)
    began = time.monotonic()
    assert "too slowly" in one_line(lambda: CALLS[call](Hub())).title
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("head", [b"HTTP/1.1 20", b"HTTP/1.1 206 X\r\nX-A: ", HEAD])
def test_a_download_that_dribbles(hostile: HostileHub, tmp_path: Path, head: bytes) -> None:
    hostile.file = hostile.dribble(head)
    began = time.monotonic()
    error = one_line(lambda: fetch(tmp_path, stall_s=0.3))
    assert "sends too slowly" in error.title or "fell silent" in error.title
    assert "kept" in error.hint and time.monotonic() - began < 10.0


def test_all_requests_of_a_call_have_one_limit(hostile: HostileHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_CALL_S", 0.3)
    monkeypatch.setattr(client, "_PAUSE_S", 0.2)
    hostile.api = raw(503)
    assert "too slowly" in one_line(lambda: Hub().files("a/b")).title


def test_a_list_of_endless_pages(hostile: HostileHub) -> None:
    row = json.dumps([{"id": "a/b"}]).encode()
    hostile.api = raw(200, row, Link='</api/models?page=2>; rel="next"')
    assert len(Hub().search("x", limit=1_000)) == hostile.requests == 10
    hostile.api = raw(200, b"[]", Link='</api/models?page=2>; rel="next"')
    assert Hub().search("x") == []


@pytest.mark.parametrize("following", ["http://127.0.0.1:99999/", "http://[::1", "//elsewhere.invalid/"])
def test_a_list_that_goes_on_elsewhere(hostile: HostileHub, following: str) -> None:
    hostile.api = raw(200, b'[{"id": "a/b"}]', Link=f'<{following}>; rel="next"')
    assert one_line(lambda: Hub().search("x")).title and hostile.requests == 1


@pytest.mark.parametrize(
    "name",
    [
        *("\ud800.gguf", "a\0.gguf", "a" * 5_000 + ".gguf", "\u4e00" * 230 + ".gguf", "a\u2028b.gguf", "a\u202eb.gguf"),
        *("a\nb.gguf", "a\x9b31m.gguf", ".trash/1/x.gguf", ".facts.json.gguf", "a//b.gguf", "../x.gguf", "", 5, None),
    ],
    ids=lambda name: repr(name)[:16],
)
def test_a_name_that_no_folder_can_hold(hostile: HostileHub, tmp_path: Path, name: object) -> None:
    assert not safe_name(name)
    hostile.file = part()
    hostile.lists((name, SIZE))
    one_line(lambda: Hub().quants("a/b"))
    if name != "\ud800.gguf":  # no JSON at all
        hostile.lists((name, SIZE), ("m.gguf", SIZE))
        assert fetch(tmp_path / "models") and leftovers(tmp_path / "models") == ["m.gguf"]


@pytest.mark.parametrize(
    ("size", "more"),
    [
        *((size, {}) for size in (True, -1, 1.5, "5000", 10**30, 2**63, None, [1], float("inf"))),
        *((SIZE, more) for more in ({"sha": {"a": 1}}, {"sha": "a" * 10**5}, {"sha": "a\n"})),
        *((SIZE, {"siblings": siblings}) for siblings in ({"a": 1}, 5)),
    ],
)
def test_a_list_of_files_that_makes_no_sense(hostile: HostileHub, size: object, more: dict[str, Any]) -> None:
    hostile.lists(("m.gguf", size), **more)
    assert one_line(lambda: Hub().files("a/b")).title


@pytest.mark.parametrize("lfs", [5, [1], "x", {"sha256": 5}, {"sha256": "A" * 64}])
def test_a_hash_that_is_none(hostile: HostileHub, lfs: object) -> None:
    row = {"rfilename": "m.gguf", "size": SIZE, "lfs": lfs}
    hostile.api = raw(200, json.dumps({"id": "a/b", "siblings": [row]}).encode())
    if isinstance(lfs, dict):
        assert Hub().files("a/b")[0].sha256 is None
    else:
        one_line(lambda: Hub().files("a/b"))


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        *(({"downloads": 10**4000}, "downloads", 0), ({"likes": True}, "likes", 0), ({"likes": -5}, "likes", 0)),
        *(({"gguf": {"total": 10**400}}, "total_params", 0), ({"gguf": [1]}, "architecture", "")),
        *(({"gguf": {"architecture": "a" * 10**5}}, "architecture", "a" * 100), ({"tags": {"a": 1}}, "license", "")),
        *(({"tags": ["license:" + "x" * 10**5]}, "license", "x" * 100), ({"tags": [5, None]}, "license", "")),
        *(({"lastModified": "9" * 5_000}, "updated", None), ({"lastModified": 10**20}, "updated", None)),
    ],
)
def test_odd_facts_of_one_are_left_out(hostile: HostileHub, more: dict[str, Any], field: str, value: object) -> None:
    hostile.api = raw(200, json.dumps([{"id": "a/b", **more}]).encode())
    (row,) = Hub().search("x")
    assert getattr(row, field) == value


@pytest.mark.parametrize(
    "value",
    [
        *(f"bytes 0-{DIGITS}/{SIZE}", f"bytes 0-{SIZE - 1}/{DIGITS}", f"bytes ²-{SIZE - 1}/{SIZE}"),
        *(f"bytes -1-4999/{SIZE}", f"bytes {SIZE - 1}-0/{SIZE}", f"lines 0-{SIZE - 1}/{SIZE}"),
        *(f"bytes 0-4_999/{SIZE}", "", f"bytes 0-{SIZE - 1}/77"),
    ],
    ids=lambda value: value[:20],
)
def test_a_range_that_makes_no_sense(hostile: HostileHub, tmp_path: Path, value: str) -> None:
    hostile.file = part(Content_Range=value)
    assert "another range came" in one_line(lambda: fetch(tmp_path)).title
    title = one_line(lambda: CALLS["header"](Hub())).title
    assert "another part of the file" in title or "not a GGUF file" in title
    assert "m.gguf" not in leftovers(tmp_path)


@pytest.mark.parametrize(
    ("file", "blob"),
    [
        *((raw(302, Location="/blob", X_Linked_Size=size), part()) for size in (DIGITS, "²", "-1", "abc")),
        *((part(ETag=name), b"") for name in ('"' + "a" * 60_000 + '"', '"\xff\xfe"', "W/")),
    ],
)
def test_an_odd_size_or_name_of_the_content_says_nothing(
    hostile: HostileHub, tmp_path: Path, file: bytes, blob: bytes
) -> None:
    hostile.file, hostile.blob = file, blob
    path = fetch(tmp_path)
    assert path and path.read_bytes() == BODY


@pytest.mark.parametrize("value", [DIGITS, "²", "-1", "abc", "77"])
def test_an_odd_length(hostile: HostileHub, tmp_path: Path, value: str) -> None:
    headers = {"Content_Range": f"bytes 0-{SIZE - 1}/{SIZE}", "Content_Length": value}
    hostile.file = raw(206, BODY, length=False, **headers)
    one_line(lambda: fetch(tmp_path))
    one_line(lambda: CALLS["header"](Hub()))
    assert "m.gguf" not in leftovers(tmp_path)


def test_a_file_without_an_end_and_a_card_whose_size_is_a_lie(hostile: HostileHub, tmp_path: Path) -> None:
    hostile.file = endless(HEAD)
    assert "more bytes came" in one_line(lambda: fetch(tmp_path)).title
    assert "not a GGUF file" in one_line(lambda: CALLS["header"](Hub())).title
    assert Hub().card("a/b") == ""
    hostile.lists(("README.md", 1 << 40))
    hostile.file = raw(206, b"# short", Content_Range=f"bytes 0-1048575/{1 << 40}")
    assert "7 bytes where 1,048,576 were asked for" in one_line(lambda: Hub().card("a/b")).title


@pytest.mark.parametrize(
    "answer", [b"", bytes(range(256)), b"HTTP/1.1 200 X\r\n" + b"X-A: a\r\n" * 50_000, raw(799), raw(204), raw(302)]
)
def test_answers_of_no_form(hostile: HostileHub, tmp_path: Path, answer: bytes) -> None:
    hostile.file = answer
    one_line(lambda: fetch(tmp_path))
    hostile.api = answer
    for call in ("search", "files"):
        with pytest.raises(HubError):
            CALLS[call](Hub())


def test_addresses() -> None:
    assert is_web_address("https://cdn.example:8443/a?b=c#d") and is_web_address("http://[::1]:80/")
    assert not any(map(is_web_address, ("", "https://", "https://a:99999", "https://a\nb/", "https://ä/", "a/b")))


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "socks5h://127.0.0.1:9"])
@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
def test_a_dead_proxy_is_named(hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, name: str, proxy: str) -> None:
    monkeypatch.setenv(name, proxy)
    error = one_line(lambda: Hub().search("x"))
    assert "cannot reach" in error.title and f"the proxy that {name} names" in error.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("HF_ENDPOINT", value) for value in ("://", "http://a b", "http://[::1", "http://*", "x" * 9000)),
        *(
            ("HTTP_PROXY", value)
            for value in ("://", "foo://h", "http://[", "http://a b", "socks4://h:1", " http://h:1")
        ),
        *(("https_proxy", value) for value in ("//h:1", "direct://", "socks4a://h:1", "ftp://h:21", "'http://h:1'")),
        *(("HTTPS_PROXY", value) for value in ("http://h:1\n", "http://pr\u00f6xy:1", "pac+http://h/x.pac")),
        *(("all_proxy", value) for value in ("http:///", "http://h:99999", "http://\x1b[31m")),
        *(
            ("HF_TOKEN", value)
            for value in ("a b", "hf_\u00fc", "\u202e", "x" * 5_000, "Bearer hf_x", "hf_\u200bx", "hf_\u2019x")
        ),
        *(("SSL_CERT_FILE", value) for value in ("/nowhere.pem", "/dev/null", "/", "/proc/self/status")),
        *(("SSLKEYLOGFILE", value) for value in ("/nowhere/keys", "/")),
        *(("HF_TOKEN_PATH", value) for value in ("/", "/dev/null/token")),
        *(("HF_HUB_DOWNLOAD_TIMEOUT", value) for value in ("x", "-1", "\u00b2")),
    ],
)
def test_a_useless_variable_is_named_with_its_cure(
    hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    client.trust.cache_clear()
    monkeypatch.setenv(name, value)
    if name == "HF_TOKEN_PATH":
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", value)  # read at its import
    try:
        error = one_line(lambda: Hub().search("x"))
    finally:
        client.trust.cache_clear()
    assert error.code == 1 and name in str(error) and "[Errno" not in str(error)
    assert re.search("unset|HTTP proxy|Correct", error.hint)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "offline mode is on" in one_line(lambda: Hub().search("x")).title


@pytest.mark.parametrize(("name", "value"), [("HF_ENDPOINT", " "), ("HF_HUB_ETAG_TIMEOUT", " "), ("NO_PROXY", ",,")])
def test_a_blank_variable_is_unset(hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert Hub().host == "huggingface.co" if name == "HF_ENDPOINT" else Hub().files("a/b")


def test_a_hub_says_continue_for_ever(hostile: HostileHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "_PATIENCE_S", 0.3)
    hostile.file = endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 20)
    with pytest.raises(SlipstreamError, match=r"fell silent|sent nothing"):
        fetch(tmp_path, stall_s=0.3)
    hostile.api = hostile.file
    assert "too slowly" in one_line(lambda: Hub().search("x")).title


def test_a_redirect_for_ever_has_one_limit_of_time(hostile: HostileHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PATIENCE_S", 0.4)

    def slowly(connection: socket.socket) -> None:
        time.sleep(0.25)
        connection.sendall(raw(302, Location="/api/models/a/b"))

    hostile.api = slowly
    assert "too slowly" in one_line(lambda: Hub().files("a/b")).title and hostile.requests <= 3


def test_a_download_without_a_byte_ends_and_names_the_host(hostile: HostileHub, tmp_path: Path) -> None:
    (file,) = [file for file in Hub().files("a/b") if file.name == "m.gguf"]
    hostile.file = silence(hostile)
    reports: list[Progress] = []
    download = Download(Hub(), [file], tmp_path, replace(QUICK, stall_s=60.0, idle_s=6.0))
    error = one_line(lambda: download.run(reports.append))
    assert "127.0.0.1 sent nothing for 6 s" in error.title and "resume" in error.hint
    assert any(report.note == "waiting for 127.0.0.1" and 5.0 <= report.quiet < 7.0 for report in reports)


def test_another_thread_stops_a_wait(hostile: HostileHub) -> None:
    hub = Hub()
    hostile.api = silence(hostile)
    timer = threading.Timer(0.3, hub.stop)
    timer.start()
    assert "stopped waiting for 127.0.0.1" in one_line(lambda: hub.search("x")).title
    assert not hub.stop()
