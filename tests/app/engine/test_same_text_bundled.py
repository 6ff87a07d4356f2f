"""Token equality on the bundled pair as it ships: every drafter, four temperatures, twenty seeds (the strict class)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.loading import load
from slipstream.app.engine.measuring import SAME_DISTRIBUTION, SAME_TEXT, measure_promise
from slipstream.app.engine.protocol import Done, Generate, Loaded, Message, Sampling
from slipstream.app.engine.session import Session
from slipstream.app.model_choice import BUNDLED_TARGET, choose
from slipstream.app.paths import HOME_VARIABLE, Paths
from slipstream.drafters import registry
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.runtime.model import LlamaModel
from slipstream.models.runtime.options import ContextOptions

TEMPERATURES = [0.0, 0.2, 0.8, 1.5]
PROMPTS = [
    "Tell me about the sea",
    "Tell me a story about a small fox.",
    "Write a list of ten animals.",  # invites copying: each line begins like the last
]
SEEDS = range(20)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Loaded]]:
    home = tmp_path_factory.mktemp("home")
    request = choose(Paths.default({HOME_VARIABLE: str(home)}))
    with closing(ChatStore(home / "chats.db")) as store:
        session, loaded = load(request, lambda _: None)
        for prompt in PROMPTS:
            for seed in range(100, 106):
                keep_reply(store, loaded, prompt, reply(session, "none", prompt, 0.8, seed))
        session.close()  # which indexes what the target wrote
    session, loaded = load(request, lambda _: None)
    yield session, loaded
    session.close()


def keep_reply(store: ChatStore, loaded: Loaded, prompt: str, done: Done) -> None:
    chat = store.create().id
    store.add_user(chat, prompt)
    message = store.begin_reply(chat, model=loaded.name, fingerprint=loaded.fingerprint, drafter="none", seed=0)
    store.finish_reply(message.id, text=done.text, tokens=done.tokens)


def reply(session: Session, drafter: str, prompt: str, temperature: float, seed: int, size: int = 48) -> Done:
    sampling = Sampling(temperature=temperature, seed=seed)
    request = Generate(1, [Message("user", prompt)], sampling, drafter, max_tokens=size)
    return session.reply(request, lambda _: None, lambda: False)


def test_the_bundled_target_earns_its_promise() -> None:
    model = LlamaModel(Paths.default({}).bundled / BUNDLED_TARGET)
    strict = ContextOptions(n_ctx=1024, kv="q8_0", flash=True, same_text=True, threads=1)
    for options, promise in ((strict, SAME_TEXT), (replace(strict, same_text=False), SAME_DISTRIBUTION)):
        with closing(LlamaTarget(model, options)) as target:
            assert measure_promise(target, 1.0, seconds=60) == promise
            assert not target.tokens
    model.close()


def test_the_bundled_pair_offers_every_drafter(bundled: tuple[Session, Loaded]) -> None:
    _, loaded = bundled
    assert [offer.name for offer in loaded.drafters if offer.usable] == list(registry.METHODS)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_drafter_writes_what_plain_decoding_writes(bundled: tuple[Session, Loaded], temperature: float) -> None:
    session, _ = bundled
    accepted, rejected = Counter[str](), Counter[str]()
    for prompt in PROMPTS:
        for seed in SEEDS:
            plain = reply(session, "none", prompt, temperature, seed)
            for name in registry.METHODS:
                drafted = reply(session, name, prompt, temperature, seed)
                assert (drafted.text, drafted.tokens, drafted.reason) == (plain.text, plain.tokens, plain.reason), name
                accepted[name] += drafted.speed.accepted
                rejected[name] += drafted.speed.drafted - drafted.speed.accepted
                assert drafted.speed.steps > 2 or len(plain.tokens) < 8
    for name in registry.METHODS:
        if name != "none":
            assert accepted[name] > 0 and rejected[name] > 0, f"{name} was always right or always wrong"


def test_a_second_turn_reads_only_the_new_words(bundled: tuple[Session, Loaded]) -> None:
    session, _ = bundled
    first = reply(session, "draft", "Tell me about the sea", 0.8, 7)
    said = [Message("user", "Tell me about the sea"), Message("assistant", first.text, first.tokens)]
    again = Generate(2, [*said, Message("user", "And the moon?")], Sampling(seed=8), "lookup", max_tokens=20)
    second = session.reply(again, lambda _: None, lambda: False)
    new = second.prompt_tokens - first.prompt_tokens - len(first.tokens)
    assert 0 < new < 20 and second.prefilled_tokens <= new + 1


def test_the_context_fills_and_the_oldest_turns_leave(bundled: tuple[Session, Loaded]) -> None:
    session, loaded = bundled
    turns = [Message("system", "Be brief.")]
    while sum(len(message.content) for message in turns) < 5 * loaded.n_ctx:
        turns += [Message("user", "Tell me a story about a fox. " * 8), Message("assistant", "Once upon a time. " * 8)]
    done = session.reply(Generate(3, [*turns, Message("user", "Go on")], max_tokens=5), lambda _: None, lambda: False)
    assert done.dropped_messages > 0 and done.dropped_messages % 2 == 0
    assert done.prompt_tokens < loaded.n_ctx
