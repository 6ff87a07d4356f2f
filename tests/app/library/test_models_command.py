"""``slipstream models`` on a hub of the tests' own: find, fetch, pause, kill, resume, check, chat, remove, undo."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.app.commands import Command, commands
from tests.app.library.test_manager import larger
from tests.app.terminal import Terminal
from tests.models.hub_models import split_gguf, tiny_gguf
from tests.models.hub_server import HostileHub, HubServer, raw
from tests.models.kinds import write_kind
from tests.models.library.test_store_places import in_lm_studio, in_ollama, tree

from slipstream.app.cli.streams import notice_if_slow
from slipstream.app.library.load_request import make_usual
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.models.errors import ModelFileError, UsageError
from slipstream.models.llama.devices import Device

REPO = "acme/Tiny-GGUF"
PADDING = 3 << 20  # bytes behind the last tensor of a larger file, so that a transfer can be stopped amid it
COLUMNS = 44
Run = Callable[..., Terminal]
OWN = (
    '[[pair]]\nmethod = "draft"\ntarget = { model = "Large", repo = "acme/Large-GGUF" }\n'
    'drafter = { model = "Small", repo = "acme/Small-GGUF", file = "Small-Q8_0.gguf" }\n'
)
GUARD = """
import os, socket
with open(os.environ["SLIPSTREAM_GUARDED"], "a") as file:
    file.write(f"{os.getpid()}\\n")
