from dataclasses import replace
from itertools import pairwise

import pytest
from tests.models.fake_target import FakeTarget

from slipstream.drafters.base import NO_DRAFT, Draft, Step
from slipstream.drafters.draft_cache import DraftCache
from slipstream.drafters.draft_model import DraftModel
from slipstream.models.llama.target import Prefill
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, ROOT, Abilities, Evaluation, History, Token, TokenTree

GREEDY = Sampler(temperature=0.0)


def four(_probability: float, depth: int) -> bool:
    return depth <= 4


def likely(probability: float, depth: int) -> bool:
    return probability >= 0.05 and depth <= 4


def drafter(n_ctx: int = 4096, leaves: int = 1, target: Abilities | None = None) -> tuple[DraftModel, FakeTarget]:
    model = FakeTarget(n_ctx=n_ctx)
    return DraftModel(model, target or FakeTarget().abilities, leaves), model


def said(draft: Draft, tokens: tuple[Token, ...]) -> Step:
    return Step(draft, (), tokens, Evaluation(FakeTarget().evaluate(0).logits))


def test_it_drafts_what_its_model_would_say() -> None:
    some, _ = drafter()
    history = History([1, 2, 3])
    some.begin(history)
    draft = some.draft(history, four, GREEDY)
    alone = FakeTarget()
    alone.prefill([1, 2])
    last, wanted = 3, []
    for _ in range(4):
        last = int(alone.evaluate(last).logits[0].argmax())
        alone.keep(())
        wanted.append(last)
    assert list(draft.tree.tokens) == wanted and draft.sources == ("draft",) * 4
    assert all(0 < prob <= 1 for prob in draft.probs)


