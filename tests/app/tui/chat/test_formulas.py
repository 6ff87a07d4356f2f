"""Formulas are shown in Unicode, and nothing else is; what a formula cannot say in a line stays as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from slipstream.app.tui.chat.authorship import Painter, Sources
from slipstream.app.tui.chat.formulas import formula_at, formulas, in_unicode
from slipstream.app.tui.chat.markdown_chunks import parser


def shown(markdown: str) -> str:
    tokens = parser(formulas=True).parse(markdown)
    return "\n".join(
        "".join(child.content or "\n" * (child.type == "hardbreak") for child in token.children)
        if token.children
        else token.content
        for token in tokens
        if token.content
    )


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        (r"x_i^2", "xᵢ²"), (r"\frac{a+b}{2}", "(a+b)/2"), (r"\frac12", "1/2"), (r"\frac{1}{x^2}", "1/x²"),
        (r"\frac{1}{2a}", "1/(2a)"), (r"\sum_{i=1}^n x_i", "∑ᵢ₌₁ⁿ xᵢ"),
        (r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "x = (−b ± √(b² − 4ac))/(2a)"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "(a, b; c, d)"), (r"\sqrt[3]{x}", "∛x"),
        (r"\mathbb{R}^n \to \mathcal{L}", "ℝⁿ → ℒ"), (r"e^{-x^2/2}", "e^(−x²/2)"), (r"f_{\theta}", "f_θ"),
        (r"A^{-1}_{ij}", "A⁻¹ᵢⱼ"), (r"90^\circ", "90°"), (r"\alpha\,\text{if } x \geq 0", "α if x ≥ 0"),
        (r"O(n \log n)", "O(n log n)"), (r"\left. x \right|_{0}^{1}", "x |₀¹"), (r"2\frac{1}{3}", "2 1/3"),
        (r"\sqrt{x}y", "√(x)y"), (r"\frac{1}{2}mv^2", "(1/2)mv²"), (r"\frac{a}{b}c", "(a/b)c"),
        (r"x\frac{a}{b}", "x (a/b)"), (r"\frac{n}{k}!", "(n/k)!"), (r"\underbrace{a+b}_{c}", "(a+b)_c"),
        (r"{a+b}^2", "(a+b)²"), (r"{ab}^2", "(ab)²"), (r"\frac{a}{b}\frac{c}{d}", "(a/b)(c/d)"),
        (r"a/\frac{b}{c}", "a/(b/c)"), (r"\frac{a}{b}/c", "(a/b)/c"), (r"\frac{a}{b}+\frac{c}{d}", "a/b+c/d"),
        (r"\frac{a}{b}^2", "(a/b)²"), (r"\sqrt{x}^2", "√(x)²"), (r"\sin\frac{x}{2}", "sin (x/2)"),
        (r"\frac{1}{2}(a+b)", "(1/2)(a+b)"), (r"(x+1)\frac12", "(x+1)(1/2)"), (r"\frac{1}{2}\sqrt{3}", "(1/2)√3"),
        (r"\left(\frac{a}{b}\right)^2", "(a/b)²"), (r"\foo{x}", ""), (r"\frac", ""), (r"a_{", ""),
        (r"f''(x) + f'(x)", "f″(x) + f′(x)"), (r"\|x\|_2", "‖x‖₂"), (r"\left\|x\right\|", "‖x‖"),
        (r"\widehat{AB}", "A\u0302B\u0302"), (r"\dfrac{1}{2}+\tfrac12", "1/2+1/2"), (r"\cfrac{a}{b}c", "(a/b)c"),
        (r"\operatorname{rank}(A)", "rank(A)"), (r"\frac{a}{b}\%", "(a/b)%"), (r"\frac{\frac{a}{b}}{c}", "(a/b)/c"),
        (r"\frac{a}{\sqrt{b}}c", "(a/(√b))c"), (r"\sqrt{a}/\sqrt{b}", "√(a)/√b"),
        (r"\int_0^1 \frac{1}{x} dx", "∫₀¹ (1/x) dx"),
        (r"{x^2}^3", "(x²)³"), (r"v_{Q}t", "v_(Q)t"), (r"\log_{b}a", "log_(b)a"), (r"f_{\theta}(x)", "f_θ(x)"),
        (r"a\div\frac{b}{c}", "a÷(b/c)"), (r"a:\frac{b}{c}", "a:(b/c)"), (r"{\frac{a}{b}}c", "(a/b)c"),
        (r"\frac{a}{b}\lfloor x\rfloor", "(a/b)⌊ x⌋"), (r"\nicefrac{a}{b}c", "(a/b)c"), (r"\eqref{a}+1", ""),
        (r"\overrightarrow{AB}", "A\u20d7B\u20d7"), (r"\begin{bmatrix} 1 & -1 \\ & 2\end{bmatrix}", "[1, −1; , 2]"),
        (r"\begin{cases} x, & x>0 \\ 0 & x=0 \end{cases}", "{x, x>0; 0, x=0"),
        ("{" * 500 + "}" * 500, ""),
    ],
)  # fmt: skip
def test_a_formula_means_the_same_in_unicode(formula: str, wanted: str) -> None:
    assert in_unicode(formula) == wanted


@pytest.mark.parametrize("formula", [r"$x^2$", r"\(x^2\)", r"$$x^2$$", r"\[x^2\]", "$$\nx^2\n$$", "\\[\n  x^2\n\\]"])
def test_each_kind_of_mark(formula: str) -> None:
    assert shown(f"It is {formula}, so **yes**.") == "It is x², so yes."


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $6.", "From $5 to $6, or 10$ (or 12$).", "It was $5 (or 10$).",
        "$5/$6, $5-$6, $1,000 and $2", "export $HOME/$USER and $PATH", "Use $ and $ as marks.", "a $x half",
        "US$ 5 and US$ 6",
    ],
)  # fmt: skip
def test_prices_and_variables_stay(text: str) -> None:
    assert shown(text) == text and not list(formulas(text))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (r"grep \(foo\)\|\(bar\)", "grep (foo)|(bar)"),
        (r"\(foo\|bar\)", "(foo|bar)"),
        (r"s/\(.*\)/\1/", r"s/(.*)/\1/"),
        (r"\([^,]*\), \([a-z]*\)", "([^,]*), ([a-z]*)"),
        (r"\(ab\)\+ and \(x\)\{2\}", r"(ab)\+ and (x){2}"),
        (r"\(see above\) and \(well-known\)", "(see above) and (well-known)"),
        (r"as shown \[1\], \[2, 3\]", "as shown [1], [2, 3]"),
        (r"\[citation needed\]", "[citation needed]"),
        (r"see \[x\] there", "see [x] there"),
        (r"\(x\), \(AB\), \(ABC\) and \(xy\)", "x, AB, ABC and xy"),
        (r"\(\|x\|\) and **\(n\)**", "‖x‖ and n"),
        ("\\[\n  x\n\\]", "x"),
        (r"\[E = mc^2\]", "E = mc²"),
    ],
)
def test_escaped_brackets_around_words_and_patterns_are_brackets(text: str, kept: str) -> None:
    assert shown(text) == kept


def test_a_formula_without_a_form_in_unicode_stays_as_it_is() -> None:
    for formula in (r"$\binom{n}{k}\,2$", r"\(a_{\binom{n}{k}} * b_{\boxed{c}} *d*\)", r"$\boxed{\{1\%\}}$"):
        assert shown(f"So {formula}, **yes**.") == f"So {formula}, yes."
    assert shown("$$\n\\boxed{a}\\\\\nb\n$$") == "$$\n\\boxed{a}\\\\\nb\n$$"


def test_code_stays_and_off_shows_what_was_written() -> None:
    assert shown("`$x^2$` and\n\n```\n$x^2$ \\(y\\)\n```") == "$x^2$ and\n$x^2$ \\(y\\)\n"
    (inline,) = (token for token in parser().parse("$x^2$") if token.children)
    assert inline.content == "$x^2$" == "".join(child.content for child in inline.children or ())


def test_a_formula_that_is_being_written_is_shown_as_it_is_until_it_closes() -> None:
    whole = r"So $\frac{a}{b}$ it is"
    seen = [shown(whole[:end]) for end in range(whole.index("$"), len(whole) + 1)]
    closed = whole.index("$", 5) - whole.index("$") + 1
    assert all("a/b" not in text for text in seen[:closed]) and r"$\frac{a}{b}"[:7] in seen[closed - 1]
    assert all("a/b" in text and "$" not in text for text in seen[closed:])


def test_the_colours_of_the_words_around_a_formula_stay_and_it_has_its_own() -> None:
    before, formula, after = "We know that ", r"$\frac{a+b}{2}$", " (and more) is right."
    sources = Sources()
    for size, style in ((len(before), "red"), (len(formula), "green"), (len(after), "blue")):
        sources.add(size, style)
    sources.on = True
    source = before + formula + after
    text = shown(source)
    painter = Painter(sources)
    _, content = painter._styled(Content(text), source, 0, 0, list(formulas(source)))
    colours = {"red": "", "green": "", "blue": ""}
    for span in content.spans:
        colours[str(span.style)] += text[span.start : span.end]
    assert colours["red"].strip() == before.strip() and colours["green"].strip() == "(a+b)/2"
    assert colours["blue"].strip() == after.strip()


@given(st.text(alphabet="\\${}^_&%[]()ab1 \n", max_size=300))
def test_nothing_a_model_writes_raises(text: str) -> None:
    for found in formulas(text):
        assert formula_at(text, found.start) == found and found.end > found.start
    shown(text)
