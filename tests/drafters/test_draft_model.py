from slipstream.drafters.base import NO_DRAFT
from slipstream.drafters.draft_model import DraftModel
from slipstream.models.runtime.fake import FakeTarget
from slipstream.models.sampling import Sampler
from slipstream.models.types import History

GREEDY = Sampler(temperature=0.0)


def four(_probability: float, depth: int) -> bool:
    return depth <= 4


def drafter(sure: float = 0.0, n_ctx: int = 4096) -> tuple[DraftModel, FakeTarget]:
    model = FakeTarget(n_ctx=n_ctx)
    return DraftModel(model, model.abilities.n_vocab, sure), model


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


def test_it_stops_before_a_token_it_is_unsure_of() -> None:
    some, _ = drafter(sure=0.0)
    unsure, _ = drafter(sure=0.5)
    for seed in range(20):
        history = History([seed, 2, 3])
        for one in (some, unsure):
            one.begin(history)
        whole, cut = some.draft(history, four, GREEDY), unsure.draft(history, four, GREEDY)
        sure = next((at for at, prob in enumerate(whole.probs) if prob < 0.5), 4)
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


def test_a_long_prompt_is_read_over_several_steps() -> None:
    some, model = drafter()
    history = History([at % 64 for at in range(1200)])
    some.begin(history)
    drafts = [some.draft(history, four, GREEDY) for _ in range(4)]
    assert [len(draft.tree) for draft in drafts[:2]] == [0, 0] and len(drafts[-1].tree) == 4
    assert len(model.tokens) >= 1199


def test_beyond_its_context_it_drafts_nothing() -> None:
    some, _ = drafter(n_ctx=16)
    history = History(list(range(14)))
    some.begin(history)
    assert len(some.draft(history, four, GREEDY).tree) == 2
    history.tokens += [1, 2, 3]
    assert some.draft(history, four, GREEDY) == NO_DRAFT


def test_nothing_worth_drafting_costs_no_pass() -> None:
    some, model = drafter()
    some.begin(History([1, 2]))
    assert some.draft(History([1, 2]), lambda _p, _d: False, GREEDY) == NO_DRAFT and model.decodes == 0
