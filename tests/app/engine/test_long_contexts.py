"""Contexts beyond the trained one: scaled only there, the same in all contexts of a model, and the text stays exact."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.app.engine.forced import write
from tests.drafters.mtp_file import TOKENS, write_mtp
from tests.models.kinds import CHAINS, TREES, write_kind
from tests.models.memory.needs import need

from slipstream.app.engine import plan
from slipstream.app.engine.devices import find
from slipstream.app.engine.load import load
from slipstream.app.engine.plan import fitted
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.drafters.base import Plain
from slipstream.drafters.feature_drafter import open_mtp
from slipstream.models.errors import UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.rope import RopeScaling
from slipstream.models.library.catalog import Catalog, CatalogContext
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler

TRAINED: Final = 256
YARN: Final = {
    "context_length": TRAINED,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": TRAINED,
}
LONG: Final = "to be or not to be " * 20  # tokens of bytes: far beyond the trained context


def asked(prompt: str, drafter: str, temperature: float, size: int = 48) -> Generate:
    return Generate(1, [Message("user", prompt)], Sampling(temperature, seed=5), drafter, max_tokens=size)


def reply(session: Session, *asks: Any) -> Done:
    return session.reply(asked(*asks), lambda _: None, lambda: False)


def test_scaling_is_switched_on_beyond_the_trained_context_alone(tmp_path: Path) -> None:
    request = Load(str(write_kind(tmp_path / "m.gguf", "qwen3", more=YARN)))
    for n_ctx, found, words in ((0, TRAINED, ""), (TRAINED, TRAINED, ""), (TRAINED + 1, TRAINED + 1, "YaRN x4")):
        session, loaded = load(replace(request, n_ctx=n_ctx), lambda _: None)
        session.close()
        assert (loaded.n_ctx, loaded.rope) == (found, words)
        assert (loaded.n_ctx_trained, loaded.n_ctx_longest) == (TRAINED, 4 * TRAINED)


@pytest.mark.parametrize("more", [YARN, {"context_length": TRAINED}], ids=["scaled", "unscaled"])
def test_a_larger_context_than_the_model_can_have_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    path = write_kind(tmp_path / "m.gguf", "qwen3", more=more)
    most = f"{4 * TRAINED:,} at most, by YaRN x4 of the {TRAINED}" if more is YARN else f"{TRAINED} at most\\."
    with pytest.raises(UsageError, match=f"context of 1,025 tokens is too long for m: {most}") as refused:
        load(Load(str(path), n_ctx=4 * TRAINED + 1), lambda _: None)
    assert "--context" in refused.value.hint


def test_a_draft_model_goes_as_far_as_it_can(tmp_path: Path) -> None:
    """The memory is counted for the context that is opened, and the drafter drafts in it."""
    target = read_header(write_kind(tmp_path / "target.gguf", "qwen3", more=YARN))
    for name, keys, n_ctx in (("scaled", YARN, 1024), ("short", {"context_length": TRAINED}, TRAINED)):
        draft = read_header(write_kind(tmp_path / f"{name}.gguf", "qwen3", blur=0.03, more=keys))
        request = Load(str(target.path), str(draft.path), n_ctx=1024)
        chosen = fitted(request, target, draft, find(request))
        assert chosen.need.total == need(target, 1024).total + need(draft, n_ctx, leaves=4).total
        session, _ = load(request, lambda _: None)
        with closing(session):
            done = reply(session, LONG, "draft", 0.5)
            assert done.prompt_tokens > TRAINED and bool(done.speed.drafted) == (name == "scaled")


@pytest.mark.parametrize("kind", [*TREES, *CHAINS])
def test_every_drafter_writes_the_plain_text_in_a_scaled_context(tmp_path: Path, kind: str) -> None:
    path, small = (write_kind(tmp_path / f"{blur}.gguf", kind, blur=blur, more=YARN) for blur in (0.0, 0.03))
    session, loaded = load(Load(str(path), str(small), n_ctx=4 * TRAINED, threads=1), lambda _: None)
    with closing(session):
        assert loaded.rope == "YaRN x4"
        names = [offer.name for offer in loaded.drafters if offer.usable]
        assert {"none", "lookup", "recycle"} <= {*names}
        for temperature in (0.0, 0.5):
            plain = reply(session, LONG, "none", temperature)
            assert plain.prompt_tokens > TRAINED
            for name in names:
                assert reply(session, LONG, name, temperature).text == plain.text, name


@pytest.mark.slow
def test_all_heads_of_the_bundled_model_follow_its_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(choose(Paths.default({"SLIPSTREAM_HOME": str(tmp_path)})), states=None)
    header = read_header(Path(request.model))
    trained = header.n_ctx_train or 0
    published = CatalogContext((header.name,), RopeScaling("yarn", 4.0, trained))
    monkeypatch.setattr(plan, "catalog", lambda: Catalog((), contexts=(published,)))
    text = "Once upon a time there was a small fox who lived near the sea. " * (trained // 14)
    session, loaded = load(replace(request, n_ctx=2 * trained), lambda _: None)
    with closing(session):
        assert (loaded.n_ctx, loaded.rope) == (2 * trained, "YaRN x4")
        names = [offer.name for offer in loaded.drafters if offer.usable]
        assert {"draft", "medusa", "kangaroo", "space", "eagle3"} <= {*names}
        for prompt in ("Tell me a story about a small fox.", text):
            plain = reply(session, prompt, "none", 0.8)
            assert (plain.prompt_tokens > trained) == (prompt is text)
            for name in names:
                drafted = reply(session, prompt, name, 0.8)
                assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text), name


@pytest.mark.parametrize("architecture", ["glm4moe", "deepseek2"])
def test_mtp_layers_draft_as_well_in_a_scaled_context(tmp_path: Path, architecture: str) -> None:
    options = ContextOptions(
        n_ctx=512, kv="f32", flash=False, threads=1, max_leaves=4, rope=RopeScaling("yarn", 4.0, 128)
    )
    prompt = [3 + (7 * n) % (TOKENS - 3) for n in range(200)]
    path = write_mtp(tmp_path / "m.gguf", architecture)
    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, options)) as target:
        plain, _ = write(target, Plain(), Sampler(temperature=0.0), prompt, 40)
        with closing(open_mtp(target)) as drafter:
            text, steps = write(target, drafter, Sampler(temperature=0.0), prompt, 40)
        assert text == plain and sum(len(step.path) for step in steps) > 20
