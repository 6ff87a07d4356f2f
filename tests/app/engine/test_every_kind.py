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
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters import registry
from slipstream.drafters.base import Plain
from slipstream.drafters.resources import Resources
from slipstream.models.errors import UsageError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import PACKED, KvType

OPTIONS: Final = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1)
PROMPT: Final = [1, *range(60, 80), *range(60, 75), *range(200, 230), *range(60, 68)]
SIZE: Final = 96
SAMPLERS: Final = [Sampler(temperature=0.0), Sampler(temperature=0.5, seed=1, repetition_penalty=1.1)]
# methods that serve every kind of target that can take back a token
ALWAYS: Final = {"none", "lookup", "recycle", "lookahead", "draft"}


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
