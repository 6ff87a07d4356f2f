"""The content of an empty chat: the progress of loading the model, and example prompts."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content, Span
from textual.widgets import Static

from slipstream.app.library.load_request import TITLES
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.tui.chat.commands import CommandRequest
from slipstream.app.tui.parts.format import bar

STORY = "Tell me a story about a kite."  # what ``/guess`` asks for by itself
GUESS = f"/guess {STORY}"
SEA = "Tell me about the sea."  # in place of ``GUESS`` once ``STORY`` was told
FOR_BUNDLED = ("Tell me a story about a small fox.", "Say this again: the quick brown fox jumps over the lazy dog.")
FOR_OTHERS = ("What can I cook with rice, eggs and spinach?", "Write a Python function that counts words in a file.")
TIP = "Tab tries one · F1 shows all keys\n/race: with and without the drafter, side by side"
WAKE = "╶ ╴╶─╴╶──╴╶────╸━━━━"
INTRO = "a drafter guesses ahead, the model checks: same text, sooner"
BAR_WIDTH = 32


def examples(model: str, told: bool) -> tuple[str, ...]:
    """What to try first with a model; ``told`` leaves out the example that shows guesses."""
    return (SEA if told else GUESS, *(FOR_BUNDLED if model in TITLES.values() else FOR_OTHERS))


class Example(Static):
    """An example prompt; a click puts it into the prompt."""

    def __init__(self, text: str) -> None:
        shown = f"See it guess: {STORY}" if text == GUESS else text
        super().__init__(Content(f"› {shown}", [Span(0, 1, "$primary")]))
        self._text = text

    def on_click(self) -> None:
        self.post_message(CommandRequest("try", (self._text,)))


class Welcome(Vertical):
    """The name, a line about the model, and examples."""

    def __init__(self, model: str, examples: Sequence[str]) -> None:
        super().__init__()
        self._examples = examples
        self._state = Static(Content(f"loading {one_line(model)}"), classes="state")
        self._model = model
        self._offer = Static(classes="offer awaited")  # its room is kept: the lines above it do not move

    def compose(self) -> ComposeResult:
        with Vertical(id="welcome-box"):
            spans = [Span(0, len(WAKE), "$primary"), Span(len(WAKE), len(WAKE) + 12, "bold")]
            spans.append(Span(len(WAKE) + 12, len(WAKE) + 13 + len(INTRO), "$foreground 70%"))
            yield Static(Content(f"{WAKE}  slipstream\n{INTRO}", spans), classes="logo")
            yield self._state
            with Vertical(classes="examples"):
                for text in self._examples:
                    yield Example(text)
                yield Static(Content(TIP), classes="tip")
                yield self._offer

    def progress(self, share: float | None) -> None:
        if share is None:
            self._state.update(Content(f"checking the file of {one_line(self._model)}\nbefore its first use"))
            return
        done, rest = bar(share, BAR_WIDTH)
        start = len(text := f"loading {one_line(self._model)}\n")
        self._state.update(Content(f"{text}{done}{rest}", [Span(start, start + len(done), "$primary")]))

    def ready(self, loaded: Loaded) -> None:
        names = [one_line(offer.name) for offer in loaded.drafters if offer.usable and offer.name not in (PLAIN, AUTO)]
        drafting = f"{plural(len(names), 'way')} to guess ahead (Ctrl-D)" if names else "no drafter fits it"
        name = one_line(loaded.title)
        note = ": tiny, fast and often wrong" if loaded.name in TITLES.values() else ""
        text = f"{name} is ready{note}\n{one_line(loaded.device)} · {drafting}"
        self._state.update(Content(text, [Span(0, len(name), "bold")]))

    def offer(self, words: Content | None) -> None:
        self._offer.update(words or "")
        self._offer.set_class(words is None, "awaited")

    def failed(self) -> None:
        self._state.update(Content("no model is loaded"))
