"""Every seeded mistake in the verifier, and in what it leans on, is caught by the quick tests."""

import pytest
from tests.drafters.mutants import Mutant, checks, killer, planted

from slipstream.drafters import accept, tree
from slipstream.models import types
from slipstream.models.sampling import sampler as sampling

_CHILD = "child = None if ended else draft.tree.child(node, token)"
_PICK = "token = sampler.pick(evaluation.logits[node + 1], history, tokens)"
MUTANTS = [
    Mutant("goes on after the end", accept, "accept", _CHILD, "child = draft.tree.child(node, token)"),
    Mutant(
        "accepts the last token of an ended reply",
        accept,
        "accept",
        _CHILD,
        "child = draft.tree.child(node, token)\n"
        "        path += [child] if ended and child is not None else []\n"
        "        child = None if ended else child",
    ),
    Mutant("forgets that the reply has ended", accept, "accept", "evaluation, ended)", "evaluation, False)"),
    Mutant("looks at the parent's row", accept, "accept", "logits[node + 1]", "logits[max(node, 0)]"),
    Mutant("looks at the last row", accept, "accept", "logits[node + 1]", "logits[-1]"),
    Mutant("leaves the path out of the history", accept, "accept", "history, tokens)", "history, ())"),
    Mutant("stops a node early", accept, "accept", "if child is None:", "if child is None or len(path) == 1:"),
    Mutant(
        "accepts a drafted token without drawing",
        accept,
        "accept",
        _PICK,
        "token = next((t for t, p in zip(draft.tree.tokens, draft.tree.parents) if p == node), None)\n"
        "        token = sampler.pick(evaluation.logits[node + 1], history, tokens) if token is None else token",
    ),
    Mutant("draws twice", accept, "accept", _PICK, f"{_PICK}\n        {_PICK}"),
    Mutant("enters probes", types, "TokenTree.child", " and node not in self.probes", ""),
    Mutant("takes a cousin with the same token", types, "TokenTree.child", "self.parents[node] == parent and ", ""),
    Mutant("misses all children but the first", types, "TokenTree.child", "[node] < parent", "[node] <= parent"),
    Mutant("takes any child", types, "TokenTree.child", "self.tokens[node] == token", "True"),
    Mutant("forgets what was trimmed", types, "History.position", "self.trimmed + ", ""),
    Mutant("noise of the step's first token", sampling, "Sampler.pick", "position + len(ahead)", "position"),
    Mutant("noise of the next token", sampling, "Sampler.pick", "len(ahead))", "len(ahead) + 1)"),
    Mutant("no penalties for the path", sampling, "_last", "*ahead[-count:]", ""),
    Mutant("no penalties for the history", sampling, "_last", "rest > 0", "False"),
    Mutant("leaves equal siblings apart", tree, "TreeBuilder.add", "node.token == token and not node.probe", "False"),
    Mutant("merges probes", tree, "TreeBuilder.add", "node.token == token and not node.probe", "node.token == token"),
    Mutant("acceptable below a probe", tree, "TreeBuilder.add", "probe or (parent != ROOT and", "probe and (True and"),
    Mutant("worst path first", tree, "TreeBuilder._ranked", "-self._nodes", "self._nodes"),
    Mutant("typical: accepts probes", accept, "Typical._best_path", " or node in tree.probes", ""),
    Mutant("typical: draws from a row too early", accept, "Typical.__call__", "logits[last + 1]", "logits[last]"),
    Mutant("typical: keeps the last token of an end", accept, "Typical.__call__", "path[:at]", "path[: at + 1]"),
    Mutant("typical: the threshold of a sure target", accept, "Typical._likely", "-entropy", "entropy"),
    Mutant("typical: unasked", accept, "accept_rule", "if typical is None:", "if typical == 0:"),
]


def test_the_quick_tests_pass_as_it_is() -> None:
    count = 0
    for count, (_, check) in enumerate(checks(), 1):  # noqa: B007
        check()
    assert count > 100


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    with planted(mutant.module, mutant.function, mutant.code()):
        assert killer(), f"survived: {mutant.name}"
