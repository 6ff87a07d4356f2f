"""The sandbox for chat templates, which are untrusted code from model files.

Jinja's immutable sandbox denies a template access to Python's internals. Each iteration of a loop and each call of a
macro checks the time. A rendering may allocate ``MEMORY`` bytes where the system enforces that (Linux). A slow or large
operation elsewhere ends the engine's process, through its watchdog or the system; the interface runs on.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from slipstream.models.errors import ModelFileError
from slipstream.models.outside import LONGEST_REASON, quoted

TIME_LIMIT: Final = 2.0  # seconds
MAX_TEXT: Final = 1 << 20  # characters
MAX_SOURCE: Final = 256 << 10  # bytes
MEMORY: Final = 128 << 20  # bytes
_ANOTHER_FILE: Final = "Choose another conversion of the model."


class TemplateLimitError(SecurityError):
    """A template needs more time or memory than it may use."""


class TemplateRefusal(TemplateError):
    """Raised by a template's ``raise_exception``: the template refuses the messages."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one chat template, with the names that Hugging Face's templates expect."""

    intercepted_binops = frozenset({"**"})

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # otherwise the compiler computes constants, such as a text of gigabytes
            finalize=_at_run_time,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self._time_limit, self._deadline = time_limit, float("inf")
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=lambda pattern: datetime.now().strftime(pattern)
        )
        self.filters["tojson"] = partial(json.dumps, ensure_ascii=False)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> NoReturn:
        """Refuses powers: one of them may take hours."""
        raise TemplateLimitError("it computes a power")

    def render(self, template: Template, variables: dict[str, object], given: int) -> str:
        """Renders messages of ``given`` characters; raises ``TemplateLimitError`` beyond the limits."""
        self._deadline = time.monotonic() + self._time_limit
        left, chunks = MAX_TEXT + 4 * given, list[str]()
        try:
            with _limited_memory(MEMORY + 64 * given):
                for chunk in template.generate(variables):
                    self.tick()
                    chunks.append(chunk)
                    left -= len(chunk)
                    if left < 0:
                        raise TemplateLimitError(f"it makes a text of more than {MAX_TEXT + 4 * given:,} characters")
        except MemoryError:
            raise TemplateLimitError("it needs too much memory") from None
        return "".join(chunks)

    def tick(self) -> str:
        """Raises if the time is over; returns an empty text, since templates call it as an expression."""
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"it runs longer than {self._time_limit:g} s")
        return ""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Ticking().visit(tree)
        tree.set_environment(self)
        return tree


class GenerationTag(Extension):
    """``{% generation %}``, which marks replies for training in some templates; only its body is used here."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Ticking(NodeTransformer):
    """Adds a check of the time to every loop and macro."""

    def _ticked(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _ticked


def compile_template(source: str, sandbox: TemplateSandbox | None = None) -> Template:
    """Compiles a chat template without running it; raises ``ModelFileError`` if it is too long or does not compile."""
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE:
        raise ModelFileError(f"its chat template is longer than {MAX_SOURCE >> 10} KiB.", _ANOTHER_FILE)
    try:
        return (sandbox or TemplateSandbox()).from_string(source)
    except TemplateError as error:
        reason = quoted(str(error).rstrip(". "), LONGEST_REASON)
    except (RecursionError, MemoryError, SyntaxError, ValueError):  # limits of Python's compiler
        reason = "it is nested too deeply"
    raise ModelFileError(f"its chat template does not compile: {reason}.", _ANOTHER_FILE)


@contextmanager
def _limited_memory(more: int) -> Iterator[None]:
    """Lets the process allocate only ``more`` bytes; without effect on other systems than Linux."""
    if sys.platform != "linux":
        yield
        return
    import resource  # not on Windows

    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (allowed if soft == resource.RLIM_INFINITY else min(allowed, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pass_context
def _at_run_time(_context: Context, value: object) -> object:
    """Returns the value; the compiler does not compute outputs in advance if they need the context."""
    return value


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateRefusal(str(message)[:1000])
