"""The rules of reading: constants first, one meaning for a class's name, few values without a name."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MOST_PARAMETERS: Final = 7  # of a function, that may be given by position
MOST_VALUES: Final = 5  # of a call, without keywords

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in ("app", "drafters", "models"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def foreign(function: ast.expr) -> bool:
    """Whether a function takes no keywords: one of a C library, of ``struct``, or of any number of values."""
    *owner, name = ast.unparse(function).split(".")
    return owner in (["C"], ["M"], ["ctypes"]) or name in ("pack", "suppress")


def late_constants(tree: ast.Module) -> Iterator[str]:
    """Constants below the first class or function, but for tables of the classes and functions above them."""
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, Definition):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and defined:
            used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)} if node.value else set()
            if used & defined:
                defined |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - used
            else:
                yield f"line {node.lineno}: a constant below the first class or function"


def long_lists(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            given = [each for each in node.args.posonlyargs + node.args.args if each.arg not in ("self", "cls")]
            if len(given) > MOST_PARAMETERS:
                yield f"line {node.lineno}: {node.name} takes {len(given)} parameters by position"
        elif isinstance(node, ast.Call):
            spread = any(isinstance(each, ast.Starred) for each in node.args)
            if len(node.args) > MOST_VALUES and not spread and not foreign(node.func):
                yield f"line {node.lineno}: {ast.unparse(node.func)} is given {len(node.args)} values by position"


def test_constants_stand_first_and_long_lists_of_values_are_named() -> None:
    found = {file: [*late_constants(tree), *long_lists(tree)] for file, tree in sources()}
    wrong = {file: places for file, places in found.items() if places}
    assert not wrong


def test_the_name_of_a_class_means_one_thing() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file}:{node.lineno}")
    assert not {name: at for name, at in places.items() if len(at) > 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(): ...\nLIMIT = 3", 1),
        ("LIMIT = 3\ndef f(): ...\nTABLE = {'f': f}", 0),
        ("class A:\n    b = 3\nNAME: str = 'x'", 1),
        ("def f(a, b, c, d, e, f, g, h): ...", 1),
        ("class A:\n    def f(self, a, b, c, d, e, f, g, *, h): ...", 0),
        ("f(1, 2, 3, 4, 5, 6)", 1),
        ("f(1, 2, 3, 4, 5, six=6)\nf(*many, 2, 3, 4, 5, 6)", 0),
    ],
)
def test_what_breaks_a_rule_is_found(text: str, found: int) -> None:
    tree = ast.parse(text)
    assert len([*late_constants(tree), *long_lists(tree)]) == found
