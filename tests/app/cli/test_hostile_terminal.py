"""Attacks in every place where text from elsewhere is printed, on a real terminal: nothing of them comes through."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.app.hostile import PAYLOADS, leaks, on_a_terminal, text
from tests.app.terminal import ROOT, Terminal, gone
from tests.models.hub_models import tiny_gguf

from slipstream.app.chats.store import ChatStore

pytestmark = pytest.mark.program

COMMANDS = """
import os, sys
from slipstream.app.cli import main as cli, run_output
from slipstream.app.protocol.events import Piece, Stepped
from slipstream.app.speed import Speed
from slipstream.models.errors import HubError
from tests.app.hostile import PAYLOADS

harmless = sys.argv[1] == "harmless"
payloads = ["AB"] if harmless else PAYLOADS

def call(*words):
    try:
        cli.main(words)
    except SystemExit:
        pass

def step(text):
    return Stepped(1, [Piece(text, "plain")], [1], "none", 0, 0, 1.0, Speed())

def fails(arguments):
    raise HubError(*arguments)

right, home = cli.run_command, os.environ["SLIPSTREAM_HOME"]
os.environ["SLIPSTREAM_HOME"] = f"{home}/empty"  # quicker where nothing is kept
for number, payload in enumerate(payloads):
    printer = run_output.AnswerPrinter()
    for character in f"stpQ{number:02d} {payload} ":
        run_output.print_step(step(character), False, printer)
    run_output.print_step(step(f"jsnQ{number:02d} {payload}"), True, printer)
    call("chats", "import", f"filQ{number:02d}{payload}.json")
    call("chats", "show", f"idyQ{number:02d}{payload}")
    call(f"argQ{number:02d}{payload}")
    cli.run_command = fails
    call(f"titQ{number:02d}{payload}", f"hntQ{number:02d}{payload}")
    cli.run_command = right
os.environ["SLIPSTREAM_HOME"] = home
call("chats", "list")
call("chats", "list", "--json")
call("chats", "search", "word")
call("chats", "search", "word", "--json")
call("chats", "export")
call("models", "list")
call("models", "list", "--json")
"""


STARTS = """
import sys, time
from pathlib import Path
from tests.app.hostile import on_a_terminal
from tests.app.terminal import Terminal

SLEEPS = f"import os, time; open({sys.argv[1]!r}, 'w').write(str(os.getpid())); time.sleep(600)"
if sys.argv[2] == "hostile":
    on_a_terminal(SLEEPS, home=Path("/nowhere"))
else:
    Terminal(sys.executable, "-c", SLEEPS, home=Path("/nowhere")).until(lambda: False, 600)
"""


def marked(place: str, number: int, harmless: bool) -> str:
    return f"{place}Q{number:02d} word {'AB' if harmless else PAYLOADS[number]}"


def keep(home: Path, harmless: bool) -> None:
    store = ChatStore(home / "chats.db")
    (home / "models").mkdir()
    for number in range(1 if harmless else len(PAYLOADS)):
        chat = store.create().id
        store.add_user(chat, marked("qst", number, harmless))
        reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
        store.finish_reply(reply.id, text=marked("rpl", number, harmless), tokens=[1])
        store.rename(chat, marked("ttl", number, harmless)[:200])
        name = marked("mdl", number, harmless).replace("/", "").encode("utf-8", "surrogateescape").decode()[:60]
        (home / "models" / f"{name}.gguf").write_bytes(tiny_gguf())
    store.close()


def missing(sent: bytes, places: tuple[str, ...]) -> list[str]:
    shown = text(sent)
    return [f"{place}Q{n:02d}" for place in places for n in range(len(PAYLOADS)) if f"{place}Q{n:02d}" not in shown]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_check_sees_a_leak(payload: str) -> None:
    assert leaks(f"text {payload} text".encode(), b"text \x1b[1m\x1b[5;5H")
    assert not leaks("text ␛[2J, שלום 👩‍👩‍👧 é\r\n\x1b[38;2;9;9;9m\x1b[6;6H".encode(), b"text \x1b[1m\x1b[5;5H")


@pytest.mark.slow
def test_the_commands_print_only_text(tmp_path: Path) -> None:
    sent = {}
    for kind in ("harmless", "hostile"):
        home = tmp_path / kind
        home.mkdir()
        keep(home, kind == "harmless")
        sent[kind] = on_a_terminal(COMMANDS, kind, home=home)
    assert leaks(sent["hostile"], sent["harmless"]) == []
    assert missing(sent["hostile"], ("stp", "jsn", "fil", "idy", "arg", "tit", "hnt", "ttl", "qst", "rpl", "mdl")) == []


@pytest.mark.parametrize("how", ["hostile", "emulated"])
def test_a_program_dies_with_the_test_that_started_it(how: str, tmp_path: Path) -> None:
    number = tmp_path / "number"
    test = subprocess.Popen([sys.executable, "-c", STARTS, str(number), how], cwd=ROOT)
    while not (number.exists() and number.read_text()):
        assert test.poll() is None
    os.kill(test.pid, signal.SIGKILL)
    test.wait()
    assert gone(int(number.read_text()))


@pytest.mark.parametrize(
    "spoils",
    [
        r"print('\x1b[?1049h', end='')", r"print('\x1b[?1003h', end='')", r"print('\x1b[?2004h', end='')",
        r"print('\x1b[?25l', end='')", r"print('\x1b[?7l', end='')", r"print('\x1b[>25u', end='')",
        r"print('\x1b[<u', end='')", "import tty; tty.setraw(0)",
    ],
)  # fmt: skip
def test_what_a_program_leaves_behind_is_seen(spoils: str, tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", spoils, home=tmp_path) as terminal:
        assert terminal.ended() == 0 and not terminal.as_before
