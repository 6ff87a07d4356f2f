"""Drafters over drafters: in order, and merged to one tree; and their names."""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from tests.bench.replay import replay
from tests.drafters.replies import always, write
from tests.drafters.test_same_text import SHAPES, TEMPERATURES
from tests.models.fake_target import FakeTarget

from slipstream import drafters
from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.drafters import registry
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Plain, ShouldExtend, Step
from slipstream.drafters.combine import Combined, Continued, in_order, together
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.resources import Method, Resources
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.errors import UsageError
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Evaluation, Floats, History, Token

ABILITIES = FakeTarget().abilities
HISTORY = History([1, 2, 3])


class Says(Drafter):
    """Drafts what it is told, and notes what it hears."""

    name = "says"
    needs: Needs = Needs()

    def __init__(self, draft: Draft = NO_DRAFT, needs: Needs = Needs()) -> None:  # noqa: B008 (frozen)
        self.said, self.heard = draft, list[str]()
        self.needs = needs

    def begin(self, history: History) -> None:
        self.heard.append("begin")

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        self.heard.append("on_prefill")

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self.heard.append("draft")
        return self.said

    def observe(self, history: History, step: Step) -> None:
        self.heard.append("observe")

    def rewind(self, length: int) -> None:
        self.heard.append(f"rewind {length}")

    def close(self) -> None:
        self.heard.append("close")


def path(*tokens: Token, prob: float, source: str = "says") -> Draft:
    return chain_draft(tokens, [prob] * len(tokens), source)


def probes_only() -> Draft:
    builder = TreeBuilder()
    builder.add(ROOT, 9, 0.0, "probing", probe=True)
    return builder.build()


def asked(drafter: Drafter) -> Draft:
    return drafter.draft(HISTORY, always, Sampler())


def test_the_first_confident_drafter_drafts_and_where_none_is_the_likeliest() -> None:
    unsure, sure, last = Says(path(4, prob=0.4)), Says(path(5, 6, prob=0.6)), Says(path(7, prob=0.9))
    assert asked(in_order([unsure, sure, last])) == sure.said
    assert last.heard == []
    best = Says(path(5, prob=0.4))
    assert asked(in_order([Says(), Says(path(4, prob=0.3)), best, Says(path(6, prob=0.4))])) == best.said
    assert asked(in_order([Says(), Says()])) == NO_DRAFT
    probing = Says(probes_only())
    assert asked(in_order([Says(), probing])) == probing.said
    guess = Says(path(4, prob=0.1))
    assert asked(in_order([probing, guess])) == guess.said


@pytest.mark.parametrize("kind", [in_order, lambda drafters: together(drafters, ABILITIES)])
def test_all_observe_every_step_and_their_needs_are_united(kind: Callable[[list[Says]], Combined]) -> None:
    ones = [Says(needs=Needs(frozenset({1}), 2)), Says(needs=Needs(frozenset({0, 1}), 5))]
    both = kind(ones)
    assert both.needs == Needs(frozenset({0, 1}), 5)
    both.begin(HISTORY)
    both.on_prefill([1], {})
    both.observe(HISTORY, Step(NO_DRAFT, (), (1,), FakeTarget().evaluate(0)))
    both.rewind(2)
    both.close()
    assert [one.heard for one in ones] == 2 * [["begin", "on_prefill", "observe", "rewind 2", "close"]]


def test_a_merge_evaluates_once_what_is_guessed_alike_and_keeps_the_most_probable_paths() -> None:
    ones = [Says(path(4, 5, 6, prob=0.9, source="a")), Says(path(4, 5, 7, prob=0.6, source="b"))]
    draft = asked(together(ones, ABILITIES))
    tree = draft.tree
    assert len(tree) == 4 and tree.leaves == 2
    four = tree.child(ROOT, 4)
    assert four is not None and draft.sources[four] == "a" and draft.probs[four] == 0.9
    five = tree.child(four, 5)
    assert five is not None
    ends = [tree.child(five, token) for token in (6, 7)]
    assert [draft.sources[end] for end in ends if end is not None] == ["a", "b"]
    few = replace(ABILITIES, max_rows=6, max_leaves=2)
    drafts = [path(4, 5, 6, prob=0.9), path(14, 15, 16, prob=0.7), path(24, 25, 26, prob=0.5)]
    tree = asked(together([Says(draft) for draft in drafts], few)).tree
    assert len(tree) == 5 and tree.leaves == 2 and set(tree.tokens) == {4, 5, 6, 14, 15}
    short = asked(together([Says(draft) for draft in drafts], replace(ABILITIES, n_ctx=5))).tree
    assert set(short.tokens) == {4, 5}


