import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.download_tests import QUICK
from tests.models.hub_handler import Fault
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HubServer

from slipstream.models.errors import HubError, ModelFileError, OfflineError, UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.hub.address import may_see_token
from slipstream.models.hub.downloads import Download
from slipstream.models.hub.repositories import Hub, label_of, quants_of
from slipstream.models.hub.types import RemoteFile

TINY = "acme/Tiny-GGUF"
TOKEN = "hf_secretsecretsecret"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(
            TINY,
            {
                "README.md": b"---\nlicense: mit\n---\n# Tiny\n\nIt is small.\n",
                "Tiny-F32.gguf": tiny_gguf(),
                "Tiny-Q8_0.gguf": tiny_gguf(q8_0=True),
                "mmproj-Tiny-F16.gguf": b"GGUF projector",
                "Tiny.imatrix.gguf": b"GGUF matrix",
                **{f"BF16/{name}": content for name, content in split_gguf("Tiny-BF16").items()},
            },
            downloads=7,
            likes=3,
            lastModified="2026-11-01T10:00:00.000Z",
            tags=["gguf", "license:mit"],
            gguf={"total": 12345, "architecture": "llama", "context_length": 2048},
        )
        server.adopt(monkeypatch, tmp_path)
        yield server


def failure(call: Any, *arguments: Any) -> HubError:
    with pytest.raises(HubError) as caught:
        call(*arguments)
    return caught.value


def test_a_search_tells_what_a_person_chooses_by(server: HubServer) -> None:
    server.add(
        "zeta/Tiny-Gated-GGUF", {}, gated="manual", downloads=1, likes=9, lastModified="2026-11-02T10:00:00.000Z"
    )
    first, second = Hub().search("tiny")
    assert (first.id, first.downloads, first.likes, first.gated, first.license) == (TINY, 7, 3, False, "mit")
    assert (first.architecture, first.context, first.total_params) == ("llama", 2048, 12345)
    assert first.updated is not None and first.updated.year == 2026
    assert second.gated and second.license == "" and second.context == 0
    query = server.seen[-1].path
    assert "filter=gguf" in query and "sort=downloads" in query and "search=tiny" in query
    assert [row.id for row in Hub().search("tiny", sort="likes")] == ["zeta/Tiny-Gated-GGUF", TINY]
    assert [row.id for row in Hub().search("tiny", sort="updated")] == ["zeta/Tiny-Gated-GGUF", TINY]
    assert Hub().search("nothing like it") == []


def test_a_name_or_a_pages_address_finds_the_repository(server: HubServer) -> None:
    for number in range(3):
        server.add(f"acme/Tiny-GGUF-{number}", {}, downloads=100)
    assert Hub().search(TINY, limit=2)[0].id == TINY
    assert Hub().search(f"{server.endpoint}/{TINY}/tree/main")[0].id in (TINY, "acme/Tiny-GGUF-0")
    assert TINY in [row.id for row in Hub().search(f"https://huggingface.co/{TINY}")]


def test_quants_are_what_a_person_downloads_as_one(server: HubServer) -> None:
    quants = {quant.label: quant for quant in Hub().quants(TINY)}
    assert sorted(quants) == ["BF16", "F32", "Q8_0"]
    assert [file.name for file in quants["BF16"].files] == [f"BF16/{name}" for name in split_gguf("Tiny-BF16")]
    assert quants["Q8_0"].size == len(tiny_gguf(q8_0=True))
    commit = server.repos[TINY].commit
    assert all(file.revision == commit and len(file.sha256 or "") == 64 for q in quants.values() for file in q.files)
    assert [quant.size for quant in Hub().quants(TINY)] == sorted(quant.size for quant in quants.values())


def test_a_card_comes_without_its_metadata(server: HubServer) -> None:
    assert Hub().card(TINY) == "# Tiny\n\nIt is small."
    server.add("acme/Bare-GGUF", {"a.gguf": b"GGUF"})
    assert Hub().card("acme/Bare-GGUF") == ""