def refuse(*_, **__):
    raise AssertionError("a socket was opened")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as hub:
        hub.add(
            REPO,
            {
                "Tiny-Q8_0.gguf": tiny_gguf(q8_0=True),
                "Tiny-F32.gguf": tiny_gguf(),
                "Tiny-Q4_K_M.gguf": tiny_gguf("qwen3") + bytes(PADDING),
                "Tiny.imatrix.gguf": tiny_gguf(),
                **{f"BF16/{name}": content for name, content in split_gguf("Tiny-BF16").items()},
            },
            downloads=5,
            gguf={"total": 30_000, "architecture": "llama", "context_length": 2048},
        )
        hub.add("acme/Small-GGUF", {"Small-Q8_0.gguf": tiny_gguf(seed=2, q8_0=True)}, downloads=1)
        hub.adopt(monkeypatch, home)
        yield hub


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys, "models")


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slipstream.app.cli.main", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def held(server: HubServer, process: subprocess.Popen[str], home: Path) -> None:
    while not any(path.stat().st_size for path in (home / "home" / "models").rglob("*.part*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def paired(server: HubServer, home: Path) -> None:
    """A model on the hub that the owner's catalogue has a drafter for."""
    server.add("acme/Large-GGUF", {"Large-Q8_0.gguf": larger(home) + bytes(PADDING)})
    own = home / "home" / "catalog.toml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(OWN)


def at_home(home: Path) -> Path:
    path = home / "home" / "models" / "acme" / "Tiny" / "Tiny-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_gguf())
    return path


def listed(command: Command) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in json.loads(command("list", "--json").out)["models"]}


@pytest.mark.slow
def test_a_model_is_found_fetched_checked_used_and_removed(server: HubServer, command: Command, home: Path) -> None:
    found = command("search", "tiny")
    assert found.code == 0 and REPO in found.out and "30k" in found.out
    quants = command("search", REPO).out
    assert "best here" in quants and "Q4_K_M" in quants and "BF16" in quants and "in memory" in quants
    pulled = command("pull", f"{REPO}:q8_0")
    assert pulled.code == 0, pulled.err
    assert "tiny:Q8_0 is here" in pulled.out and "slipstream -m tiny:Q8_0" in pulled.out
    path = home / "home" / "models" / "acme" / "Tiny-GGUF" / "Tiny-Q8_0.gguf"
    assert path.read_bytes() == tiny_gguf(q8_0=True) and len(server.bodies()) > 0
    make_usual(Paths.default(), "tiny:Q8_0")
    row = next(line for line in command("list").out.split("\n") if line.startswith("tiny:Q8_0"))
    assert row.endswith("slipstream  chosen") and listed(command)["tiny:Q8_0"]["repo"] == REPO
    again, before = command("pull", f"{REPO}:Q8_0"), len(server.bodies())
    assert again.code == 0 and "is here already" in again.err and len(server.bodies()) == before
    assert command("verify", "tiny").out == "tiny:Q8_0: OK, every byte as published.\n"
    chat = started("run", "-m", "tiny", "-p", "the a of", "--max-tokens", "4", "--chat", "sea", "--json")
    out, err = chat.communicate()
    assert chat.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["tokens"] == 4
    refused = command("rm", "tiny")
    assert refused.code == 2 and "--yes" in refused.err and "“sea”" in refused.err
    removed = command("rm", "tiny", "--yes")
    assert removed.code == 0 and "slipstream models undo" in removed.out and "frees" in removed.err
    assert not path.exists() and "tiny:Q8_0" not in listed(command)
    assert command("undo").out == "tiny:Q8_0 is back.\n" and path.read_bytes() == tiny_gguf(q8_0=True)
    assert "is gone; 82 kB freed" in command("rm", "tiny", "--yes", "--now").out and command("undo").code == 2
    assert not list((home / "home" / "models").rglob("*.gguf"))


@pytest.mark.slow
def test_a_killed_fetch_goes_on_where_it_was(server: HubServer, home: Path, command: Command) -> None:
    server.hold_after(1 << 20)
    process = started("models", "pull", f"{REPO}:Q4_K_M")
    held(server, process, home)
    process.kill()
    process.communicate()
    server.hold_after(None)
    assert "tiny:Q4_K_M" not in listed(command) and "Unfinished" in command("list").out
    assert command("pull", f"{REPO}:Q4_K_M", "--json").code == 0
    assert "Unfinished" not in command("list").out
    assert listed(command)["tiny:Q4_K_M"]["problem"] == "" and not command("verify", "tiny").code


@pytest.mark.slow
def test_a_split_model_is_one_and_a_changed_byte_is_found(server: HubServer, command: Command) -> None:
    assert command("pull", f"{REPO}:BF16").code == 0
    model = listed(command)["tiny:BF16"]
    assert len(model["files"]) == 2 and command("verify").code == 0
    last = Path(model["files"][1])
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    wrong = command("verify", "--json")
    assert wrong.code == 1 and "its bytes have changed" in json.loads(wrong.out)[0]["problem"]


@pytest.mark.slow
def test_the_drafter_comes_along_and_is_chosen_by_default(server: HubServer, command: Command, home: Path) -> None:
    paired(server, home)
    assert "your own" in command("pairs").out
    alone = command("pull", "acme/Large-GGUF")
    assert alone.code == 0 and "slipstream models pull acme/Small-GGUF:Q8_0" in alone.err
    assert "to fetch" in command("pairs", "large").out
    both = command("pull", "large", "--with-drafter")  # by its name in the catalogue
    assert both.code == 0 and "small:Q8_0 is here" in both.out
    pairs = json.loads(command("pairs", "large", "--json").out)
    assert pairs[0]["name"] == "small:Q8_0" and pairs[0]["source"] == "catalogue" and pairs[0]["why_not"] == ""
    load = choose(Paths.default(), "large")
    assert load.drafter == "auto" and load.draft_model and load.draft_model.endswith("Small-Q8_0.gguf")
    assert choose(Paths.default(), "large", drafter="lookup").draft_model is None
    assert choose(Paths.default(), "small").draft_model is None  # the larger one cannot draft for it


def test_what_is_too_big_needs_force(server: HubServer, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slipstream.app.library.manager.devices", lambda: [Device("CPU", "cpu", "Tiny", 1 << 20, 1 << 19)]
    )
    refused = command("pull", f"{REPO}:Q8_0")
    assert refused.code == 1 and "too big for this machine" in refused.err and "--force" in refused.err
    assert "Tiny-GGUF:Q8_0 is too big" in command("pull", REPO).err  # the smallest, where none fits
    assert command("pull", f"{REPO}:Q8_0", "--force").code == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("pull", "acme/None-GGUF"), 1, "acme/None-GGUF"),
        (("pull", f"{REPO}:Q3_K_S"), 2, "It has"),
        (("pull", f"{REPO}/Other.gguf"), 2, "has no file"),
        (("pull", "qwen9-1000b"), 2, "there is no repository"),
        (("pull", "acme/Tiny-GGUF/README.md"), 2, "names no model file"),
        (("rm", "nothing", "--yes"), 2, "there is no model named 'nothing'"),
        (("rm",), 2, "needs the name"),
        (("rm", "bundled", "--yes"), 2, "ships with slipstream"),
        (("verify", "nothing"), 2, "there is no model"),
        (("pairs", "nothing"), 2, "there is no model"),
        (("import", "/no/such.gguf"), 1, "no such file"),
        (("undo",), 2, "nothing to bring back"),
        (("dance",), 2, "no command models dance"),
    ],
)
def test_a_wrong_command_is_one_clear_line(
    server: HubServer, command: Command, words: tuple[str, ...], code: int, text: str
) -> None:
    said = command(*words)
    assert said.code == code and text in said.err and said.err.count("\n") == 1 and said.out == ""


