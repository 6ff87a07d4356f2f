"""Calls with C++ names: found under any compiler's name, and missing ones take nothing else with them."""

from contextlib import closing
from types import SimpleNamespace

import pytest
from llama_cpp import llama_cpp as C

from slipstream.drafters import registry
from slipstream.drafters.registry import METHODS, why_not
from slipstream.drafters.resources import Resources
from slipstream.models.gguf.probe import SHIPPED
from slipstream.models.llama import hidden
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.hidden import SYMBOLS, find_symbols
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN


class Library:
    def __init__(self, *names: str) -> None:
        for name in names:
            setattr(self, name, SimpleNamespace())


def test_this_library_has_them_all() -> None:
    names = ("set_layer_input", "get_layer_input", "set_features", "get_features")
    assert SYMBOLS.lacking(*names) == ""
    assert find_symbols(C._lib) == SYMBOLS


@pytest.mark.parametrize(
    "name",
    [
        "llama_get_embeddings_nextn",
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ],
)
def test_each_compilers_name_is_found(name: str) -> None:
    found = find_symbols(Library(name))
    assert found.get_features is not None and len(found.get_features.argtypes) == 1
    assert found.lacking("get_features") == ""
    assert found.lacking("set_features", "get_features") == (
        "this build of llama.cpp does not export llama_set_embeddings_nextn"
    )


def test_methods_whose_calls_are_missing_say_so_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SHIPPED / "slipstream-mini-q8_0.gguf"
    with closing(LlamaModel(path)) as model:
        with closing(LlamaTarget(model, ContextOptions(n_ctx=256))) as target:
            before = {name: why_not(name, Resources(target.abilities, llama=target)) for name in METHODS}
        for module in (hidden, registry):
            monkeypatch.setattr(module, "SYMBOLS", find_symbols(Library()))
        with closing(LlamaTarget(model, ContextOptions(n_ctx=256))) as target:
            assert target.abilities.hidden == {LAST_HIDDEN}
            after = {name: why_not(name, Resources(target.abilities, llama=target)) for name in METHODS}
            target.prefill([1, 2, 3])
            assert target.evaluate(4).logits.shape == (1, model.n_vocab)
    changed = {name for name in METHODS if after[name] != before[name]}
    assert changed == {name for name in METHODS if METHODS[name].calls} >= {"eagle3", "mtp", "dflash"}
    assert all("this build of llama.cpp does not export llama_set_embeddings" in after[name] for name in changed)
