import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.models.types import ROOT, TokenTree, repeated_share, shared_prefix


def test_a_tree_knows_depths_leaves_and_children_empty_and_with_probes() -> None:
    tree = TokenTree((5, 6, 7, 8, 5), (-1, 0, 0, 2, -1))
    assert tree.depths == (1, 2, 2, 3, 1)
    assert (tree.depth, tree.leaves, tree.drafted) == (3, 3, 5)
    assert tree.first_leaves == (0, 0, 1, 1, 2) and tree.last_leaves == (1, 0, 1, 1, 2)
    assert tree.child(ROOT, 5) == 0 and tree.child(0, 7) == 2 and tree.child(2, 8) == 3
    assert tree.child(1, 8) is None and tree.child(ROOT, 8) is None and tree.child(0, 5) is None
    tree = TokenTree()
    assert (len(tree), tree.depth, tree.leaves, tree.child(ROOT, 1)) == (0, 0, 1, None)
    tree = TokenTree((5, 9, 9), (-1, 0, 1), frozenset({1, 2}))
    assert tree.depth == 1 and tree.drafted == 1 and tree.child(0, 9) is None


@pytest.mark.parametrize(
    ("tokens", "parents", "probes"),
    [
        ((1, 2), (-1,), ()),
        ((1,), (0,), ()),
        ((1, 2, 3, 4), (-1, -1, 0, 1), ()),  # breadth first
        ((1, 2), (-1, 0), (0,)),  # acceptable below a probe
        ((1, 2), (-1, -1), (0,)),  # acceptable after a probe
    ],
)
def test_a_wrong_layout_is_refused(tokens: tuple[int, ...], parents: tuple[int, ...], probes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        TokenTree(tokens, parents, frozenset(probes))


@given(st.lists(st.integers(0, 5), max_size=20), st.randoms(use_true_random=False))
def test_leaf_spans_are_the_leaves_below_each_node(tokens: list[int], rng: object) -> None:
    choose = getattr(rng, "random")  # noqa: B009 (hypothesis hands out an untyped Random)
    parents, path = [], [-1]
    for node in range(len(tokens)):
        while len(path) > 1 and choose() < 0.4:
            path.pop()
        parents.append(path[-1])
        path.append(node)
    tree = TokenTree(tuple(tokens), tuple(parents))
    leaves = [node for node in range(len(tokens)) if node not in parents]
    for node in range(len(tokens)):
        below = [number for number, leaf in enumerate(leaves) if _is_above(tree, node, leaf)]
        assert (tree.first_leaves[node], tree.last_leaves[node]) == (below[0], below[-1])
    assert tree.leaves == max(1, len(leaves))


def _is_above(tree: TokenTree, node: int, leaf: int) -> bool:
    while leaf > node:
        leaf = tree.parents[leaf]
    return leaf == node


@pytest.mark.parametrize(
    ("mine", "theirs", "start", "length"),
    [([], [1], 0, 0), ([1, 2, 3], [1, 2, 4], 0, 2), ([1, 2], [1, 2, 3], 0, 2), ([1, 2, 3], [1, 2, 3], 2, 3)],
)
def test_the_common_prefix_of_two_texts(mine: list[int], theirs: list[int], start: int, length: int) -> None:
    assert shared_prefix(mine, theirs, start) == length


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("", 0),
        ("abcd", 0),
        ("abcdefgh", 0),
        ("abcdabcd", 1),
        ("abcdabcdabcd", 5),
        ("aaaaaaaa", 4),  # every run but the first, also where two overlap
        ("abcxabcyabcz", 0),
        ("the cat sat. the cat ran.", 5),  # "the cat " has five
    ],
)
def test_tokens_that_finish_a_run_of_four_are_counted(text: str, repeated: int) -> None:
    assert repeated_share([ord(each) for each in text]) == (repeated / len(text) if text else 0)
