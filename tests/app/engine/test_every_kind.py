"""Every kind of model: with every method the text of plain decoding, with every type of KV cache a text, or why not."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from tests.app.engine.forced import Forced, check_same, write
from tests.models.kinds import CHAINS, KINDS, PLAIN, TREES, write_kind

from slipstream.app.engine import plan
from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import AUTO, Generate, Load, Message, Sampling
from slipstream.drafters import registry
from slipstream.drafters.base import Plain
from slipstream.drafters.resources import Resources
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.errors import UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import PACKED, KvType, Token

OPTIONS: Final = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1)
PROMPT: Final = [1, *range(60, 80), *range(60, 75), *range(200, 230), *range(60, 68)]
SIZE: Final = 96
SAMPLERS: Final = [Sampler(temperature=0.0), Sampler(temperature=0.5, seed=1, repetition_penalty=1.1)]
# methods that serve every kind of target that can take back a token
ALWAYS: Final = {"none", "lookup", "recycle", "lookahead", "draft"}
SAMPLINGS: Final = [Sampling(0.0), Sampling(0.8, seed=1), Sampling(0.8, seed=2)]
COPYING: Final = ["lookup", "recycle", "retrieval", "lookahead"]
NAMES: Final = [*COPYING, "draft", "lookup+recycle", "lookup|retrieval", "draft|lookup+lookahead", AUTO]
FIRST: Final = "that is it, and that is the one, and that is it"


@dataclass
class Made:
    kind: str
    model: LlamaModel
    target: LlamaTarget
    parts: Resources


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    with ExitStack() as opened:
        model = opened.enter_context(closing(LlamaModel(write_kind(folder / "target.gguf", kind))))
        small = opened.enter_context(closing(LlamaModel(write_kind(folder / "draft.gguf", kind, blur=0.03))))
        target = opened.enter_context(closing(LlamaTarget(model, OPTIONS)))
        draft_model = opened.enter_context(closing(LlamaTarget(small, OPTIONS)))
        yield Made(kind, model, target, Resources(target.abilities, draft_model, llama=target, header=model.header))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["greedy", "drawn"])
def test_every_method_writes_the_plain_text_or_says_why_not(made: Made, sampler: Sampler) -> None:
    plain, _ = write(made.target, Plain(), sampler, PROMPT, SIZE)
    served = set[str]()
    for name in registry.METHODS:
        if reason := registry.why_not(name, made.parts):
            with pytest.raises(UsageError) as refused:
                registry.make(name, made.parts)
            assert reason in refused.value.title and "none" in refused.value.hint
            continue
        served.add(name)
        with closing(registry.make(name, made.parts)) as drafter:
            text, _ = write(made.target, drafter, sampler, PROMPT, SIZE)
            check_same(made.target, sampler, PROMPT, plain, text)
    assert served >= (ALWAYS if made.kind not in PLAIN else {"none"})
    assert made.kind not in PLAIN or served == {"none"}


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=["greedy", "drawn"])
def test_forced_drafts_of_every_shape_leave_the_text_alone(made: Made, sampler: Sampler, right: float) -> None:
    plain, _ = write(made.target, Plain(), sampler, PROMPT, SIZE)
    for depth, width in ((1, 1), (8, 1), (3, 4)):
        forced = Forced(plain, made.target.abilities, right, depth, width)
        text, steps = write(made.target, forced, sampler, PROMPT, SIZE)
        check_same(made.target, sampler, PROMPT, plain, text)
        if made.kind in PLAIN:
            assert not any(len(step.draft.tree) for step in steps)
        elif text == plain:
            assert all(len(step.path) == depth for step in steps[:-1]) or right < 1
            assert right > 0 or not any(step.path for step in steps) or width > 1


CACHED: Final = (*TREES, *CHAINS)
KV_TYPES: Final[tuple[KvType, ...]] = ("f16", "q8_0", "q4_0")
WIDTHS: Final = (16, 32)  # of a head; a packed cache has blocks of 32 numbers
NARROW: Final = "lfm2"  # a kind whose heads are 8 wide, whatever is asked for

Written = Mapping[tuple[str, int], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("kinds")
    return {(k, w): write_kind(folder / f"{k}-{w}.gguf", k, head=w) for k, w in product(CACHED, WIDTHS)}


@pytest.mark.parametrize("scores", [False, True], ids=["flash", "scores"])
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", CACHED)
def test_it_writes_or_says_why_not(
    written: Written, monkeypatch: pytest.MonkeyPatch, kind: str, width: int, kv_type: KvType, scores: bool
) -> None:
    monkeypatch.setattr(plan, "_writes_scores", lambda *_: scores)
    request = Load(str(written[kind, width]), kv_type=kv_type, n_ctx=512)
    if kv_type in PACKED and (width % 32 or kind == NARROW):
        with pytest.raises(UsageError, match=f"KV cache of {kv_type}: .* multiple of 32") as refused:
            load(request, lambda _: None)
        assert "--kv-type" in refused.value.hint
        return
    session, _ = load(request, lambda _: None)
    with closing(session):
        asked = [
            Generate(1, [Message("user", "to be or not to be")], Sampling(0.0), name, max_tokens=16)
            for name in ("none", "lookup")
        ]
        replies = [session.reply(each, lambda _: None, lambda: False) for each in asked]
        assert replies[0].speed.tokens and replies[0].text == replies[1].text


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