def test_probes_are_never_merged_but_a_lone_draft_keeps_its_own() -> None:
    builder = TreeBuilder()
    builder.add_path([4, 5], [0.9, 0.9], "probing")
    builder.add(ROOT, 9, 0.0, "probing", probe=True)
    both = builder.build()
    assert asked(together([Says(both), Says()], ABILITIES)) == both
    merged = asked(together([Says(both), Says(path(7, prob=0.8))], ABILITIES))
    assert sorted(merged.tree.tokens) == [4, 5, 7] and not merged.tree.probes
    assert asked(together([Says(probes_only()), Says()], ABILITIES)) == probes_only()


REPEATED = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99]  # ends before 1 2 3 4 again


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (chain_draft([1, 2, 3, 4], [0.9] * 4, "says"), [1, 2, 3, 4, 5, 6, 7, 8, 9]),  # as many as match, and one
        (chain_draft([1, 2, 3], [0.9] * 3, "says"), [1, 2, 3]),  # so few tokens repeat by chance
        (chain_draft([1, 2, 3, 40], [0.9] * 4, "says"), [1, 2, 3, 40]),
        (chain_draft([7, 8, 9, 10], [0.9] * 4, "says"), [7, 8, 9, 10, 99, 7, 8, 9, 10]),  # on with the draft itself
        (NO_DRAFT, []),
    ],
)  # fmt: skip
def test_copies_go_on_behind_a_chain_whose_end_repeats_the_text(draft: Draft, expected: list[Token]) -> None:
    history = History([*REPEATED])
    drafter = Continued(Says(draft), PromptLookup(), alone=True)
    drafter.begin(history)
    found = drafter.draft(history, always, Sampler())
    assert [*found.tree.tokens] == expected and found.tree.leaves == 1
    assert found.sources == ("says",) * len(draft.tree) + ("lookup",) * (len(expected) - len(draft.tree))
    assert found.own_depth == len(draft.tree)
    assert drafter.draft(history, lambda _, depth: depth < 6, Sampler()).tree.tokens == (*expected[:5],)


def test_copies_lengthen_the_first_path_of_a_tree_and_leave_probes_alone() -> None:
    for probe in (False, True):
        tree = TreeBuilder()
        path = tree.add_path([1, 2, 3, 4], [0.9] * 4, "says")
        tree.add(path[1], 30, 0.05, "says")
        tree.add(ROOT, 20, 0.05, "says", probe=probe)
        drafter = Continued(Says(draft := tree.build()), PromptLookup(), alone=False)
        found = drafter.draft(History([*REPEATED]), lambda _, depth: depth < 7, Sampler())
        lengthened = found.tree
        assert (found == draft) == probe
        if not probe:
            assert lengthened.tokens == (1, 2, 3, 4, 5, 6, 30, 20) and lengthened.parents[-2:] == (1, ROOT)


@pytest.mark.parametrize("right", [True, False])
def test_copies_behind_a_draft_are_as_probable_as_they_were_right(right: bool) -> None:
    history = History([*REPEATED])
    drafter = Continued(Says(chain_draft([1, 2, 3, 4], [1.0] * 4, "says")), PromptLookup(), alone=False)
    drafter.begin(history)
    for turn in range(40):
        draft = drafter.draft(history, lambda _, depth: depth < 6, Sampler())
        tokens = (1, 2, 3, 4, 5 if right else 100 + turn)
        for step in (tokens, (99,)):
            history.tokens += step
            drafter.observe(history, Step(NO_DRAFT, (), step, Evaluation(np.zeros((1, 1), np.float32))))
    assert draft.probs[4] > 0.9 if right else draft.probs[4] < 0.3