@pytest.mark.parametrize("words", [("search", "tiny"), ("pull", "acme/Tiny-GGUF"), ("search", REPO)])
def test_a_hub_that_dribbles_is_said_at_once_and_given_up(
    server: HubServer, command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("slipstream.app.cli.models.notice_if_slow", partial(notice_if_slow, after=0.05))
    monkeypatch.setattr("slipstream.models.hub.client._PATIENCE_S", 0.5)
    with HostileHub() as hostile:
        monkeypatch.setenv("HF_ENDPOINT", hostile.endpoint)
        hostile.api = hostile.dribble(b"HTTP/1.1 200 X\r\n\r\n[")
        said = command(*words)
    waiting, error = said.err.splitlines()
    assert said.code == 1 and "answers too slowly" in error
    assert waiting.startswith("slipstream: waiting for 127.0.0.1:") and waiting.endswith("Ctrl-C stops")


def test_odd_facts_take_a_line_each(server: HubServer, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"downloads": 10**4000}, {"gguf": {"total": 10**400, "architecture": "a" * 10**5}}]
    rows += [{"lastModified": "9" * 5_000}, {"tags": ["license:" + "x" * 10**5, "license:\x9b31m"]}]
    with HostileHub() as hostile:
        monkeypatch.setenv("HF_ENDPOINT", hostile.endpoint)
        hostile.api = raw(200, json.dumps([{"id": f"a/b{n}", **row} for n, row in enumerate(rows)]).encode())
        said = command("search", "x")
    assert said.code == 0 and said.out.count("\n") == 1 + len(rows) and len(said.out) < 2_000