def test_a_header_is_read_without_the_weights(server: HubServer, tmp_path: Path) -> None:
    body = tiny_gguf() + bytes(8 << 20)
    server.add("acme/Long-GGUF", {"Long-F32.gguf": body})
    path = tmp_path / "Long-F32.gguf"
    path.write_bytes(body)
    (quant,) = Hub().quants("acme/Long-GGUF")
    header = Hub().header(*quant.files)
    local = read_header(path)
    assert (header.architecture, header.tensors, header.fingerprint) == (
        local.architecture,
        local.tensors,
        local.fingerprint,
    )
    assert server.sent <= 5 << 20


def test_the_header_of_a_split_model_has_all_tensors(server: HubServer, tmp_path: Path) -> None:
    quant = next(quant for quant in Hub().quants(TINY) if quant.label == "BF16")
    for name, content in split_gguf("Tiny-BF16").items():
        (tmp_path / name).write_bytes(content)
    local = read_header(tmp_path / "Tiny-BF16-00001-of-00002.gguf")
    assert Hub().header(*quant.files).tensors == local.tensors
    assert len(Hub().header(quant.files[0]).tensors) < len(local.tensors)


def test_a_header_comes_from_a_mirror_without_ranges_and_a_hostile_one_is_refused(server: HubServer) -> None:
    server.add("acme/Plain-GGUF", {"a-F32.gguf": tiny_gguf()}, plain=frozenset({"a-F32.gguf"}))
    (quant,) = Hub().quants("acme/Plain-GGUF")
    assert quant.files[0].sha256 is None
    assert Hub().header(quant.files[0]).architecture == "llama"
    server.add("acme/Evil-GGUF", {"evil-Q4_0.gguf": tiny_gguf()[:16] + b"\xff" * 8 + bytes(40)})
    (quant,) = Hub().quants("acme/Evil-GGUF")
    with pytest.raises(ModelFileError, match=r"evil-Q4_0.gguf.*claims"):
        Hub().header(quant.files[0])


