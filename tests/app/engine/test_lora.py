"""A model with LoRA adapters: the text is the adapted model's own, whichever drafter; what is kept is kept apart."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from tests.app.engine.test_same_text_bundled import SERVED
from tests.models.lora_file import write_lora

from slipstream.app.bench.check import explain
from slipstream.app.bench.turns import BenchTurn
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.load import load
from slipstream.app.engine.plan import fitted
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done, Loaded
from slipstream.app.protocol.requests import AUTO, Generate, Load, Lora, Message, Sampling
from slipstream.models.gguf.lora import read_adapter
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.self_draft import cut_adapter, kept_cut
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel

DRAFTERS = [AUTO, *(name for name in SERVED if name != "none"), "lookup|draft"]
PROMPT = "Tell me a story about a small fox and the ten animals that it met. " + "Be kind to each of them. " * 6
WHOLE = gguf.GGMLQuantizationType.Q8_0
SAMPLINGS = [Sampling(0.0, seed=1), Sampling(0.8, seed=2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def plain_load(folder: Path) -> Load:
    return choose(Paths.default({HOME_VARIABLE: str(folder)}))


@pytest.fixture(scope="module")
def loras(folder: Path, plain_load: Load) -> list[Lora]:
    header = read_header(plain_load.model)
    one = write_lora(folder / "one.gguf", header, rank=32, kind=WHOLE, gain=0.1)
    two = write_lora(folder / "two.gguf", header, rank=32, kind=WHOLE, seed=2, gain=0.1, weights=("attn_k", "ffn_up"))
    return [Lora(str(one), 0.5), Lora(str(two))]


@pytest.fixture(scope="module")
def adapted(plain_load: Load, loras: list[Lora]) -> Iterator[tuple[Session, Loaded]]:
    session, loaded = load(replace(plain_load, lora=loras), lambda _: None)
    assert plain_load.chats
    with closing(ChatStore(Path(plain_load.chats))) as store:  # for retrieval
        for seed in range(4):
            chat, done = store.create().id, reply(session, "none", replace(SAMPLINGS[1], seed=seed))
            store.add_user(chat, PROMPT)
            kept = store.begin_reply(
                chat, model=loaded.title, fingerprint=loaded.fingerprint, drafter="none", seed=seed
            )
            store.finish_reply(kept.id, text=done.text, tokens=done.tokens)
        session.close()
    session, loaded = load(replace(plain_load, lora=loras), lambda _: None)
    yield session, loaded
    session.close()


def reply(session: Session, drafter: str, sampling: Sampling, state: Path | None = None) -> Done:
    request = Generate(1, [Message("user", PROMPT)], sampling, drafter, 64, state=str(state) if state else None)
    return session.reply(request, lambda _: None, lambda: False)


def test_its_adapters_are_named_with_their_scales(adapted: tuple[Session, Loaded]) -> None:
    _, loaded = adapted
    assert loaded.title == f"{loaded.name} + one ×0.5 + two"


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_writes_what_the_adapted_model_writes(adapted: tuple[Session, Loaded], name: str) -> None:
    session, loaded = adapted
    accepted = 0
    for sampling in SAMPLINGS:
        plain, drafted = reply(session, "none", sampling), reply(session, name, sampling)
        assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens), f"{name}, {sampling}"
        accepted += drafted.speed.accepted
    assert name in (AUTO, "space", "retrieval", "lookahead") or accepted, f"{name} was never right: this shows nothing"
    assert not loaded.failed


@pytest.mark.slow
def test_adapters_of_floats_promise_no_more_than_the_distribution(plain_load: Load, folder: Path) -> None:
    lora = Lora(str(write_lora(folder / "floats.gguf", read_header(plain_load.model), gain=0.1)))
    session, loaded = load(replace(plain_load, lora=[lora]), lambda _: None)
    assert loaded.promise == "same distribution"
    usable = [offer.name for offer in loaded.drafters if offer.usable and offer.name not in ("none", AUTO)]
    assert len(usable) > 5
    for sampling in SAMPLINGS:
        plain = reply(session, "none", sampling).tokens
        for name in usable:
            drafted = reply(session, name, sampling).tokens
            if drafted != plain:
                turn = BenchTurn("chat", 0, 0, (Message("user", PROMPT),), sampling, 64)
                assert explain(session, turn, plain, drafted).near_tie, name
    session.close()


def test_the_cut_of_kangaroo_is_changed_too(plain_load: Load, folder: Path) -> None:
    header = read_header(plain_load.model)
    heads = next(Path(head) for head in plain_load.heads if head.endswith("mini-kangaroo.gguf"))
    path = kept_cut(header.path, heads, folder)
    last = f"blk.{(header.n_layer or 0) - 1}.ffn_up.weight"
    early = write_lora(folder / "early.gguf", header, weights=("blk.0.attn_q.weight", "blk.0.ffn_up.weight", last))
    late = write_lora(folder / "late.gguf", header, weights=(last,))
    cut = read_header(path)
    assert cut_adapter(read_adapter(late, 1.0, header), cut, folder / "part.gguf") is None
    part = cut_adapter(read_adapter(early, 1.0, header), cut, folder / "part.gguf")
    assert part and len(part.header.tensors) == 4
    rows = []
    for adapters in ([], [part]):
        with closing(LlamaModel(path, adapters=adapters)) as model, closing(LlamaTarget(model)) as target:
            target.prefill([1, 50, 60])
            rows.append(target.evaluate(70).logits[0].copy())
    assert abs(rows[0] - rows[1]).max() > 0.1


@pytest.mark.slow
def test_a_kept_chat_is_reopened_with_its_adapters_alone(plain_load: Load, loras: list[Lora], folder: Path) -> None:
    state, request = folder / "chat.state", replace(plain_load, lora=loras)
    session, _ = load(request, lambda _: None)
    first = reply(session, AUTO, SAMPLINGS[1], state)
    session.close()
    assert state.exists()
    kept = state.read_bytes()
    for lora, known in ((loras, True), ([], False), ([replace(loras[0], scale=0.25), loras[1]], False)):
        state.write_bytes(kept)
        session, _ = load(replace(request, lora=lora), lambda _: None)
        done = reply(session, AUTO, SAMPLINGS[1], state)
        session.close()
        assert (done.prefilled_tokens < done.prompt_tokens) == known and (done.text == first.text) == known


def test_what_drafters_learn_is_kept_apart(plain_load: Load, loras: list[Lora], folder: Path) -> None:
    assert plain_load.derived
    derived = Path(plain_load.derived)
    fingerprint = read_header(plain_load.model).fingerprint[:16]
    session, _ = load(replace(plain_load, lora=[replace(loras[0], scale=0.75)]), lambda _: None)
    before = {path: path.read_bytes() for path in derived.glob(f"{fingerprint}.*")}
    reply(session, AUTO, SAMPLINGS[0])
    session.close()
    assert {path: path.read_bytes() for path in derived.glob(f"{fingerprint}.*")} == before


def test_a_draft_model_of_the_same_file_has_the_adapters_too(plain_load: Load, loras: list[Lora]) -> None:
    request = replace(plain_load, draft_model=plain_load.model, lora=loras, drafter="draft")
    session, _ = load(request, lambda _: None)
    for sampling in SAMPLINGS:
        plain, drafted = reply(session, "none", sampling), reply(session, "draft", sampling)
        assert drafted.text == plain.text and drafted.speed.acceptance and drafted.speed.acceptance > 0.8
    session.close()


def test_the_fit_counts_them(plain_load: Load, loras: list[Lora]) -> None:
    from slipstream.app.engine.devices import find

    header, found = read_header(plain_load.model), find(plain_load)
    own = fitted(plain_load, header, None, found).need.total
    with_them = fitted(replace(plain_load, lora=loras), header, None, found).need.total
    assert with_them - own == sum(Path(each.path).stat().st_size for each in loras)


def test_heads_beside_an_adapter_that_begin_with_its_name_are_used_with_it(plain_load: Load, tmp_path: Path) -> None:
    lora = Lora(str(write_lora(tmp_path / "own.gguf", read_header(plain_load.model), rank=32, kind=WHOLE, gain=0.1)))
    masks = next(Path(head) for head in plain_load.heads if head.endswith("mini-space.gguf"))
    shutil.copy(masks, tmp_path / "own-masks.gguf")
    for adapters, usable in (([lora], True), ([], False)):
        session, loaded = load(replace(plain_load, heads=[], lora=adapters), lambda _: None)
        assert {offer.name: offer.usable for offer in loaded.drafters}["space"] is usable
        session.close()
