"""An evening with the bundled model, on a real terminal: what is seen is what is kept, and what ``run`` says."""

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.app.bundled_program import PROGRAM, replies_of_run, words
from tests.app.terminal import Terminal
from tests.app.tui.endings import ENDINGS, LAUNCH, STATES, Ending, faults

from slipstream.app.chats.records import StoredMessage
from slipstream.app.chats.store import ChatStore

pytestmark = pytest.mark.program

FIRST, STORY, MORE = "Tell me about the sea.", "Tell me a long story about a fox and an owl.", " They are friends."
ALT_E = "\x1b[101;3u"
ALT_UP, LEFT, RIGHT, F5, CTRL_G, CTRL_Q = "\x1b[1;3A", "\x1b[D", "\x1b[C", "\x1b[15~", "\x07", "\x11"
ESC = "\x1b[27u"  # as a terminal sends it that was asked to tell it from the beginning of other keys

STARTING = """
import os, signal, sys
from pathlib import Path
from slipstream.app.tui.app import ChatApp
from tests.app.played_chat import main
mounted = ChatApp.on_mount
def on_mount(app):
    mounted(app)
    os.kill(os.getpid(), signal.SIGHUP)
ChatApp.on_mount = on_mount
sys.exit(main(Path(sys.argv[1])))
"""


class Person:
    def __init__(self, terminal: Terminal, store: ChatStore) -> None:
        self._terminal, self._store = terminal, store
        self._earlier: set[int] = set()

    @property
    def said(self) -> list[StoredMessage]:
        return [message for chat in self._store.list_chats() for message in self._store.messages(chat.id)]

    def type(self, *keys: str) -> None:
        for key in keys:
            self._terminal.type(key)

    def ask(self, text: str) -> None:
        self.type(text)
        self.sees(text)
        self._earlier = {message.id for message in self.said}
        self.type("\r")

    def sees(self, text: str) -> None:
        end = f" {' '.join(words(text)[-8:])} "
        self._terminal.until(lambda: end in f" {' '.join(words(self._terminal.shown))} ")

    def stops(self) -> StoredMessage:
        """Stops a reply while it is being written; a reply that is quicker than the key is asked for once more."""
        while True:
            self._terminal.until(lambda: "Esc stops" in self._terminal.shown or self._over)
            self.type(ESC)
            self._terminal.until(lambda: self._over)
            if self.said[-1].reason == "cancelled":
                self.sees(self.said[-1].content)
                return self.said[-1]
            self._earlier.add(self.said[-1].id)
            self.type(F5)

    @property
    def _over(self) -> bool:
        last = self.said[-1]
        return last.id not in self._earlier and bool(last.reason)

    def hears(self, question: str) -> str:
        def whole() -> bool:
            asked, reply = self.said[-2:] or (None, None)
            return bool(asked and reply and asked.content == question and reply.reason in ("stop", "length"))

        self._terminal.until(whole)
        self.sees(self.said[-1].content)
        return self.said[-1].content


@contextmanager
def at_a_chat(home: Path, *arguments: str) -> Iterator[Person]:
    with Terminal(*PROGRAM, *arguments, home=home, size=(100, 40)) as terminal:
        terminal.shows("╭", "╰")
        with closing(ChatStore(home / "chats.db")) as store:
            yield Person(terminal, store)
        terminal.type(CTRL_Q)
        assert terminal.ended() == 0 and terminal.as_before


@pytest.mark.slow
def test_type_stream_stop_edit_branch_quit_reopen(tmp_path: Path) -> None:
    home = tmp_path / "home"
    sea, friends = replies_of_run(tmp_path / "edited", FIRST, STORY + MORE)
    with at_a_chat(home) as person:
        person.ask(FIRST)
        assert person.hears(FIRST) == sea
        person.ask(STORY)
        stopped = person.stops()
        seed = stopped.seed
        assert seed is not None
        _, story = replies_of_run(tmp_path / "other", FIRST, STORY, last_seed=seed)
        assert story.startswith(stopped.content) and stopped.content != story
        person.type(CTRL_G)
        assert person.hears(STORY) == story
        person.type(ALT_UP, ALT_UP, "e")
        person.sees("Editing an earlier message")
        person.ask(MORE)
        assert person.hears(STORY + MORE) == friends
        person.type(ALT_UP, ALT_UP, LEFT)
        person.sees(story)
        assert [message.content for message in person.said] == [FIRST, sea, STORY, story]
        chat = person.said[0].chat
    with at_a_chat(home, "--chat", chat) as person:
        person.sees(story)
        person.type(ALT_UP, ALT_UP, RIGHT)
        person.sees(friends)
        assert [message.content for message in person.said] == [FIRST, sea, STORY + MORE, friends]


EDITOR = """
printf 'The editor asks: '
read line
sed -i "s/sea/$line sea/" "$1"
"""


def test_the_prompt_is_written_in_the_users_editor(tmp_path: Path) -> None:
    (tmp_path / "editor").write_text(EDITOR)
    with Terminal(*PROGRAM, home=tmp_path, more=[("VISUAL", f"sh {tmp_path / 'editor'}")]) as terminal:
        terminal.shows("╭", "╰")
        terminal.type("Tell me about the sea")
        terminal.shows("about the sea")
        terminal.type(ALT_E)
        terminal.shows("The editor asks:")
        assert "Tell me" not in terminal.shown  # the screen is the editor's
        terminal.type("wide\r")
        terminal.shows("Tell me about the wide sea")
        terminal.type(CTRL_Q)
        assert terminal.ended() == 0 and terminal.as_before


def test_an_editor_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with Terminal(*PROGRAM, home=tmp_path, size=(100, 40), more=[("VISUAL", "/no/such/editor")]) as terminal:
        terminal.shows("╭", "╰")
        terminal.type("Mine" + ALT_E)
        terminal.shows("The editor /no/such/editor cannot be used", "Mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "state"),
    [pytest.param(each, STATES[at % 3], id=f"{each.name}-{STATES[at % 3]}") for at, each in enumerate(ENDINGS[::2])],
)  # all of them in all states: tests.soak.signals
def test_the_terminal_is_as_it_was_and_the_text_is_kept(ending: Ending, state: str, tmp_path: Path) -> None:
    assert faults(ending, state, tmp_path) == []


def test_a_signal_before_the_first_frame_ends_the_chat_without_an_error(tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", LAUNCH, "-c", STARTING, str(tmp_path), home=tmp_path) as terminal:
        assert terminal.ended() == 128 + signal.SIGHUP and terminal.as_before
        assert b"NoMatches" not in terminal.sent and b"Traceback" not in terminal.sent
