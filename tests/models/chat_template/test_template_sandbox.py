import resource
import sys
from time import process_time

import pytest

from slipstream.models.chat_template.sandbox import compile_template
from slipstream.models.chat_template.template import ChatTemplate
from slipstream.models.errors import SlipstreamError

HI = [{"role": "user", "content": "hi"}]

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['os'] }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{% set f = '{0.__class__.__mro__}'.format %}{{ f(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends 'x' %}",
    "{{ messages.append(1) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ range(10000000) | list }}",
]
INERT = ["{{ (''|attr('format'))|attr('__globals__') }}", "{{ lipsum }}{{ cycler }}{{ environment }}{{ tick }}"]
GREEDY = [
    "{{ 'a' * 10**10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ (10 ** 100) ** 100000 }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a' | indent(1000000000) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "{{ range(99999) | join('a' * 99999) }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
]
ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for x in range(99999) recursive %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}x{% endfor %}{% endfor %}",
]


def test_compiling_computes_nothing() -> None:
    compile_template("".join(f"{{{{ {expression} }}}}" for expression in ("'a' * 10**10", "'a' | center(10**10)")))


@pytest.mark.parametrize("source", ESCAPES)
def test_ways_out_are_closed(source: str) -> None:
    with pytest.raises(SlipstreamError, match="chat template failed") as caught:
        ChatTemplate(source).parts(HI)
    assert caught.value.title.isprintable()


@pytest.mark.parametrize("source", INERT)
def test_names_that_lead_nowhere(source: str) -> None:
    assert ChatTemplate(source).parts(HI) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system ends the process")
@pytest.mark.parametrize("source", GREEDY)
def test_templates_that_want_too_much_memory(source: str) -> None:
    limits, peak = resource.getrlimit(resource.RLIMIT_AS), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SlipstreamError, match=r"chat template failed: "):
        ChatTemplate(source).parts(HI)
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200 << 10


@pytest.mark.parametrize("source", ENDLESS)
def test_templates_that_never_end(source: str) -> None:
    started = process_time()
    with pytest.raises(SlipstreamError, match=r"it runs longer than 0\.05 s"):
        ChatTemplate(source, time_limit=0.05).parts(HI)
    assert process_time() - started < 2


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': [1, 'é<'], 'b': none} | tojson }}", '{"a": [1, "é<"], "b": null}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ [1, 2] | join(', ') }} {{ ', '.join(['a', 'b'] | map('upper')) }}", "1, 2 A, B"),
        ("{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | join('+') }}", "1+2"),
        ("{{ [{'a': 1}, {'a': 2}] | join('+', attribute='a') }}", "1+2"),
        ("{{ x | default(128000) }} {{ {}.get('n', 99999) }}", "128000 99999"),
        ("{{ '%s-%03d' | format('a', 7) }} {{ '{}:{}'.format(1, 2) }} {{ '%d' % 3 }}", "a-007 1:2 3"),
        ("{{ 'a-b' | replace('-', '+') }} {{ 'a\nb' | indent(2) }} {{ [3, 1] | sort }}", "a+b a\n  b [1, 3]"),
        (
            "{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{{ loop.last }}{% endfor %}",
            "1False3True",
        ),
        ("{% for a in 'abc' %}{{ loop.index }}/{{ loop.length }}{{ loop.nextitem }} {% endfor %}", "1/3b 2/3c 3/3 "),
        ("{% set n = namespace(i=0) %}{% for a in [1, 2] %}{% set n.i = n.i + a %}{% endfor %}{{ n.i }}", "3"),
        ("{{ 2 * 3 }} {{ 7 % 4 }} {{ [1] + [2] }} {{ 'a' * 3 }}", "6 3 [1, 2] aaa"),
    ],
)
def test_what_honest_templates_use_works(source: str, text: str) -> None:
    assert "".join(part.text for part in ChatTemplate(source).parts(HI)) == text
