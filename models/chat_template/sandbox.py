"""The sandbox for chat templates, which are untrusted code from model files.

Jinja's immutable sandbox denies a template access to Python's internals. This module also limits time and memory: every
iteration of a loop and every call of a macro, filter or method checks the time, and the size of the result is checked
before operations that can make a large text from a small one (repetition, powers, formats, padding, joins,
replacements, captures).

One slow operation between two checks of the time is not limited, such as comparing two deeply nested lists. Templates
run in the engine's process, so the interface stays responsive and can end that process.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from slipstream.models.errors import ModelFileError
from slipstream.models.outside import quoted

MAX_TEXT: Final = 1 << 20
MAX_NUMBER: Final = 10_000
MAX_BITS: Final = 4_096
MAX_ENTRIES: Final = 200_000
TIME_LIMIT: Final = 2.0
_WIDE_FIELD: Final = re.compile(r"[0-9]{4,}|\*|\{[^}]*\{")
_SIZED: Final = frozenset(  # filters and methods whose numbers are sizes
    {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "indent", "wordwrap", "round", "tojson"}
)
_HUNGRY: Final = frozenset({"translate", "wordwrap", "expandtabs"})


class TemplateLimitError(SecurityError):
    """A template needs more time or memory than it may use."""


class Meter:
    """Limits the time and the text sizes of one rendering at a time.

    Attributes:
        max_text: Maximum length of a text during a rendering, in characters.
    """

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        """Sets the time limit in seconds, counted from ``start``."""
        self._time_limit = time_limit
        self._deadline = float("inf")
        self.max_text = MAX_TEXT

    def start(self, given: int) -> None:
        """Starts a rendering of messages with ``given`` characters."""
        self._deadline = time.monotonic() + self._time_limit
        self.max_text = MAX_TEXT + 4 * given

    def tick(self) -> str:
        """Raises if the time is over; returns an empty text, since templates call it as an expression."""
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"it runs longer than {self._time_limit:g} s")
        return ""

    def joined(self, parts: Iterable[Any], separator: str = "") -> str:
        """Joins texts; raises if the result is too long."""
        texts, length = [], 0
        for part in parts:
            texts.append(part if isinstance(part, str) else str(self.countable(part)))
            length += len(texts[-1]) + len(separator)
            self.allow(length)
        return separator.join(texts)

    def allow(self, length: int) -> None:
        """Raises if a text or list of this length is too long."""
        if length > self.max_text:
            raise TemplateLimitError(f"it makes a text of more than {self.max_text:,} characters")

    def countable(self, value: Any) -> Any:
        """Returns ``value``; raises if its nested lists have too many entries to print or sort."""
        entries, waiting = 0, [value]
        while waiting:
            entry = waiting.pop()
            if isinstance(entry, dict):
                entry = list(entry.values())
            if isinstance(entry, list | tuple):
                waiting += entry
                entries += len(entry)
                if entries > MAX_ENTRIES:
                    raise TemplateLimitError("it makes lists with too many entries")
        return value

    def check_operator(self, operator: str, left: Any, right: Any) -> None:
        """Checks the size of the result of ``+``, ``*``, ``**`` and ``%`` before they run."""
        if operator == "%" and isinstance(left, str | bytes):
            self.check_format(left)
        elif operator == "+" and _sized(left) and _sized(right):
            self.allow(len(left) + len(right))
        elif operator == "*" and _sized(left) and isinstance(right, int):
            self.allow(len(left) * right)
        elif operator == "*" and _sized(right) and isinstance(left, int):
            self.allow(len(right) * left)
        elif isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise TemplateLimitError("it computes a very large number")

    def check_call(self, name: str, owner: Any, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Checks the time, and the size of the result of a filter or built-in method before it runs.

        Args:
            name: The name of the filter or method.
            owner: The filter's input, or the method's object.
            args: Further positional arguments.
            options: Further keyword arguments.
        """
        self.tick()
        values = [*args, *options.values()]
        self.countable(owner)
        if name in _SIZED:
            lines = owner.count("\n") + 1 if isinstance(owner, str) else 1
            largest = max((abs(value) for value in values if isinstance(value, int)), default=0)
            if largest > MAX_NUMBER or largest * lines > self.max_text:
                raise TemplateLimitError(f"{quoted(name)} gets a number that is too large")
        if not isinstance(owner, str | bytes):
            return
        texts = [value for value in values if isinstance(value, type(owner))]
        if name == "replace" and len(texts) == 2:
            self.allow(len(owner) + owner.count(texts[0]) * len(texts[1]))  # type: ignore[arg-type]
        elif name == "indent":
            self.allow(len(owner) + (str(owner).count("\n") + 1) * sum(map(len, texts)))
        elif name == "format":
            self.check_format(owner)
        elif name in _HUNGRY and len(owner) + sum(map(len, texts)) > MAX_NUMBER:
            raise TemplateLimitError(f"{quoted(name)} gets a text that is too long")

    def check_format(self, pattern: str | bytes) -> None:
        """Refuses fields of 1,000 characters and more, and computed widths."""
        if _WIDE_FIELD.search(pattern if isinstance(pattern, str) else pattern.decode("latin-1")):
            raise TemplateLimitError("it formats a field that is too wide")