def test_where_passes_are_replayed_each_pass_of_the_model_has_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    some, model = drafter(leaves=4)
    model.abilities = replace(model.abilities, replays=True)
    history = History([1, 2, 3])
    some.begin(history)
    some.draft(history, likely, GREEDY)
    monkeypatch.setattr(model, "prefill", lambda *_: pytest.fail("a pass of several rows"))
    monkeypatch.setattr(model, "feed", lambda tokens: pytest.fail("these join the next pass") if tokens else None)
    evaluate = model.evaluate

    def one_row(last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        assert not tree.tokens
        return evaluate(last, tree)

    monkeypatch.setattr(model, "evaluate", one_row)
    leaves = 0
    for _ in range(6):
        draft = some.draft(history, likely, GREEDY)
        leaves = max(leaves, draft.tree.leaves)
        path, node = list[Token](), 0
        while node < len(draft.tree):  # the chain was right, and a bonus follows
            path.append(draft.tree.tokens[node])
            node = next((child for child in range(len(draft.tree)) if draft.tree.parents[child] == node), 99)
        history.tokens += [*path, 9]
    assert leaves > 1  # the runners-up of the chain are drafted all the same


def test_it_stops_before_a_token_that_is_not_worth_it() -> None:
    for seed in range(20):
        history = History([seed, 2, 3])
        (some, _), (careful, _) = drafter(), drafter()
        for one in (some, careful):
            one.begin(history)
        whole = some.draft(history, four, GREEDY)
        cut = careful.draft(history, lambda path, depth: path >= 0.5 and depth <= 4, GREEDY)
        path, sure = 1.0, 0
        for prob in whole.probs:
            path *= prob
            sure += path >= 0.5
        assert cut.tree.tokens == whole.tree.tokens[:sure]


def test_it_follows_the_history_after_a_rejection_and_after_a_whole_acceptance() -> None:
    some, model = drafter()
    history = History([1, 2, 3])
    some.begin(history)
    first = some.draft(history, four, GREEDY)
    history.tokens += [first.tree.tokens[0], (first.tree.tokens[1] + 1) % 64]  # the second was wrong
    some.draft(history, four, GREEDY)
    assert list(model.tokens)[: len(history.tokens)] == history.tokens
    second = some.draft(history, four, GREEDY)
    history.tokens += [*second.tree.tokens, 9]  # all right, and a bonus that was never drafted
    before = model.decodes
    some.draft(history, four, GREEDY)
    assert list(model.tokens)[: len(history.tokens)] == history.tokens
    assert model.decodes == before + 4  # what it lacked went in with its first pass


def test_a_long_prompt_does_not_hold_up_the_first_token_and_is_read_a_piece_a_step() -> None:
    some, model = drafter()
    history = History([at % 64 for at in range(1200)])
    some.begin(history)
    assert some.draft(history, four, GREEDY) == NO_DRAFT and model.decodes == 0
    read = [0]
    while some.draft(history, four, GREEDY) == NO_DRAFT:
        read.append(len(model.tokens))
        assert 0 < read[-1] - read[-2] <= 512 and len(read) < 50
    assert len(read) > 2 and list(model.tokens)[:1200] == history.tokens


class Slow(FakeTarget):
    """Takes a millisecond of a clock for each token that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0

    def prefill(self, tokens: object, on_chunk: object = None, cancelled: object = None) -> Prefill:
        assert isinstance(tokens, list)
        done = super().prefill(tokens)
        self.clock += 1e-3 * done.decoded
        return done


def test_a_piece_takes_no_longer_than_a_twentieth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow()
    monkeypatch.setattr("slipstream.drafters.draft_cache.perf_counter", lambda: model.clock)
    follower = DraftCache(model)
    text = [at % 64 for at in range(400)]
    follower.follow(text)
    lengths = [0]
    while not follower.follow(text):
        lengths.append(len(model.tokens))
    pieces = [after - before for before, after in pairwise(lengths)]
    assert pieces[0] == 64 and all(49 <= piece <= 50 for piece in pieces[1:])


def test_it_says_how_long_it_will_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow()
    monkeypatch.setattr("slipstream.drafters.draft_cache.perf_counter", lambda: model.clock)
    some = DraftModel(model, FakeTarget().abilities)
    history = History([at % 64 for at in range(400)])
    assert some.reading_ms(history) == 0  # it has never read
    some.begin(history)
    some.draft(history, four, GREEDY)
    assert not model.tokens
    some.draft(history, four, GREEDY)
    assert some.reading_ms(history) == pytest.approx(399 - len(model.tokens), rel=0.01)
    other = History([9, *history.tokens])
    assert some.reading_ms(other) == pytest.approx(400, rel=0.01)  # nothing of it, though it has not begun with it
    while not some.draft(history, four, GREEDY).tree.tokens:
        assert some.reading_ms(history) > 0
    assert some.reading_ms(history) == 0
    history.tokens += [1, 2, 3]
    assert some.reading_ms(history) == 0  # a few go in with the next pass
    history.tokens += [4] * 4096
    assert some.reading_ms(history) == 0  # beyond its context it never drafts


def test_beyond_its_context_and_vocabulary_or_for_nothing_it_drafts_nothing() -> None:
    some, _ = drafter(n_ctx=16)
    history = History(list(range(14)))
    some.begin(history)
    assert len(some.draft(history, four, GREEDY).tree) == 2
    history.tokens += [1, 2, 3]
    assert some.draft(history, four, GREEDY) == NO_DRAFT
    model = FakeTarget(n_vocab=60)
    some = DraftModel(model, FakeTarget().abilities)
    history = History([1, 62, 3])
    some.begin(history)
    assert some.draft(history, four, GREEDY) == NO_DRAFT and not model.tokens
    some, model = drafter()
    some.begin(History([1, 2]))
    assert some.draft(History([1, 2]), lambda _p, _d: False, GREEDY) == NO_DRAFT and model.decodes == 0


def test_where_siblings_pay_it_drafts_a_tree_around_the_same_chain() -> None:
    trees = 0
    for seed in range(20):
        history = History([seed, 2, 3])
        (lone, _), (wide, model) = drafter(), drafter(leaves=4)
        for one in (lone, wide):
            one.begin(history)
        chain, draft = lone.draft(history, likely, GREEDY), wide.draft(history, likely, GREEDY)
        tree = draft.tree
        assert tree.leaves <= 4 and len(tree) <= 16 and not tree.probes
        node = ROOT
        for token in chain.tree.tokens:
            child = tree.child(node, token)
            assert child is not None
            node = child
        path = [1.0] * len(tree)
        for each, parent in enumerate(tree.parents):
            path[each] = draft.probs[each] * (path[parent] if parent != ROOT else 1.0)
            assert likely(path[each], tree.depths[each])
        siblings = [(p, t) for p, t in zip(tree.parents, tree.tokens, strict=True)]
        assert len(set(siblings)) == len(siblings)
        trees += tree.leaves > 1
        assert list(model.tokens)[:2] == history.tokens[:2]  # the cache is in order for the next step
        history.tokens += [tree.tokens[0], 5]
        wide.draft(history, likely, GREEDY)
        assert list(model.tokens)[: len(history.tokens)] == history.tokens
    assert trees > 10


def test_all_nodes_that_may_go_on_are_decoded_in_one_pass_and_one_leaf_is_a_chain() -> None:
    some, model = drafter(leaves=4)
    history = History([7, 2, 3])
    some.begin(history)
    draft = some.draft(history, lambda path, depth: path >= 0.02 and depth <= 2, GREEDY)
    inner = {parent for parent in draft.tree.parents if parent != ROOT}
    assert draft.tree.leaves == 4 and len(inner) > 1
    assert model.decodes <= 3  # the root, the chain's first node, and all the others at once
    some, _ = drafter(leaves=4, target=FakeTarget(max_leaves=1).abilities)
    for seed in range(10):
        history = History([seed, 2, 3])
        some.begin(history)
        assert some.draft(history, likely, GREEDY).tree.leaves == 1


def test_what_the_target_draws_corrects_the_probabilities() -> None:
    some, _ = drafter()
    history = History([1, 2, 3])
    some.begin(history)
    believed = some.draft(history, four, GREEDY).probs[0]
    for _ in range(30):  # it is always wrong
        draft = some.draft(history, four, GREEDY)
        wrong = (draft.tree.tokens[0] + 1) % 64
        some.observe(History([*history.tokens, wrong]), said(draft, (wrong,)))
    doubted = some.draft(history, four, GREEDY).probs[0]
    assert doubted < believed / 2
    for _ in range(200):  # and now always right
        draft = some.draft(history, four, GREEDY)
        some.observe(History([*history.tokens, draft.tree.tokens[0]]), said(draft, draft.tree.tokens[:1]))
    assert some.draft(history, four, GREEDY).probs[0] > max(doubted, 0.8)


def test_a_token_that_it_stopped_before_is_measured_too() -> None:
    some, _ = drafter()
    history = History([1, 2, 3])
    some.begin(history)
    first = some.draft(history, four, GREEDY).tree.tokens[0]

    def nothing(path: float, depth: int) -> bool:
        return path == 1.0 and depth == 1

    assert some.draft(history, nothing, GREEDY) == NO_DRAFT
    before = some.draft(history, four, GREEDY).probs[0]
    for _ in range(50):
        assert some.draft(history, nothing, GREEDY) == NO_DRAFT
        some.observe(History([*history.tokens, first]), said(NO_DRAFT, (first,)))
    assert some.draft(history, four, GREEDY).probs[0] > before
