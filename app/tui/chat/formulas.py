r"""Shows the formulas of a reply in Unicode: ``$\frac{a+1}{2}$`` as (a+1)/2.

pylatexenc parses formulas and maps symbols; constructs without a Unicode form, such as fractions, are written inline.
Formulas are untrusted: length and nesting are bounded, and an invalid one stays as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from markdown_it.rules_inline import StateInline

_MOST: Final = 1000  # maximum characters of a formula
_DEEPEST: Final = 20  # maximum nesting of groups
_PARTS: Final = re.compile(
    r"\$\$(?P<display>(?:[^$\\]|\\.)+)\$\$"
    r"|\\\[(?P<square>.+?)\\\]"
    r"|\\\((?P<round>.+?)\\\)"
    r"|\$(?![\s$])(?P<inline>(?:[^$\\\n]|\\.)*?(?:[^\s$\\]|\\.))\$(?![\w$])",  # not "$5 and $6", not "$HOME/$USER"
    re.DOTALL,
)
_AMOUNT: Final = re.compile(r"\d[^\\^_=]*\s[^\\^_=]*")  # "5 (or 10": an amount of money between two dollar signs
_WORDS: Final = re.compile(r"[a-z]{3,}(?:[ -][a-z]+)*")  # "\(foo\)": escaped brackets, not a product of letters
_LABEL: Final = re.compile(r"[\w ,.;:'-]*")  # "\[1\]", "\[citation needed\]": escaped brackets, too
_PATTERN: Final = re.compile(r"\.[*+]|\[\^|\[\w-\w")  # "\(.*\)": a group of a regular expression
_AFTER_GROUP: Final = re.compile(r"\\[|+?{1-9]")
_UPPER: Final = "0123456789+-=()niabcdefghjklmoprstuvwxyzABDEGHIJKLMNOPRTUVWαβγδθφχ∗*′'∘"
_RAISED: Final = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᶠᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵅᵝᵞᵟᶿᵠᵡ**′′°"
_LOWER: Final = "0123456789+-=()aehijklmnoprstuvxβγρφχ"
_LOWERED: Final = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ"
_SCRIPTS: Final = {"^": dict(zip(_UPPER, _RAISED, strict=True)), "_": dict(zip(_LOWER, _LOWERED, strict=True))}
_LINES: Final = {"overline": "\u0305", "underline": "\u0332", "widehat": "\u0302", "widetilde": "\u0303"} | {
    "overrightarrow": "\u20d7", "overleftarrow": "\u20d6", "overleftrightarrow": "\u20e1",
}  # fmt: skip
_BRACKETS: Final = {
    "pmatrix": "()", "bmatrix": "[]", "Bmatrix": "{}", "vmatrix": "||", "Vmatrix": "‖‖", "matrix": "[]",
    "smallmatrix": "[]", "cases": "{ ", "array": "  ",
}  # fmt: skip
_SILENT: Final = frozenset(["left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr"]).union(
    ["displaystyle", "textstyle", "limits"]
)
_ROOTS: Final = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_PLAIN: Final = frozenset(["text", "textrm", "textbf", "textit", "mathrm", "mathbf", "mathit", "boxed"])
_COMMAND: Final = re.compile(r"\\[A-Za-z]{2}")
_SYNONYMS: Final = re.compile(r"\\(?:(?:[dtcs]|nice)(frac)|operatorname\*?)(?![A-Za-z])")  # unknown to pylatexenc
_OPERATOR: Final = re.compile(r"[+−*/=<>·⋅×±,]")
_BRACKETED: Final = re.compile(r"\([^()]*\)")
_NUMBERS: Final = re.compile(r"\d+/\d+")
_BEGINS: Final = "([{√∛∜^_!/%′|⟨⌊⌈‖∑∫∏∞∂∇"  # what follows a quotient or a root directly and belongs to all of it
_ENDS: Final = ")]}!′/÷:∞⟩⌋⌉‖⁰¹²³⁴⁵⁶⁷⁸⁹ⁿₙ"
_SPACES: Final = frozenset([",", ";", ":", " ", "quad", "qquad", "!", ">"])


class Formula(NamedTuple):
    """A formula and its range in a text."""

    start: int
    end: int
    shown: str  # in Unicode


class _Group(str):
    """What stands between braces."""


class _Quotient(str):
    """A fraction, such as ``a/b``."""


class _Root(str):
    """A root, such as ``√x``."""

    sign: str
    inside: str

    @classmethod
    def of(cls, sign: str, inside: str) -> _Root:
        root = cls(sign + _wrapped(inside))
        root.sign, root.inside = sign, inside
        return root


def formula_at(source: str, at: int) -> Formula | None:
    """The formula that begins at a position, including its delimiters; as it is if Unicode has no form; or None."""
    if source[at : at + 1] not in ("$", "\\"):
        return None
    found = _PARTS.match(source, at, at + _MOST + 4)
    if not found or (found["inline"] and _AMOUNT.fullmatch(found["inline"])) or _brackets(found):
        return None
    inside = found["display"] or found["square"] or found["round"] or found["inline"]
    shown = in_unicode(inside) or (found[0] if _COMMAND.search(inside) else "")
    return Formula(at, found.end(), shown) if shown else None


def _brackets(found: re.Match[str]) -> bool:
    """Whether what looks like a formula is text in escaped brackets, which Markdown shows as brackets."""
    if found["square"] is not None:
        return bool(_LABEL.fullmatch(found["square"]))
    if (inside := found["round"]) is None:
        return False
    part = _WORDS.fullmatch(inside) or _PATTERN.search(inside) or _AFTER_GROUP.match(found.string, found.end())
    return bool(part) or inside.count("\\|") % 2 == 1  # an alternative; norms have two marks


def formulas(source: str) -> Iterator[Formula]:
    """Finds the formulas of a Markdown text, also those in code, which are not rendered."""
    at = 0
    while (at := min((place for mark in ("$", "\\") if (place := source.find(mark, at)) >= 0), default=-1)) >= 0:
        if found := formula_at(source, at):
            yield found
        at = found.end if found else at + (2 if source[at] == "\\" else 1)


def formula_rule(state: StateInline, silent: bool) -> bool:
    """A markdown-it rule that replaces a formula by its text. It must precede ``escape``, which removes backslashes."""
    found = formula_at(state.src, state.pos)
    if not found or found.end > state.posMax:
        return False
    if not silent:
        for number, line in enumerate(found.shown.split("\n")):
            if number:
                state.push("hardbreak", "br", 0)
            state.pending += line
    state.pos = found.end
    return True


@lru_cache(maxsize=512)
def in_unicode(formula: str) -> str:
    """A formula in Unicode on one line; empty if it is invalid."""
    steps = accumulate({"{": 1, "}": -1}.get(character, 0) for character in formula)
    if max(steps, default=0) > _DEEPEST or formula.count("\\begin") > _DEEPEST:
        return ""
    from pylatexenc.latexwalker import LatexWalker  # takes 70 ms; most chats have no formulas

    formula = formula.replace("\\left.", "").replace("\\right.", "")  # invisible brackets
    formula = _SYNONYMS.sub(lambda found: "\\frac" if found[1] else "\\mathrm", formula)
    try:
        nodes = LatexWalker(formula, tolerant_parsing=False).get_latex_nodes()[0]
        return " ".join(_row(nodes).split())
    except Exception:  # untrusted input may raise anything
        return ""


@cache
def _symbols() -> Any:
    from pylatexenc.latex2text import LatexNodes2Text

    logging.getLogger("pylatexenc").setLevel(logging.CRITICAL)  # it would print on the screen
    return LatexNodes2Text(math_mode="text")


def _row(nodes: Sequence[Any]) -> str:
    atoms = [atom for node in nodes for atom in _atoms(node)]
    shown, script = list[str](), ""
    for at, atom in enumerate(atoms):
        if script and atom.strip():
            while shown and not shown[-1].strip():
                shown.pop()
            base = shown.pop() if shown else ""
            if isinstance(base, _Group):
                base = f"({base})" if base[-1:] in _RAISED else _wrapped(base)
            elif _OPERATOR.search(_BRACKETED.sub("", base)) and len(base) > 1:
                base = f"({base})"
            shown.append(base.rstrip() + _script(script, atom, "".join(atoms[at + 1 : at + 2])[:1].isalnum()))
            script = ""
        elif atom in ("^", "_"):
            script = atom
        elif not script:
            shown.append(_beside(atom, "".join(shown), "".join(atoms[at + 1 :]).lstrip()))
    return "".join(shown) + script


def _beside(atom: str, before: str, after: str) -> str:
    """An atom with brackets if what stands beside it would otherwise belong to its last or first part."""
    followed = bool(after) and (after[0].isalnum() or after[0] in _BEGINS)
    if isinstance(atom, _Root):
        return f"{atom.sign}({atom.inside})" if followed else atom
    if not isinstance(atom, _Quotient):
        return atom
    last = before.rstrip()[-1:]
    if last.isdecimal() and not followed and _NUMBERS.fullmatch(atom):
        return f" {atom}"
    preceded = bool(last) and (last.isalnum() or last in _ENDS)
    space = " " if before[-1:].isalnum() else ""
    return f"{space}({atom})" if preceded or followed else atom


def _atoms(node: Any) -> Iterator[str]:
    """The smallest parts of a node that can be a script or have one."""
    kind = type(node).__name__
    if kind == "LatexCharsNode":
        yield from node.chars.replace("'", "′").replace("-", "−")
    elif kind == "LatexGroupNode":
        atoms = [atom for inner in node.nodelist for atom in _atoms(inner)]
        alone = len(atoms) == 1 and isinstance(atoms[0], _Quotient | _Root)
        yield atoms[0] if alone else _Group(_row(node.nodelist) or " ")
    elif kind == "LatexMacroNode":
        yield from _macro(node)
    elif kind == "LatexEnvironmentNode":
        yield _environment(node)
    elif kind == "LatexSpecialsNode" and node.specials_chars in ("&", "''"):
        yield "\t" if node.specials_chars == "&" else "″"
    elif kind != "LatexCommentNode":
        yield _symbols().nodelist_to_text([node])


def _macro(node: Any) -> Iterator[str]:
    name = node.macroname.rstrip("*")
    parts = list(node.nodeargd.argnlist) if node.nodeargd else []
    own = [_row([part]) for part in parts if part is not None]
    space = node.macro_post_space[:1]
    if name == "frac" and len(own) >= 2:
        yield _Quotient(f"{_wrapped(own[-2])}/{_wrapped(own[-1])}")
    elif name in _LINES and own:
        yield "".join(letter + _LINES[name] for letter in own[0])
    elif name == "sqrt" and own:
        index = own[0].strip("[]") if len(own) > 1 else ""
        yield _Root.of(_ROOTS.get(index) or _script("^", index) + "√", own[-1].strip())
    elif name == "\\":
        yield "; "
    elif name == "|":
        yield "‖"
    elif name in _SPACES:
        yield " " if name != "!" else ""
    elif name in _PLAIN and own:
        yield own[-1]
    elif name not in _SILENT:
        known = _symbols().nodelist_to_text([node]).strip()
        if not known or "%s" in known or "<" in known:  # such as "<ref>" in place of a name
            raise ValueError(f"unknown: {name}")
        if name.isalpha() and len(known) > 1 and known.isalpha() and known.isascii():
            known = f" {known} "  # an operator, such as log
        yield known + space


def _environment(node: Any) -> str:
    name = node.environmentname.rstrip("*")
    brackets, mark = _BRACKETS.get(name, "  "), ", " if name in _BRACKETS else " "
    cells = ([cell.strip(" ,") for cell in row.split("\t")] for row in _row(node.nodelist).split(";"))
    rows = (" ".join(mark.join(row).split()) for row in cells)
    return brackets[0] + "; ".join(filter(None, rows)) + brackets[1]


def _wrapped(text: str) -> str:
    text = text.strip()
    return text if len(text) < 2 or re.fullmatch(r"[\d.]+|\w[⁰-₟ᴬ-ᵿ²³¹]*|\w[^\w\s]?", text) else f"({text})"


def _script(kind: str, text: str, followed: bool = False) -> str:
    """A superscript or subscript; after ``^`` or ``_`` if Unicode lacks it, in brackets if letters would join it."""
    text = text.strip()
    letters = [_SCRIPTS[kind].get(letter) for letter in text.replace("−", "-") if letter != " "]
    if all(letters):
        return "".join(filter(None, letters))
    return f"{kind}{text}" if len(text) == 1 and not followed else f"{kind}({text})"
