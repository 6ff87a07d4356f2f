"""A reply is cut into passages: nothing is lost, none is long, and each stands by itself."""

import pytest
from textual.app import App, ComposeResult
from textual.widgets._markdown import MarkdownBullet

from slipstream.app.tui.chat.authorship import Sources
from slipstream.app.tui.chat.markdown_chunks import (
    CODE_SIZE,
    LINE,
    LONGEST,
    SIZE,
    Passage,
    Passages,
    last_block,
    parser,
)
from slipstream.app.tui.chat.reply_text import FenceHead, PassageView

CODE = "".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(300)).rstrip()
TEXTS = {
    "prose": "".join(f"Paragraph {n} " + "goes on and on " * 20 + "\n\n" for n in range(60)),
    "code": f"Look:\n\n```python\n{CODE}\n```\n\nThat is all.",
    "bullets": "".join(f"- item {n} is as long as that\n" for n in range(300)),
    "numbers": "".join(f"{n}. **item** {n} is as long as that\n\n" for n in range(1, 300)),
    "table": "| a | b |\n|---|---|\n" + "".join(f"| {n} | a word |\n" for n in range(500)),
    "quote": "".join(f"> A thought, number {n}.\n>\n" for n in range(300)),
    "lines": "".join(f"line {n} of many\n" for n in range(900)),
    "one line": "word and " * 2500,
    "one word": "x" * 40_000,
    "NULs": "\0" * 40_000,
    "one line of code": "```\n" + "x" * 40_000,
    "one quote": "> " + "\u6f22" * 40_000,
    "one item": "- " + "x" * 40_000,
}


def fed(text: str, size: int) -> list[Passage]:
    passages = Passages()
    for start in range(0, len(text), size):
        passages.add(text[start : start + size])
    return [passages[place] for place in range(len(passages))]


@pytest.mark.parametrize("size", [7, 130, 1 << 20])
@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_lost_and_none_is_long(name: str, size: int) -> None:
    passages = fed(TEXTS[name], size)
    assert "".join(passage.text for passage in passages) == TEXTS[name]
    most = {"code": 2 * CODE_SIZE, "lines": 3 * SIZE, "one line": LINE + SIZE}.get(name, 3 * SIZE)
    most = LONGEST + SIZE if " " not in TEXTS[name][4:] and "\n" not in TEXTS[name][4:] else most
    assert len(passages) > 3 and max(len(passage.text) for passage in passages) < most


def test_a_short_reply_is_one_passage_and_what_is_cut_goes_on_as_what_it_was() -> None:
    assert len(fed("# Short\n\nOne line.\n\n```\ncode\n```", 5)) == 1
    assert len(fed("", 5)) == 1
    assert all(passage.text[0] == "-" and passage.goes_on for passage in fed(TEXTS["bullets"], 7)[1:])
    assert all(passage.text[0].isdigit() and passage.goes_on for passage in fed(TEXTS["numbers"], 7)[1:])
    assert all(passage.text[0] == ">" and passage.goes_on for passage in fed(TEXTS["quote"], 7)[1:])
    assert all(passage.opening == "| a | b |\n|---|---|\n" for passage in fed(TEXTS["table"], 7)[1:])
    assert all(passage.text.startswith("line") and passage.goes_on for passage in fed(TEXTS["lines"], 7)[1:])
    assert not any(passage.goes_on for passage in fed(TEXTS["prose"], 7))


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_a_cut_code_block_is_code_in_all_its_parts_and_whole_when_it_is_asked_for(size: int) -> None:
    passages = Passages()
    for start in range(0, len(TEXTS["code"]), size):
        passages.add(TEXTS["code"][start : start + size])
    assert passages.codes() == [CODE]
    parts = [passages[place] for place in range(len(passages)) if passages[place].goes_on_in_code]
    assert len(parts) >= 2
    assert all(part.source.startswith("```python\n\ndef f") for part in parts)  # between two functions


