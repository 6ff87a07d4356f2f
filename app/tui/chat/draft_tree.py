"""Draws one step as a tree: the drafted tokens with their probabilities, and the accepted path."""

from dataclasses import dataclass
from unicodedata import combining

from textual.content import Content, Span

from slipstream.app.platform.safe_text import clean, one_line, plural
from slipstream.app.protocol.events import TREE_ROOT, DraftTree, Piece
from slipstream.app.tui.chat.authorship import style_of
from slipstream.app.tui.parts.format import duration

MOST_DRAWN = 48  # maximum nodes that are drawn, the most probable ones; more would be illegible
LONGEST = 14  # cells of one token's text
SMALLEST = 16  # width below which no tree is drawn
FAINT, REJECTED = "$foreground 40%", "$foreground 60%"
SKIPPED = "… "  # before a step that does not follow the one above it
MARKS = "¹²³⁴⁵⁶⁷⁸⁹"  # marks of the drafters, if a tree has several
CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
PICTURES = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"})


@dataclass(frozen=True, slots=True)
class Node:
    """A drawn node: its text, the width of the text, and its probability in percent."""

    text: str
    cells: int
    share: str
    style: str
    lit: bool

    @property
    def width(self) -> int:
        return self.cells + len(self.share)


def drawn(tree: DraftTree, width: int, skipped: bool = False) -> Content:
    """Draws a step in lines of at most ``width`` cells: a heading, then the drafted tokens.

    A mark before the heading says that steps before it are ``skipped``. A chain is a row of words. A tree begins with
    the accepted path and the target's own token; a path too long for its line goes on at an equal mark below.
    """
    lines = [_heading(tree, width, SKIPPED if skipped else "")]
    if tree.texts and width >= SMALLEST:
        in_a_row = all(parent == node - 1 for node, parent in enumerate(tree.parents))
        lines += _row(tree, width) if in_a_row else _Drawing(tree, width).lines()
    return Content("\n").join(
        [line if line.cell_length <= width else line.truncate(width, ellipsis=True) for line in lines]
    )


def drawn_plain(first: int, last: int, width: int, skipped: bool) -> Content:
    steps = f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
    words = Content(f"{SKIPPED if skipped else ''}{steps}   no guesses").stylize(FAINT)
    return words.truncate(width, ellipsis=True) if words.cell_length > width else words


def visible(text: str) -> str:
    shown = clean(text.translate(PICTURES)) if text else "<end>"
    return f"◌{shown}" if combining(shown[0]) else shown


def _heading(tree: DraftTree, width: int, skipped: str) -> Content:
    """The step number, the drafters, the accepted tokens, and the duration; leaves out what does not fit."""
    words = [(f"{skipped}step {tree.step:,}  ", FAINT)]
    names = list(dict.fromkeys(tree.sources))
    for number, name in enumerate(names):
        mark = MARKS[number % len(MARKS)] if len(names) > 1 else ""
        words += [(" + ", FAINT)] if number else []
        words += [(one_line(name) + mark, "bold")]
    kept, left_out = len(tree.path), len(tree.texts) - MOST_DRAWN
    words += [(f" guessed {len(tree.texts)}, kept {kept}", REJECTED)]
    saved = (f": {plural(kept, 'step')} saved" if kept else "", REJECTED)
    hidden = (f" · {left_out} not drawn" if left_out > 0 else "", FAINT)
    probes = (f" · {tree.probes} probes" if tree.probes else "", FAINT)
    took = (f" · {duration(tree.ms) if tree.ms >= 10 else f'{tree.ms:.1f} ms'}", FAINT)
    parts = [saved, hidden, probes, took]
    for least_important in (saved, probes, hidden, took):
        if Content.assemble(*words, *parts).cell_length > width:
            parts.remove(least_important)
    return Content.assemble(*words, *parts)


def _row(tree: DraftTree, width: int) -> list[Content]:
    right = len(tree.path)
    words: list[tuple[str, str]] = []
    for node, text in enumerate(tree.texts):
        lit = node < right
        style = style_of(Piece("", "accepted", tree.sources[node])) if lit else REJECTED
        between = "│ " if node == right and right else ""
        words.append((f"{between}{_short(text, width)} {'✓' if lit else '✗'}", style))
    wrote = "extra" if tree.last.origin == "bonus" else "corrected"
    words.append((f"│ {wrote} {_short(tree.last.text, width)}", style_of(tree.last)))
    lines, line = list[Content](), Content(" ")
    for word, style in words:
        part = Content(f" {word} ").stylize(style, 1, 1 + len(word)) if style else Content(f" {word} ")
        if line.cell_length + part.cell_length - 1 > width and line.cell_length > 1:
            lines.append(line)
            line = Content(" ")
        line = line.append(part)
    return [each.rstrip() for each in (*lines, line)]


def _short(text: str, width: int) -> str:
    shown = Content(visible(text[1:] if text.startswith(" ") and text.strip() else text))
    return shown.truncate(min(LONGEST, width - 10), ellipsis=True).plain


class _Drawing:
    """Lays out the nodes of a tree on lines."""

    def __init__(self, tree: DraftTree, width: int) -> None:
        self._width = width
        self._rows: list[list[tuple[int, int, str, str]]] = []  # by line: column, cells, text, style
        self._put_off: list[tuple[int, int, list[int]]] = []  # line, column and nodes of branches that continue below
        self._nodes = self._made(tree)
        self._children = self._sorted(tree)

    def lines(self) -> list[Content]:
        self._hang(self._children[TREE_ROOT], 0, 0)
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
        accepted, names = set(tree.path), list(dict.fromkeys(tree.sources))
        reach: list[float] = []
        for parent, prob in zip(tree.parents, tree.probs, strict=True):
            reach.append(prob * (reach[parent] if parent != TREE_ROOT else 1.0))
        # a parent is at least as probable as its children and precedes them, so it is never dropped before them
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
        children: dict[int, list[int]] = {node: [] for node in (TREE_ROOT, *self._nodes)}
        for node in sorted(self._nodes, key=lambda node: (not self._nodes[node].lit, node)):
            parent = tree.parents[node] if node < len(tree.texts) else (tree.path or [TREE_ROOT])[-1]
            children[parent].append(node)
        return children

    def _hang(self, nodes: list[int], row: int, column: int) -> None:
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
    text, width, spans = "", 0, []
    for column, cells, part, style in sorted(row):
        text += " " * (column - width)
        spans.append(Span(len(text), len(text) + len(part), style))
        text += part
        width = column + cells
    return Content(text, spans)
