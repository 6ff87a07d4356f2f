"""Every small change to the verifier that syntax allows, each against the quick tests.

A command: ``python -m tests.soak.verifier``. Prints the changes that no test saw, then one line: how many, how many
survived, and the 95 % bound on the share of such changes that would survive (rule of three where none did).
"""

import ast
import inspect
import signal
import sys
from collections.abc import Iterator
from copy import deepcopy
from types import FrameType, ModuleType
from typing import Any

from tests.drafters.mutants import compiled, killer, planted

from slipstream.drafters import accept, tree
from slipstream.models import types

FUNCTIONS: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (accept, ("accept", "accept_rule", "Typical.__call__", "Typical._best_path", "Typical._likely")),
    (tree, ("chain_draft", "TreeBuilder.add", "TreeBuilder.add_path", "TreeBuilder.layout", "TreeBuilder.build",
            "TreeBuilder._ranked")),
    (types, ("TokenTree.child", "History.position")),
)  # fmt: skip
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip
SECONDS = 20  # a change that makes the walk endless is caught when the quick tests take so long; they take one or two


class EndlessError(BaseException):
    """The quick tests do not come to an end."""


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """The ways to change one node of the syntax; None takes a statement away."""
    changed: Any = deepcopy(node)
    if isinstance(node, ast.Compare):
        changed.ops[0] = OTHER[type(node.ops[0])]()
        yield "comparison", changed
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in OTHER:
        changed.op = OTHER[type(node.op)]()
        yield "operator", changed
        for operand in node.values if isinstance(node, ast.BoolOp) else (node.left, node.right):
            yield "operand alone", operand
    elif isinstance(node, ast.UnaryOp):
        yield "without its sign", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
        yield "constant", ast.Constant(node.value - 1)
    elif isinstance(node, ast.IfExp):
        yield "always the first", node.body
        yield "always the other", node.orelse
    elif isinstance(node, ast.Continue):
        yield "break", ast.Break()
    elif isinstance(node, ast.Expr | ast.AugAssign) and not isinstance(node.value, ast.Constant):
        yield "statement gone", None
    elif isinstance(node, ast.If | ast.While):
        for always in (True, False):
            changed = deepcopy(node)
            changed.test = ast.Constant(always)
            yield f"condition always {always}", changed
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "returns nothing", ast.Return(None)


class Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.old:
            return ast.copy_location(self.new if self.new is not None else ast.Pass(), node)
        return self.generic_visit(node)


def body(syntax: ast.Module, function: str) -> list[ast.AST]:
    """The nodes of a function's statements: defaults are not among them, they belong to the function, not its code."""
    found: Any = syntax
    for name in function.split("."):
        parts = ast.iter_child_nodes(found)
        found = next(n for n in parts if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name)
    return [node for statement in found.body for node in ast.walk(statement)]


def mutants(module: ModuleType, function: str) -> Iterator[tuple[str, ast.Module]]:
    source = inspect.getsource(module)
    for at in range(len(body(ast.parse(source), function))):
        for which in range(4):
            syntax = ast.parse(source)
            node = body(syntax, function)[at]
            ways = list(changes(node))
            if which < len(ways):
                what, new = ways[which]
                line = f"{module.__name__}:{getattr(node, 'lineno', 0)} {what}: {ast.unparse(node).splitlines()[0]}"
                Replace(node, new).visit(syntax)
                if ast.dump(syntax) != ast.dump(ast.parse(source)):
                    yield line, ast.fix_missing_locations(syntax)


def caught(module: ModuleType, function: str, syntax: ast.Module) -> bool:
    with planted(module, function, compiled(module, function, syntax)):
        signal.alarm(SECONDS)
        try:
            return killer(crash_counts=True) is not None
        except EndlessError:
            return True
        finally:
            signal.alarm(0)


def give_up(_number: int, _frame: FrameType | None) -> None:
    raise EndlessError


def main() -> int:
    signal.signal(signal.SIGALRM, give_up)
    total, survivors = 0, []
    for module, functions in FUNCTIONS:
        for function in functions:
            for line, syntax in mutants(module, function):
                total += 1
                if not caught(module, function, syntax):
                    survivors.append(line)
                    print(f"survived: {line}", flush=True)
    bound = 3 / total if not survivors else 0.0
    words = f"95 % bound {bound:.2%}" if bound else f"{1 - len(survivors) / total:.1%} caught"
    print(f"verifier: {total} changes, {len(survivors)} survived, {words}")
    return int(len(survivors) * 10 >= total)


if __name__ == "__main__":
    sys.exit(main())
