"""One step drawn as a tree: what was drafted, with its probabilities, and the path that became text."""

from __future__ import annotations

from dataclasses import dataclass
from unicodedata import combining

from textual.content import Content, Span

from slipstream.app.platform.safe_text import clean, one_line
from slipstream.app.protocol import DraftTree, Piece
from slipstream.app.tui.chat.authorship import style_of
from slipstream.app.tui.parts.format import duration

ROOT = -1
"""See ``DraftTree.parents``; the same name of ``slipstream.models.types`` would bring numpy into the interface."""
MOST_DRAWN = 48
"""Nodes of one tree that are drawn, the likeliest; more than these nobody reads while they fly past."""
LONGEST = 14
"""Cells of one token's text."""
SMALLEST = 16
"""Columns below which there is no room for a tree."""
FAINT, REJECTED = "$foreground 40%", "$foreground 60%"
MARKS = "¹²³⁴⁵⁶⁷⁸⁹"
"""Tell apart who drafted which node, where several did."""
CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
PICTURES = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"})


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it is drawn: its text, the cells that this takes, and its probability in percent."""

    text: str
    cells: int
    share: str
    style: str
    lit: bool

    @property
    def width(self) -> int:
        """Cells that all of it takes."""
        return self.cells + len(self.share)


def drawn(tree: DraftTree, width: int) -> Content:
    """Draws a step in lines of at most ``width`` cells: who drafted it, then the tree.

    The first line of the tree is the text that was written: the accepted path, and the target's own token behind it.
    What was rejected hangs below, the likelier the higher. A path that is too long for the line goes on below, between
    two equal marks.
    """
    lines = [_heading(tree)]
    if tree.texts and width >= SMALLEST:
        lines += _Drawing(tree, width).lines()
    return Content("\n").join(
        [line if line.cell_length <= width else line.truncate(width, ellipsis=True) for line in lines]
    )


def visible(text: str) -> str:
    """A token's text alone: what cannot be seen in it is drawn."""
    shown = clean(text.translate(PICTURES)) if text else "<end>"
    return f"◌{shown}" if combining(shown[0]) else shown


def _heading(tree: DraftTree) -> Content:
    """Says which step this was, who drafted it, what came of it, and how long it took."""
    words = [(f"{tree.step:,} ", FAINT)]
    if not tree.texts:
        return Content.assemble(*words, ("plain ", FAINT), (visible(tree.last.text), style_of(tree.last)), _took(tree))
    names = _names(tree)
    for number, name in enumerate(names):
        mark = MARKS[number % len(MARKS)] if len(names) > 1 else ""
        words += [(" + ", FAINT)] if number else []
        words += [(one_line(name) + mark, "bold")]
    ending = "" if tree.last.origin == "plain" else f" + {tree.last.origin}"
    left_out = len(tree.texts) - MOST_DRAWN
    words += [
        (f"  {len(tree.path)} of {len(tree.texts)}{ending}", REJECTED),
        (f" · {left_out} not drawn" if left_out > 0 else "", FAINT),
        (f" · {tree.probes} probes" if tree.probes else "", FAINT),
        _took(tree),
    ]
    return Content.assemble(*words)


def _took(tree: DraftTree) -> tuple[str, str]:
    return (f" · {duration(tree.ms) if tree.ms >= 10 else f'{tree.ms:.1f} ms'}", FAINT)


def _names(tree: DraftTree) -> list[str]:
    """Who drafted, in the order of their first nodes."""
    return list(dict.fromkeys(tree.sources))


