"""A chat that is left is not read again, nor is a system prompt that another chat had; the text is the same."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.drafters.autopilot.virtual_time import Clock
from tests.models.fake_target import FakeTarget

from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.kv_cache_store import QUIET, WORTH, KvCacheStore
from slipstream.app.engine.load import load
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Message, Prepare, Sampling
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.resources import Resources
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Token

BUNDLED = replace(choose(Paths.default({})), derived=None, index=None, chats=None)
STORY = " ".join(f"On day {day} the fox met {day + 3} geese, and none of them was afraid of it." for day in range(20))
SYSTEM = " ".join(f"Rule {number}: be kind, and say no more than is asked." for number in range(20))
FEW = 24
DRAFTERS = ["none", "draft", "medusa", "eagle3", "lookup", "kangaroo", "space", "auto"]


class Letters:
    ends = frozenset[Token]()

    def piece(self, token: Token) -> bytes:
        return chr(97 + token % 26).encode()

    def tokenize(self, text: str, special: bool, written: object = (), *, joins: bool = False) -> list[Token]:
        return [ord(char) % 64 for char in text]


class Process:
    def __init__(self, folder: Path, limit: int = 1 << 30, key: str = "key", rewinds: bool = True) -> None:
        letters, self.target, plain = Letters(), FakeTarget(n_ctx=4096), PlainClock()
        self.target.abilities = replace(self.target.abilities, rewinds=rewinds)
        self.clock, self.folder = Clock(), folder
        self.keeper = KvCacheStore(self.target, key, limit, folder, self.clock)
        prompts = PromptBuilder(ChatTemplate(CHATML), letters.tokenize, [1])
        parts = Resources(self.target.abilities)
        drafters = Drafters(parts, self.target, 1.0, Profile(None, ""))
        self.session = Session(ChatModel(self.target, letters, prompts, plain), drafters, self.keeper)

    def reply(self, chat: str, *said: str, system: str = "") -> Done:
        messages = [Message("system", system)] if system else []
        messages += [Message("assistant" if at % 2 else "user", text) for at, text in enumerate(said)]
        state = str(self.folder / f"{chat}.state")
        request = Generate(1, messages, Sampling(0.9, seed=3), max_tokens=6, state=state)
        return self.session.reply(request, lambda event: None, lambda: False)


def test_a_chat_that_is_left_is_not_read_again(tmp_path: Path) -> None:
    one = Process(tmp_path)
    first = one.reply("a", STORY)
    assert first.prefilled_tokens == first.prompt_tokens
    assert not list(tmp_path.iterdir())
    one.reply("b", "Hi.")
    assert one.reply("a", STORY).prefilled_tokens < FEW  # in the same process
    one.session.close()
    assert {path.name for path in tmp_path.iterdir()} == {"a.state", "b.state"}
    again = Process(tmp_path)
    done = again.reply("a", STORY)
    assert done.text == first.text and done.prefilled_tokens < FEW
    again.session.close()


def test_it_is_kept_once_it_was_quiet_for_a_while_and_again_once_it_has_grown(tmp_path: Path) -> None:
    one = Process(tmp_path)
    assert one.session.due() is None
    one.reply("a", STORY)
    assert one.session.due() == QUIET
    one.clock.now += QUIET - 1
    one.session.idle()
    assert one.session.due() == 1.0 and not one.keeper._writing
    one.clock.now += 1
    one.session.idle()
    assert one.session.due() is None
    one.keeper.close()
    (kept,) = tmp_path.iterdir()
    size = kept.stat().st_size
    one.reply("a", STORY, "Well.", "z" * (WORTH + 9))  # a little more: large files are not written for it
    assert one.session.due() is None
    one.session.close()
    assert kept.stat().st_size > size  # at the end it is


@pytest.mark.parametrize("change", ["key", "damage", "folder", "off"])
def test_what_cannot_be_taken_is_read_again(tmp_path: Path, change: str) -> None:
    states = tmp_path / "states"
    one = Process(states)
    first = one.reply("a", STORY)
    one.session.close()
    state = states / "a.state"
    if change == "damage":
        raw = state.read_bytes()
        state.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif change == "folder":
        state.unlink()
        state.mkdir()
    again = Process(states, 0 if change == "off" else 1 << 30, "other" if change == "key" else "key")
    done = again.reply("a", STORY)
    assert done.text == first.text and done.prefilled_tokens == done.prompt_tokens
    again.session.close()
    assert state.exists()


def test_nothing_is_lost_where_nothing_can_be_written(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    one = Process(place)
    first = one.reply("a", STORY, system=SYSTEM)
    assert first.text and one.reply("b", STORY).text
    one.session.close()
    assert place.read_text() == "no folder"


def test_chats_with_the_same_system_prompt_begin_from_its_state(tmp_path: Path) -> None:
    one = Process(tmp_path)
    first = one.reply("a", STORY, system=SYSTEM)
    one.session.close()
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("+")]) == 1
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    alone = Process(tmp_path / "none").reply("b", "Something else.", system=SYSTEM)
    again = Process(tmp_path)
    done = again.reply("b", "Something else.", system=SYSTEM)
    assert done.text == alone.text
    assert done.prefilled_tokens < 60 < len(SYSTEM) < alone.prefilled_tokens
    assert again.reply("c", "Something else.", system="Not so. " + SYSTEM).prefilled_tokens > 200  # another one
    back = again.reply("a", STORY, system=SYSTEM)
    assert back.text == first.text and back.prefilled_tokens < FEW
    again.session.close()


def test_it_is_kept_when_it_is_read_while_the_first_message_is_typed(tmp_path: Path) -> None:
    one = Process(tmp_path)
    typed = Prepare([Message("system", SYSTEM), Message("user", "")])
    one.session.prepare(typed, lambda: False, lambda: False)
    one.session.close()
    assert len(list(tmp_path.iterdir())) == 1
    again = Process(tmp_path)
    decodes = again.target.decodes
    again.session.prepare(typed, lambda: False, lambda: False)
    assert again.target.tokens and again.target.decodes == decodes
    again.session.close()


def test_a_cache_that_cannot_be_rewound_takes_a_state_only_if_all_of_it_fits(tmp_path: Path) -> None:
    one = Process(tmp_path, rewinds=False)
    first = one.reply("a", STORY)
    reply = one.target.tokens[first.prompt_tokens :]
    one.session.close()
    again = Process(tmp_path, rewinds=False)
    assert again.reply("a", STORY).prefilled_tokens == first.prompt_tokens  # its reply would have to leave
    assert reply
    again.session.close()


# --- the bundled model --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def bundled(folder: Path) -> Iterator[tuple[Session, Session]]:
    """Two processes, as it were: one keeps no states, one does."""
    never, _ = load(replace(BUNDLED, states_limit=0), lambda share: None)
    keeps, _ = load(replace(BUNDLED, states=str(folder)), lambda share: None)
    with closing(never), closing(keeps):
        never.fix_threads()
        keeps.fix_threads()
        yield never, keeps


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_text_is_the_same_from_a_kept_state(bundled: tuple[Session, Session], folder: Path, drafter: str) -> None:
    def ask(session: Session, chat: str, *messages: Message) -> Done:
        state = str(folder / f"{chat}-{drafter}.state")
        request = Generate(1, list(messages), Sampling(0.9, seed=5), drafter, max_tokens=24, state=state)
        return session.reply(request, lambda event: None, lambda: False)

    never, keeps = bundled
    system, asked, more = Message("system", SYSTEM), Message("user", STORY), Message("user", "And what came then?")
    texts = []
    for session in (never, keeps):
        session.forget()
        first = ask(session, "a", system, asked)
        ask(session, "b", Message("user", "Another chat, short."))
        session.forget()
        said = Message("assistant", first.text, first.tokens)
        second = ask(session, "a", system, asked, said, more)
        ask(session, "b", Message("user", "Another chat, short."))
        session.forget()
        third = ask(session, "c", system, more)
        texts.append([first.text, second.text, third.text])
        if session is keeps:
            again = 128 if drafter == "eagle3" else 0  # which a kept state gives no hidden states of
            assert second.prefilled_tokens < 2 * FEW + again and third.prefilled_tokens < 2 * FEW + again
    assert texts[0] == texts[1]
    assert all(os.stat(path).st_mode & 0o777 == 0o600 for path in folder.iterdir())


@pytest.mark.parametrize("error", [MemoryError(), SlipstreamError("it cannot be packed.")])
def test_a_cache_that_cannot_be_copied_is_only_not_kept(tmp_path: Path, error: Exception) -> None:
    one = Process(tmp_path)
    first = one.reply("a", STORY)

    def refuses() -> bytearray:
        raise error

    one.target.save = refuses  # type: ignore[method-assign]
    assert one.reply("b", STORY, system=SYSTEM).text and one.reply("a", STORY).text == first.text
    one.session.close()
    assert not list(tmp_path.iterdir())
