"""Splits a long reply into passages of self-contained Markdown.

A reply is split while it arrives: only its last passage is parsed again, so that the cost of a token does not
depend on the length of the reply.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.rules_block.table import escapedSplit
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.emphasis import tokenize
from markdown_it.token import Token

from slipstream.app.platform.safe_text import clean
from slipstream.app.tui.chat.formulas import formula_rule

SIZE: Final = 1200  # characters after which the next block begins another passage
STEP: Final = 150  # characters between two checks whether to end the passage
CODE_SIZE: Final = 3000
"""``SIZE`` for code blocks; larger, since the parts of a block are highlighted and scrolled separately."""
LINE: Final = 4 * SIZE  # characters after which a paragraph without a suitable line end is cut between words
TOLD: Final = 24  # characters after which the block type of a line is known; longer than a list number
LONGEST: Final = 4 * LINE  # characters after which any block is cut, also in a word: wrapping millions takes minutes
_DUNDER: Final = re.compile(r"__[a-z][a-z0-9_]*__(?!\w)")
_ASCII_WORD: Final = re.compile(r"[0-9A-Za-z]")
_WORD: Final = re.compile(r"[^\W\d_]")
_ESCAPED: Final = re.compile(r"\\(?:[\n*_#`~\[\]()$|<>!{}&]|(?<=[0-9]\\)\.|(?<!\S\\)[-+])")  # what authors escape
_PLAIN: Final = re.compile(r"[\w\s]?")
_AFTER, _BEFORE = "/-=,)>]}&|+.:;!?", "/\\-=,(<[{&|+@#^"  # between signs, no emphasis begins or ends beside these
_BOXES: Final = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|#|/|www\.|.*[./]")  # what a program can open
_CODE: Final = frozenset({"fence", "code_block"})
_LISTS: Final = frozenset({"bullet_list_open", "ordered_list_open"})


def parser(formulas: bool = False) -> MarkdownIt:
    """A Markdown parser that loses nothing: HTML is text, and line ends and indentation are kept."""
    markdown = _plain()
    if formulas:
        markdown.inline.ruler.before("escape", "formula", formula_rule)
    markdown.inline.ruler.before("escape", "backslash", _backslash)
    markdown.inline.ruler.at("newline", _line_end)
    markdown.inline.ruler.at("emphasis", _emphasis)
    markdown.core.ruler.after("block", "cells", _all_cells)
    markdown.core.ruler.push("boxes", _boxes)
    markdown.core.ruler.push("inert", _clean)
    return markdown


def _plain() -> MarkdownIt:
    """A parser of blocks; lines such as ``[1]: address`` stay text instead of becoming invisible definitions."""
    return MarkdownIt("gfm-like", {"html": False}).disable("reference")


def _backslash(state: StateInline, silent: bool) -> bool:
    r"""A markdown-it rule that keeps the backslashes of paths and patterns, such as ``\\host`` and ``\d+\.``."""
    if state.src[state.pos] != "\\" or _ESCAPED.match(state.src, state.pos):
        return False
    size = 2 if state.src[state.pos + 1 : state.pos + 2] == "\\" else 1
    state.pending += "" if silent else state.src[state.pos : state.pos + size]
    state.pos += size
    return True


def _emphasis(state: StateInline, silent: bool) -> bool:
    """A markdown-it rule for emphasis that leaves ``2*3*4``, ``**/*.py``, ``.*`` and ``__init__`` as they are."""
    at, before = state.pos, len(state.delimiters)
    if (name := _DUNDER.match(state.src, at)) and not state.src[at - 1 : at].isalnum():
        state.pending += "" if silent else name[0]
        state.pos = name.end()
        return True
    if not tokenize(state, silent):
        return False
    left, right = state.src[at - 1 : at] if at else "", state.src[state.pos : state.pos + 1]
    between = not _PLAIN.fullmatch(left) and not _PLAIN.fullmatch(right)
    pattern = state.pos == at + 1 and (
        left in (".", "^") or (left in ("/", "\\") and state.src[at - 2 : at - 1] != "*")
    )
    opens = not (_ASCII_WORD.match(left) or left in (")", "]", "}") or pattern or (between and right in _AFTER))
    for delimiter in state.delimiters[before:]:
        delimiter.open = delimiter.open and opens
        delimiter.close = delimiter.close and not (between and left in _BEFORE)
    return True


def _all_cells(state: StateCore) -> None:
    """Adds the cells of a table's row that has more of them than the head to the row's last cell."""
    row, cells, head = None, list[Token](), False
    for token in state.tokens:
        if token.type in ("thead_open", "thead_close"):
            head = token.nesting > 0
        elif token.type == "tr_open" and not head:
            row, cells = token, []
        elif token.type == "inline" and row:
            cells.append(token)
        elif token.type == "tr_close" and row and row.map and cells:
            line = state.src.split("\n")[row.map[0]].strip().lstrip(">").strip()
            found = [cell.strip() for cell in escapedSplit(line)]
            found = found[not found[0] :][: None if found[-1] else -1]
            cells[-1].content = " | ".join([cells[-1].content, *found[len(cells) :]])
            row = None


def _boxes(state: StateCore) -> None:
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        first = inline.children[0] if item.type == "list_item_open" and inline.children else None
        if first and first.content[:4] in _BOXES:
            first.content = _BOXES[first.content[:4]] + first.content[4:]


def _line_end(state: StateInline, silent: bool) -> bool:
    """A markdown-it rule that keeps line ends and indentation, which code without a fence needs."""
    source, end = state.src, state.pos + 1
    if source[state.pos] != "\n":
        return False
    while end < state.posMax and source[end] in " \t":
        end += 1
    if not silent:
        state.pending = state.pending.rstrip(" ")
        state.push("hardbreak", "br", 0)
        for _ in source[state.pos + 1 : end].expandtabs(4):
            state.push("softbreak", "br", 0)  # Textual shows each as a space, but joins the spaces in a text
    state.pos = end
    return True


def _clean(state: StateCore) -> None:
    """Sanitizes again: parsing decodes ``&#x202E;`` and joins pieces that were sanitized separately."""
    tokens = list(state.tokens)
    while tokens:
        token = tokens.pop()
        children = token.children or []
        end = 0
        for at in range(len(children) - 1, -1, -1):
            end = at if children[at].type == "link_close" else end
            if children[at].type != "link_open" or not end:
                continue
            address, title = str(children[at].attrs.get("href", "")), _title(children[at])
            if not _ADDRESS.match(address):  # such as "handlers[i](event)"
                for mark, content in ((children[at], "["), (children[end], f"]({unquote(address)}{title})")):
                    mark.type, mark.tag, mark.nesting, mark.content, mark.attrs = "text", "", 0, content, {}
            else:  # behind the link its title, and its address where it has no text
                children[end + 1 : end + 1] = [Token("text", "", 0, content=title)] if title else []
                children[end:end] = [Token("text", "", 0, content=address)] if end == at + 1 else []
        if token.type == "image":  # otherwise shown by its description alone
            token.type, token.tag, token.children = "text", "", None
            token.content = f"![{token.content}]({token.attrs.get('src', '')}{_title(token)})"
        token.content = clean(token.content)
        token.attrs = {name: clean(value) if isinstance(value, str) else value for name, value in token.attrs.items()}
        tokens += token.children or ()


def _title(token: Token) -> str:
    title = token.attrs.get("title")
    return f' "{title}"' if title else ""


@dataclass(slots=True)
class Passage:
    """A part of a reply."""

    text: str = ""  # the model's text
    # prefix from the passage above: the first line of a code block, or the head of a table
    opening: str = ""
    goes_on: bool = False  # whether it begins inside of a block

    @property
    def source(self) -> str:
        return self.opening + self.text

    def codes(self) -> list[str]:
        """Its code blocks, from top to bottom; of a block that spans several passages, only the part in this one."""
        return [clean(token.content) for token in _blocks(self.source) if token.type in _CODE]

    @property
    def goes_on_in_code(self) -> bool:
        return self.goes_on and any(token.type in _CODE for token in _blocks(self.source)[:1])


class Passages:
    """The passages of a reply."""

    def __init__(self) -> None:
        self._all = [Passage()]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, place: int) -> Passage:
        return self._all[place]

    def add(self, text: str) -> None:
        for start in range(0, len(text), SIZE):
            before = len(self._all[-1].text)
            self._all[-1].text += text[start : start + SIZE]
            while len(self._all[-1].text) // STEP != before // STEP and (cut := _cut(self._all[-1])):
                last, (at, opening, goes_on) = self._all[-1], cut
                rest, last.text = last.text[at:], last.text[:at]
                self._all.append(Passage(rest, opening, goes_on))
                before = 0

    def codes(self) -> list[str]:
        codes: list[str] = []
        for passage in self._all:
            parts = passage.codes()
            if codes and parts and passage.goes_on_in_code:
                codes[-1] += parts.pop(0)
            codes += parts
        return [code.rstrip() for code in codes]


def last_block(source: str) -> int:
    """Number of the first line of a text's last block, from 0."""
    blocks = _blocks(source)
    return max((token.map[0] for token in blocks if token.map and token.level == 0), default=0)


def _blocks(source: str) -> list[Token]:
    """The block tokens of a text, including nested ones; inline content is not parsed."""
    markdown = _plain()
    tokens: list[Token] = []
    markdown.block.parse(source, markdown, {}, tokens)
    return [token for token in tokens if token.nesting >= 0]


def _cut(passage: Passage) -> tuple[int, str, bool] | None:
    """Where to cut a passage, and ``opening`` and ``goes_on`` of the next one; None to leave it whole."""
    source = passage.source
    if len(source) < SIZE:
        return None
    blocks = _blocks(source)
    tops = [token for token in blocks if token.level == 0 and token.map]
    if not tops:
        return None
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    at, opening, goes_on = _last_told([_line(token) for token in tops], source, starts), "", False
    if at == 0:
        at, opening, goes_on = _cut_inside(tops[0], blocks, source, starts)
    if at <= len(opening) and len(source) >= LONGEST:
        at, goes_on = len(opening) + LINE, True
    at -= len(passage.opening)
    return (at, opening, goes_on) if at > 0 else None


def _cut_inside(block: Token, blocks: list[Token], source: str, starts: list[int]) -> tuple[int, str, bool]:
    """Where to cut inside of a long block; 0 to leave it whole."""
    if block.type in _CODE:
        at = _code_joint(source, starts, (block.map or [0, 0])[1])
        return at, source[: starts[1]] if block.type == "fence" else "", True
    if block.type in _LISTS:
        items = [_line(token) for token in blocks if token.type == "list_item_open" and token.level == 1]
        return _last_told(items, source, starts), "", True
    if block.type == "blockquote_open":
        inner = [_line(token) for token in blocks if token.level == 1 and token.map]
        return _last_told(inner, source, starts), "", True
    if block.type == "table_open":
        rows = [_line(token) for token in blocks if token.type == "tr_open"]
        return _last_told(rows[2:], source, starts), source[: starts[2]], False
    return (_paragraph_joint(source, starts), "", True) if block.type == "paragraph_open" else (0, "", False)


def _last_told(lines: list[int], source: str, starts: list[int]) -> int:
    """Start of the last of these lines that is long enough to identify its block type; 0 if there is none."""
    for line in reversed(lines):
        begun = source[starts[line] :]
        if line and ("\n" in begun or len(begun) >= TOLD):
            return starts[line]
    return 0


def _code_joint(source: str, starts: list[int], end: int) -> int:
    """Where to cut a long code block, preferably at an empty line above an unindented one; 0 to leave it whole."""
    if len(source) < CODE_SIZE:
        return 0
    lines = source.split("\n")
    empty = 0
    for line in range(min(end, len(lines)) - 2, 1, -1):
        if starts[line] < CODE_SIZE // 2:
            break
        if not lines[line].strip():
            if lines[line + 1][:1].strip():
                return starts[line]
            empty = empty or starts[line]
    if len(source) < 2 * CODE_SIZE:
        return 0
    return empty or (starts[len(lines) - 2] if len(lines) > 3 else 0)


def _paragraph_joint(source: str, starts: list[int]) -> int:
    if len(source) < 2 * SIZE:
        return 0
    lines = source.split("\n")
    for line in range(len(lines) - 2, 0, -1):
        marks = source[: starts[line]]
        if _WORD.match(lines[line]) and not any(marks.count(mark) % 2 for mark in ("**", "`")):
            return starts[line]
    return source.rfind(" ", SIZE) + 1 if len(source) >= LINE else 0


def _line(token: Token) -> int:
    return token.map[0] if token.map else 0
