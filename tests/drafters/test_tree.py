"""The tree builder: any order in, one valid layout out."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.drafters.base import NO_DRAFT, Plain
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History


def test_a_chain_and_nothing() -> None:
    draft = chain_draft([5, 6, 7], [0.9, 0.8, 0.7], "lookup")
    assert draft.tree.tokens == (5, 6, 7) and draft.tree.parents == (ROOT, 0, 1)
    assert draft.probs == (0.9, 0.8, 0.7) and draft.sources == ("lookup",) * 3
    assert chain_draft([], [], "lookup") is NO_DRAFT
    assert TreeBuilder().build() is NO_DRAFT
    assert Plain().draft(History([1]), lambda path, depth: True, Sampler()) is NO_DRAFT


def test_best_path_first_and_probes_last() -> None:
    builder = TreeBuilder()
    mask = builder.add(ROOT, 99, 1.0, "space", probe=True)
    builder.add(mask, 98, 1.0, "space")
    low = builder.add(ROOT, 1, 0.2, "draft")
    high = builder.add(ROOT, 2, 0.7, "lookup")
    builder.add(low, 3, 0.9, "draft")
    builder.add(high, 97, 1.0, "space", probe=True)
    builder.add(high, 4, 0.1, "draft")
    builder.add(high, 5, 0.6, "draft")
    draft = builder.build()
    assert draft.tree.tokens == (2, 5, 4, 97, 1, 3, 99, 98)
    assert draft.tree.parents == (ROOT, 0, 0, 0, ROOT, 4, ROOT, 6)
    assert draft.tree.probes == {3, 6, 7}  # below a probe everything is one
    assert draft.probs == (0.7, 0.6, 0.1, 1.0, 0.2, 0.9, 1.0, 1.0)
    assert draft.sources == ("lookup", "draft", "draft", "space", "draft", "draft", "space", "space")
    assert builder.layout()[:2] == (high, 7)


def test_siblings_of_one_token_are_merged() -> None:
    builder = TreeBuilder()
    first = builder.add_path([1, 2], [0.3, 0.5], "draft")
    second = builder.add_path([1, 3], [0.6, 0.4], "lookup")
    third = builder.add_path([1, 2], [0.6, 0.5], "recycle")
    assert first[0] == second[0] and first == third
    assert len(builder) == 3
    draft = builder.build()
    assert draft.tree.tokens == (1, 2, 3) and draft.probs == (0.6, 0.5, 0.4)
    assert draft.sources == ("lookup", "draft", "lookup")  # the best, and of equals the first


def test_probes_are_never_merged() -> None:
    builder = TreeBuilder()
    handles = {builder.add(ROOT, 1, 0.5, "draft")}
    handles |= {builder.add(ROOT, 1, 1.0, "space", probe=True) for _ in range(2)}
    handles.add(builder.add(ROOT, 1, 0.4, "lookup"))
    assert len(handles) == 3
    assert builder.build().tree.probes == {1, 2}


def test_a_probe_that_comes_first_takes_in_no_guess_and_equal_siblings_keep_their_order() -> None:
    builder = TreeBuilder()
    probe = builder.add(ROOT, 1, 0.5, "space", probe=True)
    assert builder.add(ROOT, 1, 0.5, "draft") != probe
    draft = builder.build()
    assert draft.tree.tokens == (1, 1) and draft.tree.probes == {1}
    assert draft.tree.child(ROOT, 1) == 0 and draft.sources == ("draft", "space")
    builder = TreeBuilder()
    for token in (7, 3, 5):
        builder.add(ROOT, token, 0.25, "draft")
    assert builder.build().tree.tokens == (7, 3, 5)


@pytest.mark.parametrize("probs", [[0.5], [0.5, 0.5, 0.5]])
def test_a_path_needs_one_probability_a_token(probs: list[float]) -> None:
    with pytest.raises(ValueError, match="zip"):
        TreeBuilder().add_path([1, 2], probs, "draft")


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 4), st.floats(0, 1), st.booleans()), max_size=40))
@settings(max_examples=150, deadline=None)
def test_whatever_is_added_the_layout_is_valid(nodes: list[tuple[int, int, float, bool]]) -> None:
    builder = TreeBuilder()
    handles = [ROOT]
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for at, token, prob, probe in nodes:
        parent = handles[at % len(handles)]
        handle = builder.add(parent, token, prob, "test", probe=probe)
        paths[handle] = (*paths[parent], token)
        handles.append(handle)
    draft = builder.build()  # TokenTree itself refuses any other layout
    tree = draft.tree
    assert len(tree) == len(builder) == len(draft.probs) == len(draft.sources)
    built: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        built.append((*(built[parent] if parent != ROOT else ()), token))
    assert built == [paths[handle] for handle in builder.layout()]
    for parent in {ROOT, *tree.parents}:
        children = [n for n, p in enumerate(tree.parents) if p == parent and n not in tree.probes]
        assert len({tree.tokens[n] for n in children}) == len(children)
        ranked = [draft.probs[n] for n in children]
        assert ranked == sorted(ranked, reverse=True)
    assert all(math.isfinite(prob) for prob in draft.probs)