class Head(Drafter):
    """Guesses the four next tokens of a known text; as right as it says, 0.75 of the places on average."""

    name = "head"

    def __init__(self, text: Sequence[Token], start: int) -> None:
        self._text, self._start = text, start

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        tokens, probs, path = list[Token](), list[float](), 1.0
        first = len(history.tokens) - self._start
        for at in range(first, min(first + 4, len(self._text))):
            place = random.Random(at)
            probs.append(place.choice((0.55, 0.95)))
            path *= probs[-1]
            if not should_extend(path, len(probs)):
                break
            tokens.append(self._text[at] if place.random() < probs[-1] else 0)
        return chain_draft(tokens, probs[: len(tokens)], self.name)


@pytest.mark.parametrize(("file", "least"), [("drafters/combine.py", 1.3), ("README.md", 0.98)])
def test_copies_behind_a_head_gain_on_edits_and_lose_nothing_on_prose(file: str, least: float) -> None:
    words = re.findall(r"\w+|\W", (Path(__file__).parents[2] / file).read_text())[:1600]
    ids = {word: at + 1 for at, word in enumerate(dict.fromkeys([*words, "changed"]))}
    prompt = [ids[word] for word in words[:800]]
    written = [ids["changed" if word in ("draft", "tree", "self") else word] for word in words[:800]]
    text = written if file.endswith(".py") else [ids[word] for word in words[800:]]
    rates = []
    for behind in (False, True):
        drafter: Drafter = Head(text, len(prompt))
        drafter = Continued(drafter, PromptLookup(), alone=False) if behind else drafter
        rates.append(len(text) / len(replay(FakeTarget(n_vocab=len(ids) + 1), drafter, prompt, text)))
    assert rates[1] >= least * rates[0] and rates[0] > 2


def parts(blur: float = 0.3) -> Resources:
    return Resources(FakeTarget(n_vocab=24, order=1).abilities, FakeTarget(n_vocab=24, order=1, blur=blur))


def test_names_join_methods_and_the_part_that_cannot_serve_is_named() -> None:
    def names(drafter: Drafter) -> object:
        return (drafter.name, *map(names, drafter.drafters)) if isinstance(drafter, Combined) else drafter.name

    assert names(registry.make("lookup+draft", parts())) == ("chain", "lookup", "draft")
    assert names(registry.make("lookup|draft", parts())) == ("merged", "lookup", "draft")
    assert names(registry.make("lookup+draft|recycle", parts())) == ("chain", "lookup", ("merged", "draft", "recycle"))
    none = replace(parts(), draft_model=None)
    assert registry.why_not("lookup+draft", none) == "draft: it needs a draft model, and this model has none"
    assert registry.why_not("lookup|recycle", none) == ""
    with pytest.raises(UsageError, match="does not work with this model: draft: it needs a draft model"):
        registry.make("lookup|draft", none)
    chains = replace(parts(), abilities=replace(ABILITIES, max_leaves=1))
    assert "space: its trees have 2 leaves, and this target takes 1" in registry.why_not("recycle|space", chains)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "without a name"), ("lookup+", "'lookup+' lacks the name of a drafter"),
        ("lookup+auto", "auto cannot be joined with others (in 'lookup+auto')"),
        ("lookup+magic", "no drafter 'magic' (in 'lookup+magic')"), ("draft+lookup|draft", "names 'draft' twice"),
        ("recycle|recycle", "names 'recycle' twice"), ("lookup+draft:lookup", "names 'lookup' twice"),
        ("draft:recycle", "only lookup copies on behind"), ("lookup:draft", "only lookup copies on behind"),
        ("none:lookup", "only lookup copies on behind"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.check_name(name)
    assert words in caught.value.title and caught.value.hint
    with pytest.raises(UsageError):
        registry.make(name, parts())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("eagel", "Did you mean eagle3? "), ("lokup", "Did you mean lookup? Drafters: auto, "),
        ("Medusa", "Did you mean medusa? "), ("aut", "Did you mean auto? "), ("nope", "Drafters: auto, "),
    ],
)  # fmt: skip
def test_a_name_that_is_near_to_another_one_brings_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.check_name(name)
    assert caught.value.hint.startswith(hint)