def _sized(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)


MAX_SOURCE: Final = 256 << 10
_Body = TypeVar("_Body", nodes.For, nodes.Macro, nodes.CallBlock)
_ANOTHER_FILE: Final = "Choose another conversion of the model."


class TemplateRefusal(TemplateError):
    """Raised by a template's ``raise_exception``: the template refuses the messages."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one chat template, with the names that Hugging Face's templates expect.

    Attributes:
        meter: Limits a rendering; start it before every rendering.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})  # the compiler does not fold these into constants

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        """Sets up names and limits; ``time_limit`` is the maximum time of one rendering in seconds."""
        self.meter = Meter(time_limit)
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self.meter.countable,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.tick = self.meter.tick
        self.concat = self.meter.joined  # type: ignore[method-assign]  # a class attribute to Jinja
        for name in ("lipsum", "joiner", "cycler"):
            self.globals.pop(name)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        for name in ("random", "urlize", "batch", "slice", "xmlattr", "pprint"):
            self.filters.pop(name)
        self.filters["tojson"] = _tojson
        self.filters["join"] = self._join
        self.filters = {name: self._measured(name, call) for name, call in self.filters.items()}

    def chained(self, *parts: Any) -> str:
        """Implements the ``~`` operator."""
        return self.meter.joined(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Checks an operator before it runs."""
        self.meter.check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Checks calls of built-in methods, such as ``text.center(9999999)``, before they run."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and obj.__name__ == "join" and len(args) == 1:
            return self.meter.joined(args[0], owner)
        if isinstance(owner, str | bytes | int | float | list | tuple | dict):
            self.meter.check_call(obj.__name__, owner, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuses wide fields in ``text.format(...)``."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self.meter.check_format(value.__self__)
        return wrapped

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Metering().visit(tree)
        tree.set_environment(self)
        return tree

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        found = [self.getitem(entry, attribute) for entry in value] if attribute is not None else value
        return self.meter.joined(found, separator=str(d))

    def _measured(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)  # keeps Jinja's marks of filters that take the context
        def measured(*args: Any, **kwargs: Any) -> Any:
            values = [arg for arg in args if not isinstance(arg, Context | EvalContext | TemplateSandbox)]
            self.meter.check_call(name, values[0] if values else None, values[1:], kwargs)
            return call(*args, **kwargs)

        return measured


class GenerationTag(Extension):
    """``{% generation %}``, which marks replies for training in some templates; only its body is used here."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metering(NodeTransformer):
    """Adds a time check to every loop and macro, and a length check to the operator ``~``."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        return self._clocked(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._clocked(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._clocked(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("chained", node.nodes, node.lineno)

    def _clocked(self, node: _Body) -> _Body:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        return node


def _call(method: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None, lineno=lineno)


def compile_template(source: str, sandbox: TemplateSandbox | None = None) -> Template:
    """Compiles a chat template without running it.

    Args:
        source: Text of the template.
        sandbox: The sandbox that it will run in; a new one by default.

    Raises:
        ModelFileError: If it is too long or does not compile.
    """
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE:
        raise ModelFileError(f"its chat template is longer than {MAX_SOURCE >> 10} KiB.", _ANOTHER_FILE)
    try:
        return (sandbox or TemplateSandbox()).from_string(source)
    except TemplateError as error:
        reason = quoted(str(error).rstrip(". "), 120)
    except (RecursionError, MemoryError, SyntaxError, ValueError):  # limits of Python's compiler
        reason = "it is nested too deeply"
    raise ModelFileError(f"its chat template does not compile: {reason}.", _ANOTHER_FILE)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateRefusal(str(message)[:1000])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 100 or any(char.isdigit() for char in pattern):
        raise TemplateLimitError("it formats the date too widely")
    return datetime.now().strftime(pattern)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
