"""A reply that was stopped goes on as if it had never stopped."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.chats.recording import history, recorded
from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.load import load
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done, Loaded, Piece, Stepped
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.app.speed import Speed
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError

ASKED = "Tell me a story about a small fox."


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Loaded]]:
    home = tmp_path_factory.mktemp("home")
    session, loaded = load(choose(Paths.default({HOME_VARIABLE: str(home)})), lambda share: None)
    yield session, loaded
    session.close()


def after(times: int) -> Callable[[], bool]:
    """Says stop once it was asked so often."""
    asked = iter(range(times))
    return lambda: next(asked, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "lookup", "draft"])
@pytest.mark.parametrize(
    "sampling", [Sampling(0.0, seed=1), Sampling(0.9, seed=5, repetition_penalty=1.2, presence_penalty=0.3)]
)
def test_a_joined_text_is_that_of_one_piece(bundled: tuple[Session, Loaded], drafter: str, sampling: Sampling) -> None:
    session, _ = bundled
    ask = Generate(1, [Message("user", ASKED)], sampling, drafter, max_tokens=60)
    whole = session.reply(ask, lambda event: None, lambda: False)
    text, tokens = "", list[int]()
    for stop in (2, 3, 10**6):  # a step with guesses writes up to nine tokens
        part = replace(ask, max_tokens=60 - len(tokens))
        if tokens:
            part = replace(part, messages=[*ask.messages, Message("assistant", text, tokens)])
        done = session.reply(part, lambda event: None, after(stop))
        text, tokens = text + done.text, tokens + done.tokens
    assert tokens == whole.tokens
    assert text == whole.text
    assert done.prompt_tokens > whole.prompt_tokens


def test_what_was_kept_goes_on_in_the_same_message(bundled: tuple[Session, Loaded], tmp_path: Path) -> None:
    session, loaded = bundled
    sampling = Sampling(0.8, seed=3)
    whole = session.reply(Generate(1, [Message("user", ASKED)], sampling, max_tokens=40), lambda event: None, after(99))
    store = ChatStore(tmp_path / "chats.db")
    chat = store.create().id
    store.add_user(chat, ASKED)
    reply = store.begin_reply(chat, model="m", fingerprint=loaded.fingerprint, drafter="none", seed=3)
    done = session.reply(Generate(1, history(store.messages(chat)[:1], "")), lambda event: None, after(0))
    list(recorded([replace(done, text="", tokens=[])], store, reply.id))  # stopped before the first word
    for stop in (6, 99):
        kept = store.messages(chat)[-1]
        assert kept.unfinished
        before = store.go_on(kept, model="m", fingerprint=loaded.fingerprint, drafter="draft")
        left = 40 - len(kept.tokens)
        ask = Generate(1, history(store.messages(chat), loaded.fingerprint), sampling, "draft", max_tokens=left)
        done = session.reply(ask, lambda event: None, after(stop))
        list(recorded([done], store, reply.id, before=before))
    kept = store.messages(chat)[-1]
    assert (kept.id, kept.content, kept.tokens, kept.status) == (reply.id, whole.text, whole.tokens, "done")
    assert kept.figures and kept.figures.speed.tokens == whole.speed.tokens
    store.close()


def words(text: str, special: bool, written: object = (), *, joins: bool = False) -> list[int]:
    return [ord(char) for char in text]


def test_a_reply_goes_on_with_the_turns_that_it_began_with() -> None:
    prompts = PromptBuilder(ChatTemplate(CHATML), words, [])
    old = [Message("user", "o" * 40), Message("assistant", "O" * 40)]
    asked = Message("user", "n" * 40)
    n_ctx = 400
    first = prompts.build([*old, asked], n_ctx)
    assert not first.dropped and len(first.tokens) < n_ctx - 100
    for size in (1, 100, n_ctx - len(first.tokens) - 1):
        more = prompts.build([*old, asked, Message("assistant", "", [7] * size)], n_ctx)
        assert more.tokens == first.tokens + [7] * size
        assert (more.trimmed, more.dropped) == (first.trimmed, 0)
    full = prompts.build([*old, asked, Message("assistant", "", [7] * (n_ctx - len(first.tokens)))], n_ctx)
    assert full.dropped == 2
    assert full.trimmed + len(full.tokens) == n_ctx, "the noise counts what left"
    alone = prompts.build([asked], n_ctx).tokens
    assert full.tokens[: len(alone)] == alone
    text = prompts.build([asked, Message("assistant", "half")], n_ctx)
    assert text.tokens == alone + words("half", False), "of another model: its text"
    with pytest.raises(ContextFullError):
        prompts.build([asked, Message("assistant", "", [7] * n_ctx)], n_ctx)


def step(text: str, token: int) -> Stepped:
    return Stepped(1, [Piece(text, "plain")], [token], "none", 0, 0, 100.0, Speed(tok_per_s=10.0, tokens=1, steps=1))


@pytest.mark.parametrize("error", [EngineDiedError("it died."), ContextFullError("too long."), None])
@pytest.mark.parametrize("begun", [False, True])
def test_what_there_was_stays_whatever_comes_next(tmp_path: Path, error: SlipstreamError | None, begun: bool) -> None:
    store = ChatStore(tmp_path / "chats.db")
    chat = store.create().id
    store.add_user(chat, "x")
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="draft", seed=1)
    first = Figures(Speed(tok_per_s=20.0, tokens=2, steps=1, drafted=2, accepted=1), prompt_tokens=9, ttft_ms=5.0)
    store.finish_reply(reply.id, text="ab", tokens=[1, 2], reason="cancelled", figures=first)
    before = store.go_on(store.messages(chat)[-1], model="m", fingerprint="f", drafter="draft")

    def events() -> Iterator[Stepped]:
        if begun:
            yield step("c", 3)
        if error:
            raise error

    try:
        list(recorded(events(), store, reply.id, before=before))
    except SlipstreamError as raised:
        assert raised is error
    kept = store.messages(chat)[-1]
    assert (kept.content, kept.tokens) == (("abc", [1, 2, 3]) if begun else ("ab", [1, 2]))
    assert kept.status == "interrupted" and kept.unfinished
    assert kept.figures and kept.figures.prompt_tokens == 9 and kept.figures.speed.tokens == 2 + begun
    assert kept.figures.speed.tok_per_s == pytest.approx(15.0 if begun else 20.0)
    store.close()


def test_tokens_of_another_model_are_not_mixed_in(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.db")
    chat = store.create().id
    store.add_user(chat, "x")
    reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
    store.finish_reply(reply.id, "interrupted", text="ab", tokens=[1, 2])
    before = store.go_on(store.messages(chat)[-1], model="n", fingerprint="g", drafter="none")
    done = Done(1, "stop", "c", [3], 9, 9, 0, 1.0, Speed(tokens=1))
    list(recorded([step("c", 3)], store, reply.id, before=before))  # it is stopped once more
    assert store.messages(chat)[-1].content == "abc" and store.messages(chat)[-1].tokens == []
    list(recorded([step("c", 3), done], store, reply.id, before=before))
    kept = store.messages(chat)[-1]
    assert (kept.content, kept.tokens, kept.model, kept.unfinished) == ("abc", [], "g", False)
    assert [(m.content, m.tokens) for m in history([kept], "g")] == [("abc", [])]
    store.close()
