"""A reply that was stopped goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.chats.history import history
from slipstream.app.chats.recording import recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.loading import load
from slipstream.app.engine.protocol import Loaded
from slipstream.app.engine.requests import Generate, Message, Sampling
from slipstream.app.engine.session import Session
from slipstream.app.model_choice import choose
from slipstream.app.paths import HOME_VARIABLE, Paths

ASKED = "Tell me a story about a small fox."


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Loaded]]:
    home = tmp_path_factory.mktemp("home")
    session, loaded = load(choose(Paths.default({HOME_VARIABLE: str(home)})), lambda share: None)
    yield session, loaded
    session.close()


def after(count: int) -> Callable[[], bool]:
    """Says stop once it was asked so often."""
    asked = iter(range(count))
    return lambda: next(asked, None) is None


@pytest.mark.parametrize("drafter", ["none", "lookup", "draft"])
@pytest.mark.parametrize(
    "sampling", [Sampling(0.0, seed=1), Sampling(0.9, seed=5, repetition_penalty=1.2, presence_penalty=0.3)]
)
def test_the_joined_text_is_that_of_one_piece(
    bundled: tuple[Session, Loaded], drafter: str, sampling: Sampling
) -> None:
    session, _ = bundled
    ask = Generate(1, [Message("user", ASKED)], sampling, drafter, max_tokens=60)
    whole = session.reply(ask, lambda event: None, lambda: False)
    text, tokens = "", list[int]()
    for stop in (4, 9, 10**6):
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