def test_a_model_that_the_machine_can_never_hold_is_not_imported(
    server: HubServer, command: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "own.gguf"
    path.write_bytes(tiny_gguf())
    monkeypatch.setattr("slipstream.app.library.manager.memory", lambda: (200_000, 100_000))
    gpu = Device("GPU0", "gpu", "a GPU", 50_000, 50_000)
    cpu = Device("CPU", "cpu", "a processor", 200_000, 100_000)
    monkeypatch.setattr("slipstream.app.library.manager.devices", lambda: [gpu, cpu])
    said = command("import", str(path))
    assert said.code == 1 and "needs 270 kB of memory, and this machine has 250 kB" in said.err
    assert not (home / "home" / "models" / "local").exists()
    monkeypatch.setattr("slipstream.app.library.manager.devices", lambda: [gpu, gpu, cpu])
    assert command("import", str(path)).code == 0


def test_a_broken_catalogue_is_named_with_its_line_and_the_rest_counts(command: Command, home: Path) -> None:
    own = home / "home" / "catalog.toml"
    own.parent.mkdir()
    own.write_text('[[pair]]\nmethod = "draft"\ntarget = { model = "A" }\n\nspeed = 3\n')
    said = command("pairs")
    assert said.code == 0 and "catalog.toml, line 5" in said.err and "Qwen3-8B" in said.out


@pytest.mark.slow
def test_models_of_other_programs_are_used_in_place_and_never_removed(command: Command, home: Path) -> None:
    in_lm_studio(home)
    in_ollama(home)
    before = tree(home)
    names = listed(command)
    assert names["tiny:Q8_0"]["origin"] == "lmstudio" and names["tiny:1m"]["origin"] == "ollama"
    assert "LM Studio" in command("list").out
    refused = command("rm", "tiny:1m", "--yes")
    assert refused.code == 2 and "ollama rm" in refused.err
    load = choose(Paths.default(), "tiny:1m")
    assert "/.ollama/models/blobs/sha256-" in load.model
    reply = started("run", "-m", "tiny:1m", "-p", "the", "--max-tokens", "2")
    assert reply.wait() == 0, reply.communicate()[1]
    after = {path: kept for path, kept in tree(home).items() if not path.startswith("home/")}
    assert after == before


def test_a_file_is_imported_by_link_and_by_copy(command: Command, home: Path) -> None:
    source = home / "Mine-Q8_0.gguf"
    source.write_bytes(tiny_gguf())
    said = command("import", str(source))
    assert said.code == 0 and "slipstream -m mine:Q8_0" in said.out
    model = Path(listed(command)["mine:Q8_0"]["path"])
    assert os.path.samefile(model, source) and command("import", str(source)).code == 2
    assert "frees nothing" in command("rm", "mine", "--yes").err
    assert source.exists() and command("import", str(source), "--copy").code == 0
    assert not os.path.samefile(model, source) and "OK" in command("verify", "mine").out


def test_names_that_fit_several_models_or_no_model_to_chat_with_are_refused(home: Path) -> None:
    models = home / "home" / "models" / "acme" / "Tiny"
    models.mkdir(parents=True)
    (models / "Tiny-F32.gguf").write_bytes(tiny_gguf())
    (models / "Tiny-Q8_0.gguf").write_bytes(tiny_gguf(q8_0=True))
    (models / "mtp-Tiny.gguf").write_bytes(tiny_gguf("qwen3"))
    (models / "broken.gguf").write_bytes(b"nothing")
    paths = Paths.default()
    with pytest.raises(UsageError, match="may mean 2 models"):
        choose(paths, "tiny")
    assert Path(choose(paths, "TINY:f32").model).name == "Tiny-F32.gguf"
    assert Path(choose(paths, "acme/Tiny:Q8_0").model).name == "Tiny-Q8_0.gguf"
    with pytest.raises(ModelFileError, match="only draft"):
        choose(paths, "mtp-tiny")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        choose(paths, "broken")
    with pytest.raises(UsageError, match="no model named 'other'"):
        choose(paths, "other")
    write_kind(models / "Stateful-F32.gguf", "mamba2")
    assert choose(paths, "stateful").draft_model is None  # nothing can draft for it
    assert choose(paths, "tiny:F32", "tiny:Q8_0").draft_model == str(models / "Tiny-Q8_0.gguf")


def test_with_models_here_nothing_opens_a_socket(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(home)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    assert command("list") == command()
    assert command("list").code == 0 and command("verify").code == 0 and command("pairs").code == 0
    assert command("pairs", "tiny").code == 0
    assert command("rm", "tiny", "--yes").code == 0 and command("undo").code == 0
    assert choose(Paths.default(), "tiny").draft_model is None


@pytest.mark.slow
def test_with_models_here_a_reply_opens_no_socket_in_any_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(home)
    (home / "guard").mkdir()
    (home / "guard" / "sitecustomize.py").write_text(GUARD)
    monkeypatch.setenv("PYTHONPATH", str(home / "guard"))
    monkeypatch.setenv("SLIPSTREAM_GUARDED", str(home / "guarded"))
    process = started("run", "-m", "tiny", "-p", "the", "--max-tokens", "2")
    assert process.wait() == 0, process.communicate()[1]
    assert len(set((home / "guarded").read_text().split())) >= 2  # the command and its engine


@pytest.fixture
def run(home: Path) -> Run:
    program = (sys.executable, "-m", "slipstream.app.cli.main", "models")
    return lambda *words: Terminal(*program, *words, home=home / "home", size=(COLUMNS, 20))


@pytest.mark.slow
def test_a_fetch_shows_how_far_it_is_pauses_at_ctrl_c_and_asks_for_the_drafter(
    server: HubServer, run: Run, home: Path
) -> None:
    paired(server, home)
    server.hold_after(1 << 20)
    with run("pull", "acme/Large-GGUF") as terminal:
        terminal.shows("Q8_0: 1.0 MB of ")
        terminal.type("\x03")
        assert terminal.ended() == 130
        shown = terminal.sent.decode()
    assert "paused at" in shown and "models pull acme/Large-GGUF" in shown
    lines = shown.replace("^C", "").replace("\r", "\n").split("\n")
    assert max(len(line) for line in lines if line.startswith("Q8_0: ")) < COLUMNS
    server.hang_up()  # else what was held back counts as sent, to a reader that has left
    sent = server.sent
    server.hold_after(None)
    with run("pull", "acme/Large-GGUF") as terminal:
        terminal.shows("[Y/n]")
        terminal.type("\r")
        assert terminal.ended() == 0
        shown = terminal.sent.decode()
    small = len(tiny_gguf(seed=2, q8_0=True))
    assert server.sent - sent < PADDING + small  # what came before the pause was not fetched again
    assert "large:Q8_0 is here" in shown and "small:Q8_0 is here" in shown and "Traceback" not in shown


@pytest.mark.program
def test_removing_asks_and_keeps_what_is_not_confirmed(run: Run, home: Path) -> None:
    path = at_home(home)
    for typed, code, words in (("\r", 1, b"not removed"), ("y\r", 0, b"models undo")):
        assert path.exists()
        with run("rm", "tiny") as terminal:
            terminal.shows("[y/N]")
            terminal.type(typed)
            assert terminal.ended() == code and words in terminal.sent
    assert not path.exists()