JOINED = ["lookup+draft", "lookup|draft", "draft|recycle|lookup", "lookahead+lookup+draft|recycle", "draft:lookup"]
JOINED += ["recycle+draft:lookup|lookahead"]


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_joined_drafters_give_the_text_of_plain_decoding(name: str, temperature: float) -> None:
    accepted = rejected = 0
    for seed, shape in enumerate(SHAPES):
        sampler = Sampler(temperature=temperature, seed=seed, **shape)  # type: ignore[arg-type]
        plain, _ = write(registry.make("none", parts()), FakeTarget(n_vocab=24, order=1), sampler, 60)
        text, stats = write(registry.make(name, parts()), FakeTarget(n_vocab=24, order=1), sampler, 60)
        assert text == plain
        accepted += stats.whole.accepted
        rejected += stats.whole.drafted - stats.whole.accepted
    assert accepted > 0 and (rejected > 0 or not temperature)


class Generous(Drafter):
    """Tells its drafter that all nodes down to depth 3 are worth it, so that trees are drafted."""

    name = "generous"

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.leaves = drafter, 0

    def begin(self, history: History) -> None:
        self.drafter.begin(history)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        if not should_extend(1.0, 3):
            return NO_DRAFT
        draft = self.drafter.draft(history, lambda path, depth: path >= 0.02 and depth <= 3, sampler)
        self.leaves = max(self.leaves, draft.tree.leaves)
        return draft

    def observe(self, history: History, step: Step) -> None:
        self.drafter.observe(history, step)


@pytest.mark.parametrize("name", ["draft", *JOINED])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_trees_give_the_text_of_plain_decoding(name: str, temperature: float) -> None:
    leaves = accepted = 0
    for seed in range(3):
        sampler = Sampler(temperature=temperature, seed=seed)
        plain, _ = write(registry.make("none", parts()), FakeTarget(n_vocab=24, order=1), sampler, 60)
        drafter = Generous(registry.make(name, parts()))
        text, stats = write(drafter, FakeTarget(n_vocab=24, order=1), sampler, 60)
        assert text == plain
        leaves, accepted = max(leaves, drafter.leaves), accepted + stats.whole.accepted
    assert leaves > 1 and accepted > 0


@pytest.fixture(scope="module")
def bundled() -> Iterator[Session]:
    session, _ = load(replace(choose(Paths.default({})), derived=None, index=None), lambda _: None)
    yield session
    session.close()


def reply(session: Session, drafter: str, temperature: float, seed: int) -> Done:
    sampling = Sampling(temperature=temperature, seed=seed)
    request = Generate(1, [Message("user", "Tell me a story about a fox.")], sampling, drafter, max_tokens=120)
    return session.reply(request, lambda _: None, lambda: False)


def test_on_the_bundled_pair_joined_drafters_write_what_plain_decoding_writes(bundled: Session) -> None:
    generous = Generous(bundled.drafters.get("draft"))
    bundled.drafters.put("generous", generous)
    drafters = set[str]()
    for temperature in TEMPERATURES:
        plain = reply(bundled, "none", temperature, 3)
        for name in ("generous", "lookup+draft", "draft:lookup", "draft|recycle|lookup"):
            drafted = reply(bundled, name, temperature, 3)
            assert (drafted.text, drafted.tokens, drafted.reason) == (plain.text, plain.tokens, plain.reason), name
            assert drafted.speed.accepted > 0
            drafters |= drafted.by_drafter.keys()
    assert generous.leaves > 1 and {"draft", "lookup"} <= drafters


def test_every_file_with_a_method_is_listed() -> None:
    files = Path(next(iter(drafters.__path__))).glob("*.py")
    modules = [import_module(f"slipstream.drafters.{file.stem}") for file in files if file.stem != "__init__"]
    methods = {each.name: each for module in modules for each in vars(module).values() if isinstance(each, Method)}
    assert methods == dict(registry.METHODS)
    assert [name for name, method in methods.items() if not method.auto] == ["none"]


@pytest.mark.slow
@pytest.mark.parametrize("auto", [False, True])
def test_the_autopilot_uses_a_method_only_if_it_allows_that(auto: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Resources]()

    def make(resources: Resources) -> Drafter:
        made.append(resources)
        return Plain()

    method = Method("extra", make, auto=auto)
    monkeypatch.setattr(registry, "METHODS", MappingProxyType({**registry.METHODS, "extra": method}))
    session, loaded = load(replace(choose(Paths.default({})), derived=None, index=None), lambda _: None)
    session.drafters.get("auto")
    assert bool(made) == auto
    assert "extra" in [offer.name for offer in loaded.drafters if offer.usable]  # by name it can be had in any case
    session.close()
