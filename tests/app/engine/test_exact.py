"""Drafts that are forced on a reply, right, wrong, or past its end, leave its text alone (the strict classes)."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from tests.app.engine.forced import Endless, Forced, write
from tests.models.requantize import requantize

from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Done, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters import registry
from slipstream.drafters.base import Plain
from slipstream.drafters.resources import Resources
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Token

BUNDLED: Final = Path(__file__).parents[3] / "models" / "bundled"
STORY: Final = "Tell me a story about a small fox."
SAMPLINGS: Final = [
    Sampling(0.0),
    Sampling(0.2, repetition_penalty=1.2, seed=1),
    Sampling(0.8, seed=2),
    Sampling(1.5, presence_penalty=0.5, seed=3),
]
DEPTH: Final = 5


@dataclass(frozen=True)
class Reply:
    done: Done  # how it ended
    tokens: list[Token]  # its tokens, the end token too
    cached: list[Token]  # the target's tokens afterwards
    accepted: list[int]  # drafted tokens that each step accepted

    def same(self, other: "Reply") -> bool:
        return (self.done.text, self.done.tokens, self.done.reason, self.tokens, self.cached) == (
            other.done.text, other.done.tokens, other.done.reason, other.tokens, other.cached,
        )  # fmt: skip


def reply(session: Session, request: Generate, forced: Forced | None = None) -> Reply:
    steps = list[Stepped]()
    if forced:
        session.drafters.put("forced", forced)
    request = replace(request, drafter="forced" if forced else "none")
    done = session.reply(
        request, lambda event: steps.append(event) if isinstance(event, Stepped) else None, lambda: False
    )
    tokens = [token for step in steps for token in step.tokens]
    speed = done.speed
    assert sum(step.drafted for step in steps) == speed.drafted
    assert sum(step.accepted for step in steps) == speed.accepted
    return Reply(done, tokens, list(session.target.tokens), [step.accepted for step in steps if step.tokens])


def open_session(n_ctx: int = 0) -> Session:
    session, _ = load(Load(str(BUNDLED / "slipstream-mini-q8_0.gguf"), n_ctx=n_ctx, exact="always"), lambda _: None)
    return session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened = open_session()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def small_session() -> Iterator[Session]:
    """A context that a reply fills."""
    opened = open_session(n_ctx=96)
    opened.model.vocabulary = Endless(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: f"t{sampling.temperature}")
def test_drafts_that_are_right_or_wrong_change_nothing(session: Session, sampling: Sampling) -> None:
    request = Generate(1, [Message("user", STORY)], sampling, max_tokens=128)
    plain = reply(session, request)
    for right in (0.0, 0.5, 1.0):
        for width in (1, 3):
            forced = Forced(plain.tokens, session.target.abilities, right, DEPTH, width)
            drafted = reply(session, request, forced)
            assert drafted.same(plain), f"right {right}, {width} leaves"
            speed = drafted.done.speed
            if width == 1:
                assert (right or speed.accepted == 0) and (right < 1 or min(drafted.accepted[:-1]) == DEPTH)
            assert (0 < speed.accepted < speed.drafted) or right in (0.0, 1.0)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("end", ["end of text", "stop string", "full context"])
def test_a_reply_ends_where_it_should_at_each_place_of_an_accepted_run(
    session: Session, small_session: Session, end: str, width: int
) -> None:
    request = Generate(1, [Message("user", STORY)], Sampling(0.8), max_tokens=0)
    if end == "full context":
        session = small_session
    plain = reply(session, request)
    seed = 0
    while end == "end of text" and not (plain.done.reason == "stop" and 2 * DEPTH < len(plain.tokens) < 100):
        seed += 1
        assert seed < 50, "no reply ends by itself"
        request = replace(request, sampling=Sampling(0.8, seed=seed))
        plain = reply(session, request)
    if end == "stop string":
        request = replace(request, stop=[plain.done.text[60:67]])  # of several tokens, and inside some
        plain = reply(session, request)
        assert not plain.done.text.endswith(request.stop[0]) and len(plain.tokens) > 2 * DEPTH
    assert plain.done.reason == ("context" if end == "full context" else "stop")
    places = set[int]()
    for skip in range(DEPTH + 1):
        drafted = reply(session, request, Forced(plain.tokens, session.target.abilities, 1.0, DEPTH, width, skip))
        assert drafted.same(plain), f"first draft after {skip} tokens"
        places.add(drafted.accepted[-1])
    assert len(places) == DEPTH + 1 or (end == "full context" and len(places) > 2)  # drafts shrink with the room


def test_the_turn_after_a_reply_that_ended_in_a_draft_is_the_same_too(session: Session) -> None:
    request = Generate(1, [Message("user", STORY)], Sampling(0.2), max_tokens=40)
    replies = list[tuple[Reply, Reply]]()
    for right in (None, 1.0, 0.5):
        forced = None if right is None else Forced(replies[0][0].tokens, session.target.abilities, right, 7, 3)
        first = reply(session, request, forced)
        said = [*request.messages, Message("assistant", first.done.text, first.done.tokens), Message("user", "Then?")]
        replies.append((first, reply(session, replace(request, messages=said))))
    plain = replies[0]
    for drafted in replies[1:]:
        assert drafted[0].same(plain[0]) and drafted[1].same(plain[1])
        new = drafted[1].done.prefilled_tokens - plain[1].done.prefilled_tokens
        assert 0 <= new <= 7  # a branch that was not first in its batch waits to be read again


@pytest.mark.slow
def test_f32_weights_without_flash_attention_give_the_same_text_in_any_layout(tmp_path: Path) -> None:
    """The second strict class: nothing is read again, whichever branch wins."""
    requantize(BUNDLED / "slipstream-mini-q8_0.gguf", tmp_path / "mini-f32.gguf", "f32")
    options = ContextOptions(n_ctx=512, kv="f32", flash=False)
    with (
        closing(LlamaModel(tmp_path / "mini-f32.gguf")) as model,
        closing(LlamaModel(BUNDLED / "slipstream-mini-draft-q8_0.gguf")) as small,
        closing(LlamaTarget(model, options)) as target,
        closing(LlamaTarget(small, options)) as draft_model,
    ):
        parts = Resources(target.abilities, draft_model, llama=target)
        names = [name for name in registry.METHODS if name != Plain.name and not registry.why_not(name, parts)]
        assert len(names) >= 4
        prompt = model.tokenize(f"<|im_start|>user\n{STORY}<|im_end|>\n<|im_start|>assistant\n", True)
        for sampler in (Sampler(temperature=0.0), Sampler(seed=5), Sampler(temperature=1.5, repetition_penalty=1.2)):
            plain, _ = write(target, Plain(), sampler, prompt, 64)
            for right in (0.0, 0.5, 1.0):
                text, _ = write(target, Forced(plain, target.abilities, right, DEPTH, 3), sampler, prompt, 64)
                assert text == plain, right
            for name in names:
                with closing(registry.make(name, parts)) as drafter:
                    assert write(target, drafter, sampler, prompt, 64)[0] == plain, name