def test_a_gated_one_says_where_to_accept(server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server.add("meta/Gated-GGUF", {"a-Q8_0.gguf": tiny_gguf()}, gated="manual")
    (quant,) = Hub().quants("meta/Gated-GGUF")
    error = failure(Hub().header, quant.files[0])
    assert "gated" in error.title and f"{server.endpoint}/meta/Gated-GGUF" in error.hint
    assert "hf auth login" in error.hint
    server.adopt(monkeypatch, tmp_path, TOKEN)
    error = failure(Hub().header, quant.files[0])
    assert "no access to it yet" in error.title and f"{server.endpoint}/meta/Gated-GGUF" in error.hint
    server.accepted = frozenset({TOKEN})
    assert Hub().header(quant.files[0]).architecture == "llama"


def test_the_token_goes_to_the_hub_alone(
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server.adopt(monkeypatch, tmp_path, TOKEN)
    server.next_page = f"{server.store}/blob/next?signature=1"  # a list that goes on at a stranger's
    with caplog.at_level(logging.DEBUG):
        assert "goes on elsewhere" in failure(Hub().search, "tiny", "downloads", 100).title
        server.next_page = ""
        Hub().search("tiny")
        Hub().header(Hub().quants(TINY)[0].files[0])
        Hub().card(TINY)
        server.extra_hop, server.fault = True, Fault("expired", 100_000, 1)
        assert Download(Hub(), Hub().quants(TINY)[0].files, tmp_path / "models", QUICK).run()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file())
    assert TOKEN.encode() not in kept
    hub = [seen for seen in server.seen if seen.host == "hub"]
    store = [seen for seen in server.seen if seen.host == "store"]
    assert store and not any("authorization" in seen.headers for seen in store)
    assert all(seen.headers["authorization"] == f"Bearer {TOKEN}" for seen in hub)
    assert not any("x-slipstream-endpoint" in seen.headers for seen in server.seen)
    assert {seen.headers["user-agent"] for seen in server.seen} == {"slipstream"}
    assert TOKEN not in caplog.text and TOKEN not in "".join(capfd.readouterr())
    assert caplog.text


def test_the_token_is_not_sent_unencrypted(server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server.adopt(monkeypatch, tmp_path, TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    assert TINY in [row.id for row in Hub().search("tiny")]
    assert server.seen[-1].proxied == "hub.invalid" and "authorization" not in server.seen[-1].headers


def test_no_proxy_is_honoured(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert Hub().search("tiny") and not server.seen[-1].proxied


def test_the_hub_says_what_refusals_mean(server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "has no repository nobody/none" in failure(Hub().quants, "nobody/none").title
    assert "hf auth login" in failure(Hub().quants, "nobody/none").hint
    assert "no such revision" in failure(Hub().quants, TINY, "v9").title
    missing = RemoteFile(TINY, "main", "gone-Q8_0.gguf", 100)
    assert "no file gone-Q8_0.gguf" in failure(Hub().header, missing).title
    server.refuse = (429, {"Retry-After": "17"})
    error = failure(Hub().search, "x")
    assert "too many requests (429)" in error.title and "17 s" in error.hint and "hf auth login" in error.hint
    server.refuse = (429, {"RateLimit": '"api";r=0;t=55'})
    assert "55 s" in failure(Hub().search, "x").hint
    server.refuse = (403, {"X-Error-Message": "Your plan ended. Renew it first."})
    assert failure(Hub().quants, TINY).title.endswith("(403): 'Your plan ended. Renew it first.'.")
    server.refuse = (400, {})
    assert "(400)" in failure(Hub().quants, TINY).title
    server.adopt(monkeypatch, tmp_path, TOKEN)
    server.refuse = (401, {})
    assert "does not accept the token" in failure(Hub().quants, TINY).title


def test_a_passing_failure_is_tried_again(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.models.hub.client._PAUSE_S", 0.001)
    server.refuse = (503, {})
    assert "failed (503)" in failure(Hub().search, "x").title
    assert len(server.seen) == 3


@pytest.mark.parametrize("answer", [b"<html>Log in first</html>", b"[1, 2]", b'[{"name": 1}]', b"{}", b'"x"', b"null"])
def test_a_mirror_that_answers_oddly(server: HubServer, answer: bytes) -> None:
    server.answer = answer
    if answer != b"{}":
        assert "something that is not a list of models" in failure(Hub().search, "x").title
    assert "something that is not a list of files" in failure(Hub().quants, TINY).title
    assert "HF_ENDPOINT" in failure(Hub().quants, TINY).hint


def test_a_mirror_that_leaves_things_out(server: HubServer) -> None:
    server.answer = json.dumps([{"id": TINY}, {"id": "gpt2"}, {"id": "../evil"}]).encode()
    (row,) = Hub().search("tiny")
    assert row.id == TINY and row.downloads == 0 and row.updated is None
    server.answer = json.dumps({"id": TINY, "siblings": [{"rfilename": "a.gguf"}]}).encode()
    assert "without their sizes" in failure(Hub().quants, TINY).title
    server.answer = json.dumps({"id": TINY, "siblings": []}).encode()
    assert "nothing to chat with" in failure(Hub().quants, TINY).title


def test_offline_is_said_at_once_and_opens_no_socket(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Hub().quants(TINY)[0].files[0]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = Hub()
    download = Download(hub, [file], Path("nowhere"))
    for call in (
        *(lambda: hub.search("x"), lambda: hub.quants(TINY), lambda: hub.card(TINY), lambda: hub.header(file)),
        download.run,
    ):
        with pytest.raises(OfflineError, match="offline mode is on"):
            call()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub = Hub()
    hub.offline = True  # the owner's own switch
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE"):
        hub.search("x")


@pytest.mark.parametrize("repo", ["tiny", "a/b/c", "../x", "a/..", "a/b c", "", "a/b\n"])
def test_a_name_that_is_no_repositorys(repo: str) -> None:
    with pytest.raises(UsageError, match="owner/name"):
        Hub().files(repo)


def test_a_search_is_one_request_and_tells_nothing_of_this_machine(server: HubServer) -> None:
    program = "from slipstream.models.hub.repositories import Hub; print(len(Hub().search('tiny')))"
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "0", "HF_HUB_DISABLE_UPDATE_CHECK": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1" and done.stderr == ""
    (seen,) = server.seen
    assert seen.headers["user-agent"] == "slipstream"


@pytest.mark.parametrize(
    ("address", "sees"),
    [
        ("https://huggingface.co/a/b", True), ("https://HUGGINGFACE.co:443/a", True),
        ("http://huggingface.co/a", False), ("https://huggingface.co:8443/a", False),
        ("https://cdn-lfs.huggingface.co/a", False), ("https://huggingface.co.evil.example/a", False),
        ("https://evil.example/https://huggingface.co", False), ("https://huggingface.co@evil.example/", False),
    ],
)  # fmt: skip
def test_who_may_see_the_token(address: str, sees: bool) -> None:
    assert may_see_token(address, "https://huggingface.co") is sees


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"), ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("gemma-4-E4B-it-qat-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"), ("Model.i1-IQ2_XS.gguf", "IQ2_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"), ("Model.fp16.gguf", "F16"), ("Q8_0/model.gguf", "Q8_0"),
        ("BF16/Model-BF16-00001-of-00002.gguf", "BF16"), ("Qwen3-4B.gguf", ""), ("Q4Kids-7B.gguf", ""),
    ],
)  # fmt: skip
def test_labels_as_people_write_them(name: str, label: str) -> None:
    assert label_of(name) == label


def quants(**sizes: int) -> dict[str, list[str]]:
    files = [RemoteFile("a/b", "c", name, size) for name, size in sizes.items()]
    return {quant.label: [file.name for file in quant.files] for quant in quants_of(files)}


def test_models_are_told_from_other_files_and_their_parts_counted() -> None:
    assert quants(**{"M-Q8_0-00001-of-00002.gguf": 1, "M-Q4_0.gguf": 1}) == {"Q4_0": ["M-Q4_0.gguf"]}
    names = ["mmproj-F16.gguf", "M.mmproj-f16.gguf", "imatrix.gguf", "M-imatrix.gguf", "M-lora-f16.gguf", "M.bin"]
    assert quants(**dict.fromkeys(names, 1)) == {}
    made_with_one = {"Q4_K_M": ["M-Imatrix-Q4_K_M.gguf"], "IQ4_XS": ["M.IQ4_XS.gguf"], "BF16": ["M-imatrix-BF16.gguf"]}
    assert quants(**{name: 1 for (name,) in made_with_one.values()}) == made_with_one
    found = quants(
        **{"M-Q8_0.gguf": 9, "other/M-long-Q8_0.gguf": 8, "mtp-M-Q8_0.gguf": 1, "MTP/M-Q8_0.gguf": 1, "M.gguf": 7}
    )
    assert found == {
        "M": ["M.gguf"], "M-long-Q8_0": ["other/M-long-Q8_0.gguf"], "Q8_0": ["M-Q8_0.gguf"],
        "M-Q8_0": ["MTP/M-Q8_0.gguf"], "mtp-M-Q8_0": ["mtp-M-Q8_0.gguf"],
    }  # fmt: skip


def test_the_best_projector_of_the_first_folder_comes_along_with_models() -> None:
    names = ["M-Q8_0.gguf", "mtp-M.gguf", "mmproj-M-f32.gguf", "mmproj-M-BF16.gguf", "old/mmproj-M-f16.gguf"]
    files = [RemoteFile("a/b", "main", name, 1) for name in names]
    model, heads = quants_of(files)
    assert model.projector and model.projector.name == "mmproj-M-BF16.gguf" and heads.projector is None
    assert model.size == 1
    assert quants_of([*files, RemoteFile("a/b", "main", "M.mmproj-F16.gguf", 1)])[0].projector == RemoteFile(
        "a/b", "main", "M.mmproj-F16.gguf", 1
    )


@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        *(("MTP/mtp-M-Q4_0.gguf", True), ("Qwen3-4B-DFlash.Q8_0.gguf", True), ("eagle3_draft_f16.gguf", True)),
        *(("Qwen3.6-27B-MTP-Q4_0.gguf", False), ("Eagle-7B-Q4_0.gguf", False), ("Smol-Q8_0.gguf", False)),
    ],
)
def test_what_only_drafts_says_so_and_a_model_is_a_model(name: str, drafts: bool) -> None:
    (quant,) = quants_of([RemoteFile("a/b", "c", name, 1)])
    assert quant.drafts == drafts