def test_a_code_block_is_its_own_and_the_last_block_takes_what_is_appended() -> None:
    passages = Passages()
    passages.add("```\none\n```\n\n" + "word " * 300 + "\n\n```\ntwo\n```\n\n" + "word " * 300 + "\n\n    three\n")
    assert passages.codes() == ["one", "two", "three"]
    assert last_block("one\n\n```\ncode\nmore") == 2
    assert last_block("- a\n- b") == 0
    assert last_block("") == 0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[note]: remember", "[note]: remember"),
        ("[ERROR]: disk-full\n[INFO]: retrying", "[ERROR]: disk-full [INFO]: retrying"),
        ("[1]: https://example.com/paper", "[1]: https://example.com/paper"),
        ("[^1]: A footnote, see [^1].", "[^1]: A footnote, see [^1]."),
        ("[text][1] and [1]\n\n[1]: <https://example.com>", "[text][1] and [1] [1]: https://example.com"),
        ("| a | b |\n|---|---|\n| 1 | 2 | 3 | 4 |", "a b 1 2 | 3 | 4"),
        ("> | a | b |\n> |---|---|\n> | 1 | 2 | 3", "a b 1 2 | 3"),
        ("- | a | b |\n  |---|---|\n  | 1 | 2 | 3 |", "a b 1 2 | 3"),
        ("2*3*4=24", "2*3*4=24"),
        ("x**2 + y**2 = z**2", "x**2 + y**2 = z**2"),
        ("a*b*c, (a)*b*(c), f(x)*g(y)*h", "a*b*c, (a)*b*(c), f(x)*g(y)*h"),
        ("__init__.py and __name__", "__init__.py and __name__"),
        ("![a plot](https://example.com/a.png)", "![a plot](https://example.com/a.png)"),
        ("handlers[i](event), f[x](y)", "handlers[i](event), f[x](y)"),
        ("[a](<b c>) and [](x) and [b]()", "[a](b c) and [](x) and [b]()"),
        ("[a](http://x.y) [b](b.md) [c](#c) [d](/d) [e](mailto:f)", "a b c d e"),
        ("5. five\n3. three", "five three"),
        ("Copy *.py,*.txt, src/**/*.ts and lib/**/*.js", "Copy *.py,*.txt, src/**/*.ts and lib/**/*.js"),
        ("card ****-****-****-1234, user=***,pw=***,x", "card ****-****-****-1234, user=***,pw=***,x"),
        ("^.*foo.*$, f(*)(*), count(*), max(*), /*a*/, x^*y^*", "^.*foo.*$, f(*)(*), count(*), max(*), /*a*/, x^*y^*"),
        (r"\\host\share\.git, \d+\.\d+, \w\-\w, C:\\x", r"\\host\share\.git, \d+\.\d+, \w\-\w, C:\\x"),
        (r"1\. a \- b\_c \*d\* \[e\] \$5 \<f\>", "1. a - b_c *d* [e] $5 <f>"),
        ('**a**/**b**, *c*/*d*, (**e**), "*f*", **g:** h', 'a/b, c/d, (e), "f", g: h'),
        ("see [](https://example.com)", "see https://example.com"),
        ('[a](http://x.y "b"), [c](d "e"), ![f](g.png "h")', 'a "b", [c](d "e"), ![f](g.png "h")'),
        ("**N**ational *S*pace, *really* **so**, 这是*重点*内容", "National Space, really so, 这是重点内容"),
    ],
)
def test_no_text_vanishes(text: str, kept: str) -> None:
    found = list[str]()
    for token in parser().parse(text):
        if token.type == "inline":
            found.append("".join(" " if child.tag == "br" else child.content for child in token.children or ()))
    assert " ".join(filter(None, found)) == kept


async def test_numbers_of_lists_and_names_of_files_are_shown_as_written() -> None:
    text = '3. wrong\n5) other\n\n7. a\n9. b\n\n---\n\n1. c\n1. d\n\n```python title="a b.py"\nx = 1\n```'

    class Shown(App[None]):
        def compose(self) -> ComposeResult:
            yield PassageView(Passage(text), 0, Sources())

    app = Shown()
    async with app.run_test() as pilot:
        await pilot.pause()
        numbers = [bullet.symbol.strip() for bullet in app.query(MarkdownBullet)]
        head = app.query_one(FenceHead).content
    assert numbers == ["3.", "5)", "7.", "9.", "1.", "2."]
    assert str(head).startswith('python title="a b.py"')
