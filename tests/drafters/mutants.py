"""Wrong versions of the verifier, made in memory, and the quick tests that must tell each from the right one."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from tests.drafters import test_accept, test_accept_exact, test_accept_typical, test_tree
from tests.models import test_types
from tests.models.sampling import test_sampling

Check = Callable[[], object]


@dataclass(frozen=True)
class Mutant:
    name: str  # what is wrong with it
    module: ModuleType  # where it is
    function: str  # its name there, dotted for a method or property
    old: str  # the passage, which stands there once
    new: str  # what stands there instead

    def code(self) -> CodeType:
        source = inspect.getsource(self.module)
        own = inspect.getsource(find(self.module, self.function))
        assert own.count(self.old) == 1, f"{self.name}: {own.count(self.old)} passages"
        return compiled(self.module, self.function, source.replace(own, own.replace(self.old, self.new)))


def find(module: object, function: str) -> FunctionType:
    found: Any = reduce(lambda place, name: vars(place)[name], function.split("."), module)
    found = found.fget if isinstance(found, property) else found
    found = found.__func__ if isinstance(found, staticmethod) else found
    assert isinstance(found, FunctionType)
    return found


def compiled(module: ModuleType, function: str, source: object) -> CodeType:
    """The code of a function in another version of its module: source text, or its syntax tree."""
    code: CodeType = compile(source, module.__file__ or "", "exec", dont_inherit=True)  # type: ignore[call-overload]
    for name in function.split("."):
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
    return code


@contextmanager
def planted(module: ModuleType, function: str, code: CodeType) -> Iterator[None]:
    """Puts code in a function's place, for everybody who has the function."""
    target = find(module, function)
    right = target.__code__
    target.__code__ = code
    try:
        yield
    finally:
        target.__code__ = right


def checks() -> Iterator[tuple[str, Check]]:
    """The quick tests of the verifier, each with its name, every set of their parameters."""
    tests: list[Callable[..., Any]] = [
        test_accept.test_walk,
        test_accept.test_probes_are_never_entered,
        test_accept.test_plain_decoding_emits_one_token,
        test_accept.test_the_reply_can_end_on_any_token,
        test_accept.test_a_chain_draft_walks_to_its_end,
        test_types.test_a_tree_knows_depths_leaves_and_children_empty_and_with_probes,
        test_tree.test_a_chain_and_nothing,
        test_tree.test_best_path_first_and_probes_last,
        test_tree.test_siblings_of_one_token_are_merged,
        test_tree.test_probes_are_never_merged,
        test_tree.test_a_probe_that_comes_first_takes_in_no_guess_and_equal_siblings_keep_their_order,
        test_tree.test_a_path_needs_one_probability_a_token,
        test_accept_typical.test_a_sure_target_wants_its_own_token_and_a_hesitating_one_takes_less,
        test_accept_typical.test_the_longest_path_wins_then_the_most_probable_one,
        test_accept_typical.test_probes_are_never_accepted_and_rows_that_cannot_matter_are_not_looked_at,
        test_accept_typical.test_without_a_draft_the_token_is_the_targets_own,
        test_accept_typical.test_the_last_token_is_drawn_from_the_row_after_the_path,
        test_accept_typical.test_the_reply_can_end_on_any_token,
        test_accept_typical.test_a_refused_node_hides_only_what_is_below_it,
        test_accept_typical.test_of_equal_paths_the_first_wins,
        test_accept_typical.test_a_path_is_as_probable_as_all_its_tokens_together,
        test_accept_typical.test_the_exact_rule_is_what_one_gets_unasked,
        test_accept_typical.test_a_threshold_out_of_range_is_refused,
        test_accept_typical.test_temperature_0_is_refused_with_the_reason,
        test_sampling.test_the_window_covers_the_end_of_history_and_what_is_ahead,
        test_sampling.test_only_the_position_and_the_window_matter,
        test_accept_typical.test_a_token_is_accepted_by_the_papers_threshold,
    ]
    for test in tests:
        for values in parameters(test):
            yield f"{test.__name__} {values or ''}".strip(), partial(test, **values)
    for block in range(3):
        yield f"exact {block}", partial(test_accept_exact.test_the_emitted_distribution_is_the_targets, block)
        yield f"naive {block}", partial(test_sampling.test_equals_the_naive_sampler, block)
    yield "the seed alone", partial(test_accept.test_the_text_is_a_function_of_the_seed_alone, 0.8)


def parameters(test: Callable[..., Any]) -> list[dict[str, Any]]:
    columns: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        assert mark.name == "parametrize"
        given, rows = mark.args
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
        sets = [getattr(row, "values", row) for row in rows]
        columns.append([dict(zip(names, row if len(names) > 1 or hasattr(rows[0], "values") else [row], strict=True))
                        for row in sets])  # fmt: skip
    return [reduce(lambda all, one: all | one, row, {}) for row in itertools.product(*columns)]


def killer(crash_counts: bool = False) -> str | None:
    """The first quick test that fails, or None. A seeded mistake that only crashes would prove nothing: an assertion
    must fail, unless ``crash_counts``."""
    for name, check in checks():
        try:
            check()
        except (AssertionError, pytest.fail.Exception):  # the second: pytest.raises saw nothing
            return name
        except Exception:
            if crash_counts:
                return name
    return None
