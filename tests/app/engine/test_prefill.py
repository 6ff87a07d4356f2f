"""What is typed is read before it is sent, and the reply is the same for it."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.fake_target import FakeTarget

from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.load import load
from slipstream.app.engine.process.client import Engine
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Message, Prepare, Sampling
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.base import Needs, Plain
from slipstream.drafters.resources import Resources
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import ContextFullError, EngineDiedError
from slipstream.models.types import LAST_HIDDEN, Floats, History, Token, shared_prefix

BUNDLED = replace(choose(Paths.default({})), derived=None, index=None, chats=None)
EARLIER = [Message("user", "Tell me about the sea."), Message("assistant", "The sea is wide and blue.")]
STORY = " ".join(f"On day {day} the fox met {day + 3} geese, and none of them was afraid of it." for day in range(24))
FEW = 24  # tokens that may be left to be read after Enter: those that may join with later ones, and the template's end


def typings(text: str) -> list[str]:
    """A text in pieces, with edits in the middle and a wrong start, as it may be typed."""
    third = len(text) // 3
    wrong = text[: third // 2] + " WRONG " + text[third // 2 : 2 * third]
    return ["", "No, something else", text[:third], text[: third // 2], wrong, text[: 2 * third], text[:-3], text]


class Letters:
    """A vocabulary of letters, whose pairs join to tokens of their own as more is typed."""

    ends = frozenset[Token]()

    def piece(self, token: Token) -> bytes:
        return chr(97 + token % 26).encode()

    def tokenize(self, text: str, special: bool, written: object = (), *, joins: bool = False) -> list[Token]:
        return [sum(text[at : at + 3].encode()) % 64 for at in range(0, len(text), 3)]


@pytest.fixture
def fake() -> Session:
    letters, target, plain = Letters(), FakeTarget(n_ctx=2048), PlainClock()
    parts = Resources(target.abilities, FakeTarget(n_ctx=2048, blur=0.3))
    prompts = PromptBuilder(ChatTemplate(CHATML), letters.tokenize, [1])
    keeper = KvCacheStore(target, "fake", 1 << 30)
    drafters = Drafters(parts, target, 1.0, Profile(None, ""))
    return Session(ChatModel(target, letters, prompts, plain), drafters, keeper)


@pytest.fixture(scope="module")
def bundled() -> Iterator[Session]:
    session, _ = load(BUNDLED, lambda share: None)
    session.fix_threads()
    with closing(session):
        yield session


def reply(session: Session, request: Generate) -> tuple[Done, list[Token]]:
    tokens = list[Token]()
    done = session.reply(request, lambda event: tokens.extend(getattr(event, "tokens", [])), lambda: False)
    return done, tokens


def prepare(session: Session, text: str, drafter: str) -> None:
    session.prepare(Prepare([*EARLIER, Message("user", text)], drafter), lambda: False, lambda: False)


def ask(text: str, drafter: str, seed: int = 3) -> Generate:
    return Generate(1, [*EARLIER, Message("user", text)], Sampling(0.9, seed=seed), drafter, max_tokens=24)


@pytest.mark.parametrize("drafter", ["none", "draft", "medusa", "eagle3", "lookup", "kangaroo", "space", "auto"])
def test_with_the_bundled_model_the_reply_is_the_same_and_begins_sooner(bundled: Session, drafter: str) -> None:
    bundled.forget()
    without, tokens = reply(bundled, ask(STORY, drafter))
    assert without.prefilled_tokens == without.prompt_tokens > 400
    bundled.forget()
    for text in typings(STORY):
        prepare(bundled, text, drafter)
    done, same = reply(bundled, ask(STORY, drafter))
    assert (done.text, same) == (without.text, tokens)
    assert 0 < done.prefilled_tokens < FEW


class Listener(Plain):
    """Hears hidden states as a drafter does that reads the prompt with the target."""

    def __init__(self) -> None:
        self.needs = Needs(frozenset({LAST_HIDDEN}))
        self.heard = list[Token]()

    def begin(self, history: History) -> None:
        del self.heard[shared_prefix(self.heard, history.tokens) :]

    def known(self, history: History) -> int:
        return len(self.heard)

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        assert len(hidden[LAST_HIDDEN]) == len(tokens)
        self.heard += tokens


def test_a_drafter_hears_every_token_of_the_prompt_once(fake: Session) -> None:
    listener = Listener()
    fake.drafters.put("listener", listener)
    for text in typings(STORY):
        prepare(fake, text, "listener")
    reply(fake, ask(STORY, "listener"))
    prompt = fake.prompt(ask(STORY, "listener").messages)
    assert listener.heard == prompt[:-1]


def test_a_drafter_hears_the_end_of_a_prompt_that_was_read_without_it(fake: Session) -> None:
    listener = Listener()
    fake.drafters.put("listener", listener)
    reply(fake, ask(STORY, "none"))
    reply(fake, ask(STORY, "listener"))
    prompt = fake.prompt(ask(STORY, "listener").messages)
    assert len(prompt) > 300 and listener.heard == prompt[:-1][-128:]


def test_what_waits_ends_the_reading_after_a_chunk_which_is_kept(fake: Session) -> None:
    request = Prepare([Message("user", STORY)])
    fake.prepare(request, lambda: True, lambda: False)
    assert not fake.target.tokens
    answers = iter([False, True])
    fake.prepare(request, lambda: next(answers), lambda: False)
    assert len(fake.target.tokens) == 32
    fake.prepare(request, lambda: False, lambda: len(fake.target.tokens) >= 64)
    assert len(fake.target.tokens) == 64


def test_a_kept_state_is_taken_before_anything_is_read(fake: Session, tmp_path: Path) -> None:
    target = fake.target
    assert isinstance(target, FakeTarget)
    state = str(tmp_path / "a.state")
    fake.prepare(Prepare([*EARLIER, Message("user", STORY)], state=state), lambda: False, lambda: False)
    known = len(target.tokens)
    fake.prepare(Prepare([Message("user", "Another chat.")]), lambda: False, lambda: False)
    assert len(target.tokens) < known
    decodes = target.decodes
    request = Prepare([*EARLIER, Message("user", STORY + " And then it slept.")], state=state)
    fake.prepare(request, lambda: False, lambda: False)
    assert len(target.tokens) > known and target.decodes == decodes + 1


def test_the_oldest_turns_leave_as_they_will_for_the_reply(fake: Session) -> None:
    turns = [Message("system", "Be brief."), *[replace(each, tokens=[]) for each in EARLIER] * 60]
    request = Generate(1, [*turns, Message("user", STORY)], Sampling(seed=3), max_tokens=8)
    without = reply(fake, request)[0]
    assert without.dropped_messages
    fake.forget()
    fake.prepare(Prepare(request.messages), lambda: False, lambda: False)
    done = reply(fake, request)[0]
    assert done.text == without.text and 0 < done.prefilled_tokens < FEW


def test_a_cache_that_cannot_be_rewound_is_replaced_but_not_written_on(fake: Session) -> None:
    target = fake.target
    assert isinstance(target, FakeTarget)
    target.abilities = replace(target.abilities, rewinds=False)
    prepare(fake, "", "none")
    began = list(target.tokens)
    assert began
    prepare(fake, STORY, "none")
    assert list(target.tokens) == began
    reply(fake, ask(STORY, "none"))
    answered = list(target.tokens)
    prepare(fake, STORY + " more", "none")
    assert len(target.tokens) in (len(began), len(answered))
    fake.prepare(Prepare([Message("user", "Another chat")]), lambda: False, lambda: False)
    assert list(target.tokens) != answered


def test_what_does_not_fit_reads_no_more_than_the_context_holds(fake: Session) -> None:
    long = STORY * 6
    prepare(fake, long, "none")
    assert len(fake.target.tokens) < 2048
    with pytest.raises(ContextFullError):
        reply(fake, ask(long, "none"))
    assert reply(fake, ask(STORY, "none"))[0].text


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    one = Engine(tmp_path_factory.mktemp("logs") / "engine.log")
    one.load(BUNDLED)
    yield one
    one.close()


def done_of(engine: Engine, request: Generate) -> Done:
    (done,) = [event for event in engine.reply(request) if isinstance(event, Done)]
    return done


def numbered(number: int, text: str) -> Generate:
    return replace(ask(text, "draft"), request=number)


LONG = " ".join(f"In year {year} the fox met {year + 3} geese." for year in range(165))


def test_a_reply_that_is_asked_for_while_a_long_prompt_is_read_loses_nothing(engine: Engine) -> None:
    without = done_of(engine, numbered(1, LONG))
    assert without.prompt_tokens > 1800
    done_of(engine, numbered(2, "Something else"))
    engine.prepare(Prepare([*EARLIER, Message("user", LONG)], "draft"))
    again = done_of(engine, numbered(3, LONG))
    assert (again.text, again.tokens) == (without.text, without.tokens)
    done_of(engine, numbered(4, "Something else"))
    engine.prepare(Prepare([*EARLIER, Message("user", LONG)], "draft"))
    other = done_of(engine, numbered(5, "Something else"))
    assert other.text and other.prefilled_tokens < FEW + 16


def test_a_stop_while_a_prompt_is_read_is_harmless(engine: Engine) -> None:
    for number in range(6, 9):
        engine.prepare(Prepare([*EARLIER, Message("user", LONG + str(number))], "draft"))
        engine.stop(number)
        assert done_of(engine, numbered(number, "Hi")).reason == "cancelled"
    assert done_of(engine, numbered(9, "Hi")).text


def test_what_is_refused_is_silent(engine: Engine) -> None:
    for request in (
        Prepare([Message("user", "x")], "no such drafter"),
        Prepare([Message("user", "")]),
        Prepare([Message("user", LONG * 20)]),
        Prepare([Message("user", "x")], state="/no/such/file.state"),
    ):
        engine.prepare(request)
    assert done_of(engine, numbered(10, "Hi")).text


def test_an_engine_that_dies_while_it_reads_starts_again(engine: Engine) -> None:
    engine.prepare(Prepare([*EARLIER, Message("user", LONG)], "draft"))
    assert engine.process_id
    os.kill(engine.process_id, signal.SIGKILL)
    engine.prepare(Prepare([*EARLIER, Message("user", LONG)], "draft"))
    with pytest.raises(EngineDiedError):
        done_of(engine, numbered(11, "Hi"))
    engine.prepare(Prepare([Message("user", "Hi")]))
    engine.load(BUNDLED)
    engine.prepare(Prepare([Message("user", "Hi")]))
    assert done_of(engine, numbered(12, "Hi")).text
