"""Recurrent and hybrid targets in a whole engine: any drafter writes the chat of plain decoding, rewinds included."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.app.engine.forced import check_same
from tests.models.kinds import CHAINS, PLAIN, write_kind

from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import AUTO, Generate, Load, Message, Sampling
from slipstream.drafters import registry
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.errors import UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.types import Token

SAMPLINGS: Final = [Sampling(0.0), Sampling(0.8, seed=1), Sampling(0.8, seed=2)]
COPYING: Final = ["lookup", "recycle", "retrieval", "lookahead"]
NAMES: Final = [*COPYING, "draft", "lookup+recycle", "lookup|retrieval", "draft|lookup+lookahead", AUTO]
FIRST: Final = "that is it, and that is the one, and that is it"
SIZE: Final = 96


@pytest.fixture(params=[*CHAINS, *PLAIN])
def request_of(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """A model of a kind, a draft model that often agrees with it, and indexed text that it often writes again."""
    kind = request.param
    path = write_kind(tmp_path / f"{kind}.gguf", kind)
    small = write_kind(tmp_path / "draft.gguf", kind, blur=0.03)
    index = tmp_path / "index"
    return Load(str(path), str(small), n_ctx=1024, kv_type="f32", threads=1, index=str(index))


@dataclass
class Reply:
    messages: list[Message]
    tokens: list[Token]  # all of them: those of ``Done`` may end before an incomplete character
    done: Done

    @property
    def accepted(self) -> int:
        return sum(figures["accepted"] for figures in self.done.by_drafter.values())


def reply(session: Session, drafter: str, sampling: Sampling, messages: list[Message]) -> Reply:
    tokens = list[Token]()

    def emit(event: Prefilling | Stepped) -> None:
        tokens.extend(event.tokens if isinstance(event, Stepped) else ())

    request = Generate(1, messages, sampling, drafter, max_tokens=SIZE)
    done = session.reply(request, emit, lambda: False)
    return Reply(messages, tokens, done)


def chat_of(session: Session, drafter: str, sampling: Sampling) -> Iterator[Reply]:
    """Two turns, then the first question anew and its answer again: the cache is cut far back."""
    first = [Message("user", FIRST)]
    begun = reply(session, drafter, sampling, first)
    yield begun
    said = Message("assistant", begun.done.text, begun.done.tokens)
    yield reply(session, drafter, sampling, [*first, said, Message("user", "and the other?")])
    yield reply(session, drafter, sampling, first)
    yield reply(session, drafter, sampling, [Message("user", "one was the other")])


@pytest.mark.slow
def test_every_drafter_writes_the_chat_of_plain_decoding(request_of: Load) -> None:
    kind = Path(request_of.model).stem
    plain_session, _ = load(request_of, lambda _: None)
    plain = {at: list(chat_of(plain_session, "none", sampling)) for at, sampling in enumerate(SAMPLINGS)}
    header = read_header(Path(request_of.model))
    plain_session.close()
    with closing(open_index(Path(request_of.index or ""), header)) as index:
        index.add([TextPiece(str(at), each.tokens) for at, chat in plain.items() for each in chat])
    session, loaded = load(request_of, lambda _: None)
    with closing(session):
        offered = {offer.name: offer.why_not for offer in loaded.drafters if offer.name in {*COPYING, "draft"}}
        if kind in PLAIN:
            assert all("take back tokens" in why for why in offered.values())
        else:
            assert not any(offered.values())
        for name in NAMES:
            if kind in PLAIN and name != AUTO:
                with pytest.raises(UsageError, match="take back tokens"):
                    session.drafters.get(name)
                continue
            accepted, drafted = 0, list[int]()
            for at, sampling in enumerate(SAMPLINGS):
                for found, wanted in zip(chat_of(session, name, sampling), plain[at], strict=True):
                    accepted += found.accepted
                    drafted += [v["drafted"] for v in found.done.by_drafter.values()]
                    if found.tokens != wanted.tokens:
                        prompt, sampler = session.prompt(found.messages), session.model.sampler(sampling)
                        check_same(session.target, sampler, prompt, wanted.tokens, found.tokens)
                        break  # the next turn goes on after other words
            assert name == AUTO or sum(drafted) > 0, f"{name} never drafted"
            assert accepted or not {"retrieval", "draft"} & set(registry.parts_of(name)), f"{name} was never right"


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chat_without_a_drafter_keeps_no_copies_and_goes_on_with_one(tmp_path: Path, kind: str) -> None:
    request = Load(str(write_kind(tmp_path / "model.gguf", kind)), n_ctx=512, kv_type="f32", threads=1)
    session, loaded = load(request, lambda _: None)
    with closing(session):
        assert {offer.name for offer in loaded.drafters if offer.usable} >= {"none", "lookup", "recycle"}
        plain = reply(session, "none", SAMPLINGS[0], [Message("user", FIRST)])
        drafted = reply(session, "lookup", SAMPLINGS[0], [Message("user", FIRST)])
        assert drafted.tokens == plain.tokens and drafted.done.by_drafter
        assert drafted.done.prefilled_tokens <= 1, "the cache was lost when the copies came"
