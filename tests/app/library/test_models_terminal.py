"""``slipstream models`` on a terminal: it asks, shows how far it is, and takes Ctrl-C for a pause."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.app.library.test_manager import larger
from tests.app.terminal import Terminal
from tests.models.hub_models import tiny_gguf
from tests.models.hub_server import HubServer

pytestmark = pytest.mark.program

PADDING = 3 << 20
COLUMNS = 44
Run = Callable[..., Terminal]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / "home" / "catalog.toml"
    own.parent.mkdir()
    own.write_text(
        '[[pair]]\nmethod = "draft"\ntarget = { model = "Large", repo = "acme/Large-GGUF" }\n'
        'drafter = { model = "Small", repo = "acme/Small-GGUF", file = "Small-Q8_0.gguf" }\n'
    )
    with HubServer() as hub:
        hub.add("acme/Large-GGUF", {"Large-Q8_0.gguf": larger(tmp_path) + bytes(PADDING)})
        hub.add("acme/Small-GGUF", {"Small-Q8_0.gguf": tiny_gguf(seed=2, q8_0=True)})
        hub.adopt(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def run(tmp_path: Path) -> Run:
    program = (sys.executable, "-m", "slipstream.app.cli.main", "models")
    return lambda *words: Terminal(*program, *words, home=tmp_path / "home", size=(COLUMNS, 20))


@pytest.mark.slow
def test_a_fetch_shows_how_far_it_is_pauses_at_ctrl_c_and_asks_for_the_drafter(server: HubServer, run: Run) -> None:
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


def test_removing_asks_and_keeps_what_is_not_confirmed(server: HubServer, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "home" / "models" / "acme" / "Tiny" / "Tiny-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_gguf())
    for typed, code, words in (("\r", 1, b"not removed"), ("y\r", 0, b"models undo")):
        assert path.exists()
        with run("rm", "tiny") as terminal:
            terminal.shows("[y/N]")
            terminal.type(typed)
            assert terminal.ended() == code and words in terminal.sent
    assert not path.exists()