class _Drawing:
    """Places nodes on lines."""

    def __init__(self, tree: DraftTree, width: int) -> None:
        self._width = width
        self._rows: list[list[tuple[int, int, str, str]]] = []  # of each line: column, cells, text, style
        self._put_off: list[tuple[int, int, list[int]]] = []  # line, column, and the nodes that go on below
        self._nodes = self._made(tree)
        self._children = self._sorted(tree)

    def lines(self) -> list[Content]:
        """All lines, from top to bottom."""
        self._hang(self._children[ROOT], 0, 0)
        below, done = [], 0
        while done < len(self._put_off):
            below.append(len(self._rows))
            self._hang(self._put_off[done][2], len(self._rows), 1)
            done += 1
        for number, (row, column, nodes) in enumerate(self._put_off):
            mark = "…" if len(below) == 1 else CIRCLED[number % len(CIRCLED)]
            style = "bold" if self._nodes[nodes[0]].lit else FAINT
            self._rows[row].append((column, 1, mark, style))
            self._rows[below[number]].append((0, 1, mark, style))
        return [_line(row) for row in self._rows]

    def _made(self, tree: DraftTree) -> dict[int, Node]:
        """The nodes that are drawn: those on the path, the likeliest of the others, and last the target's own token."""
        accepted, names = set(tree.path), _names(tree)
        reach: list[float] = []
        for parent, prob in zip(tree.parents, tree.probs, strict=True):
            reach.append(prob * (reach[parent] if parent != ROOT else 1.0))
        # a parent is as likely as its children at least, and stands before them: it is never the one left out
        likely = sorted(range(len(reach)), key=lambda node: (node not in accepted, -reach[node], node))[:MOST_DRAWN]
        nodes = {}
        for node in likely:
            lit = node in accepted
            style = style_of(Piece("", "accepted", tree.sources[node])) if lit else REJECTED
            mark = MARKS[names.index(tree.sources[node]) % len(MARKS)] if len(names) > 1 else ""
            nodes[node] = self._node(tree.texts[node], mark, f" {100 * tree.probs[node]:.0f}", style, lit)
        nodes[len(tree.texts)] = self._node(tree.last.text, "", "", style_of(tree.last), True)
        return nodes

    def _node(self, text: str, mark: str, share: str, style: str, lit: bool) -> Node:
        shown = Content(visible(text))
        most = min(LONGEST, self._width - 7)
        if shown.cell_length > most:
            shown = shown.truncate(most, ellipsis=True)
        return Node(shown.plain + mark, shown.cell_length + len(mark), share, style, lit)

    def _sorted(self, tree: DraftTree) -> dict[int, list[int]]:
        """The children of every node, what became text first."""
        children: dict[int, list[int]] = {node: [] for node in (ROOT, *self._nodes)}
        for node in sorted(self._nodes, key=lambda node: (not self._nodes[node].lit, node)):
            parent = tree.parents[node] if node < len(tree.texts) else (tree.path or [ROOT])[-1]
            children[parent].append(node)
        return children

    def _hang(self, nodes: list[int], row: int, column: int) -> None:
        """Draws siblings below each other, the first on this line, and what is below each behind it."""
        widest = max(self._nodes[node].width for node in nodes)
        if column + 2 + widest > self._width and column > 1:
            self._put_off.append((row, column, nodes))
            return
        for number, node in enumerate(nodes):
            place = self._nodes[node]
            at = len(self._rows) if number else row
            for between in range(row + 1, at) if number else ():
                if not any(part[0] == column for part in self._rows[between]):
                    self._rows[between].append((column, 1, "│", FAINT))
            if at == len(self._rows):
                self._rows.append([])
            first = ("┯━" if place.lit else "┬─")[len(nodes) == 1]
            joint = ("└" if number == len(nodes) - 1 else "├") if number else first
            self._rows[at] += [
                (column, 1, joint, "bold" if place.lit and not number else FAINT),
                (column + 1, place.cells, place.text, place.style),
                (column + 1 + place.cells, len(place.share), place.share, FAINT),
            ]
            if self._children[node]:
                self._hang(self._children[node], at, column + 1 + place.width)


def _line(row: list[tuple[int, int, str, str]]) -> Content:
    """Joins the parts of a line."""
    text, width, spans = "", 0, []
    for column, cells, part, style in sorted(row):
        text += " " * (column - width)
        spans.append(Span(len(text), len(text) + len(part), style))
        text += part
        width = column + cells
    return Content(text, spans)
