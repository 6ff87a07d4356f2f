"""Every hostile template in a process of its own: time to its refusal, and the memory that it took until then.

A command: ``python -m tests.soak.templates``. Prints the templates that got through or took too much, then one line:
what, how many, how many failed, the 95 % bound, and the worst time and memory.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.models.chat_template.test_template_sandbox import ENDLESS, ESCAPES, GREEDY, INERT

SECONDS, MEGABYTES = 20.0, 160  # printing deeply shared lists is one operation, ended by the limit of memory
_DEEP = 2000
MORE = (
    "{{ " + "(" * _DEEP + "1" + ")" * _DEEP + " }}",
    "{{ " + "[" * _DEEP + "]" * _DEEP + " }}",
    "{{ " + "not " * _DEEP + "1 }}",
    "{% if 1 %}" * _DEEP + "{% endif %}" * _DEEP,
    "{{ 1" + " + 1" * 20_000 + " }}",
    "{{ 'a' " + "| upper " * 20_000 + "}}",
    "{{ range(10**30) | list }}",
    "{{ range(99999) | map('string') | list | sort | join | length }}" * 200,
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ messages | tojson }}{% endfor %}{% endfor %}",
    "{{ ('a' * 1000000) | list | sort | unique | list }}" * 50,
    "{{ ('%s' * 300000) | format(*range(300000)) }}",
    "{% set n = namespace(x={}) %}{% for i in range(99) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x }}",
    "{% macro a(n) %}{{ b(n) }}{{ b(n) }}{% endmacro %}{% macro b(n) %}{{ a(n) }}{{ a(n) }}{% endmacro %}{{ a(1) }}",
    "{% for c in ('ab' * 400000) %}{% for d in ('ab' * 400000) %}{{ c ~ d }}{% endfor %}{% endfor %}",
)
CHILD = """
import resource, sys
from slipstream.models.errors import SlipstreamError
from slipstream.models.chat_template.template import ChatTemplate
try:
    parts = ChatTemplate(sys.stdin.read()).parts([{"role": "user", "content": "hi"}])
    told = f"text of {sum(len(part.text) for part in parts)}"
except SlipstreamError as error:
    told = f"refused: {error.title}"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, told)
"""


def tried(source: str) -> tuple[float, int, str]:
    started = time.monotonic()
    root = Path(__file__).parents[2]
    try:
        child = subprocess.run(
            [sys.executable, "-c", CHILD], input=source, capture_output=True, text=True, timeout=60, cwd=root
        )
    except subprocess.TimeoutExpired:
        return 60.0, 0, "no end"
    memory, _, told = child.stdout.partition(" ")
    return time.monotonic() - started, int(memory or 0), told.strip() or f"ended with {child.returncode}"


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    base = tried("x")
    results = [(source, *tried(source)) for source in (*ESCAPES, *INERT, *GREEDY, *ENDLESS, *MORE)]
    failed = 0
    for source, seconds, memory, told in results:
        harmless = told.startswith("refused") or (told.startswith("text of ") and int(told.split()[-1]) <= 4 << 20)
        if not harmless or seconds - base[0] > SECONDS or memory - base[1] > MEGABYTES:
            failed += 1
            print(f"{seconds:.1f} s, {memory} MB, {told}: {source[:80]!r}")
    worst, largest = max(result[1] for result in results) - base[0], max(result[2] for result in results) - base[1]
    bound = f", 95 % bound {3 / len(results):.1%}" if not failed else ""
    print(f"templates: {len(results)} hostile ones, {failed} failed{bound}; worst {worst:.1f} s and {largest} MB")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
