"""The drafters screen: lists drafters with their gains, and starts work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from slipstream.app.library import TOKENS
from slipstream.app.library.format import rate
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, sentence
from slipstream.app.protocol.events import DrafterOffer, Loaded
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.settings.disabled_drafters import leave_out
from slipstream.app.tui.drafters.view import DraftersView
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.parts.browser import Browser, BrowsingScreen
from slipstream.app.tui.parts.dialogs import Dialog, LineScreen, PathSuggester, confirm, sheet
from slipstream.app.tui.parts.notice import run_in_thread
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.library.drafter_status import Standing

TRAINED: Final = ("medusa", "kangaroo", "space", "eagle3", "dflash")
"""Trainable methods: a copy of ``slipstream.models.heads.matching_heads.TRAINED``, whose import is slow."""
NO_TORCH: Final = "Training needs torch, which is not installed: pip install 'slipstream[train]'."


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A command that runs in the background; ``title`` begins a sentence, such as "Training medusa"."""

    title: str
    arguments: tuple[str, ...]
    cancelled: str


def training(method: str, model: str, text: str, tokens: int) -> BackgroundCommand:
    return BackgroundCommand(
        f"Training {method}",
        ("drafters", "train", method, "-m", model, "--on", text, "--tokens", str(tokens)),
        "The same training goes on where it was stopped.",
    )


def importing(path: str, model: str) -> BackgroundCommand:
    return BackgroundCommand("Importing heads", ("drafters", "import", path, "-m", model), "Nothing was imported.")


def indexing(path: str, model: str) -> BackgroundCommand:
    arguments = ("drafters", "index", path, "-m", model, "--progress")
    return BackgroundCommand("Indexing", arguments, "What was read is kept; the same folder goes on.")


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """The chosen drafter; ``load`` reloads the model with new heads and index first."""

    name: str
    load: bool = False
    race: bool = False


@dataclass(frozen=True, slots=True)
class DraftersContext:
    """What the screen needs from the chat."""

    model: str  # the argument of ``-m``
    file: Path  # the model's file
    plain_tok_per_s: float | None  # its measured speed without a drafter; None before the first reply
    jobs: Jobs
    begin: Callable[[BackgroundCommand], None]  # starts work, which continues while the screen is closed
    news: Callable[[], str]  # outcome of the last work; empty if there was none
    fresh: Callable[[], bool]  # whether there are heads or an index newer than the loaded model


class TrainScreen(Dialog[tuple[str, int] | None]):
    """Edits the training text and the number of tokens. Closes with both, or None."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def compose(self) -> ComposeResult:
        with sheet(Vertical(classes="dialog"), f"Train {self._method}", "Enter trains", "Esc back"):
            yield Static("Text: answers, chats, or a folder")
            yield Input("answers", id="text", suggester=PathSuggester())
            yield Static("Tokens of it", classes="heading")
            yield Input(f"{TOKENS}", id="tokens", type="integer")
            yield Static(
                "answers: what the model itself writes. chats: your own, on this machine only. It takes from minutes"
                " to many hours and says how long; the chat goes on meanwhile. Cancelled, it goes on where it was.",
                classes="detail",
            )
            yield Static(classes="problem")

    def on_input_submitted(self) -> None:
        text, tokens = (self.query_one(name, Input).value.strip() for name in ("#text", "#tokens"))
        if text and tokens.isdecimal() and int(tokens):
            self.dismiss((text, int(tokens)))
        else:
            self.query_one(".problem", Static).update("Both are needed: a text, and a number above 0.")


class DraftersScreen(BrowsingScreen[DrafterChoice | None]):
    """Lists all drafters with their gain, or the reason why the model cannot use them."""

    terms: Sequence[tuple[str, str]] = (
        ("1.3x ━━━│", "its speed divided by that without a drafter, which │ marks"),
        ("bench, chats, auto", "its speed-up is from the last benchmark, your chats, steps of auto"),
        ("chance, busy", "the figure may be chance; other programs disturbed it"),
        ("used by auto", "auto took some guesses of it in your chats, too few for a speed-up of its own"),
        ("off", "auto leaves it out"),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "use", "Use", tooltip="use it, from the next reply on"),
        Binding("r", "load", "Load again", tooltip="load the model again, with new heads and texts"),
        Binding("space", "switch", "Auto on/off", tooltip="whether auto may use it"),
        Binding("v", "race", "Race", tooltip="write one reply with it and one without"),
        Binding("t", "train", "Train", tooltip="train heads of this kind for this model"),
        Binding("i", "import", "Import", tooltip="take in published heads for this model"),
        Binding("f", "index", "Index", tooltip="index a folder's texts, to copy from"),
        Binding("x,delete", "cancel", "Cancel", key_display="x"),
        Binding("escape,ctrl+d", "leave", "Back", key_display="Esc", priority=True),
    ]

    def __init__(self, offers: Sequence[DrafterOffer], current: str, loaded: Loaded, context: DraftersContext) -> None:
        self.view = DraftersView(offers, current, context.plain_tok_per_s)
        super().__init__(self.view)
        plain = context.plain_tok_per_s
        facts = (loaded.title, f"{rate(plain)} tok/s without a drafter" if plain else "", loaded.device)
        heading = f"Drafters for {' · '.join(filter(None, facts))}"
        self.title_line.update(Content(one_line(heading)))
        self.terms = (*self.terms, *((offer.name, offer.about) for offer in offers))
        self._loaded, self._chat = loaded, context
        self._trouble = f"Same odds, not same text: {loaded.promise_why}." if loaded.promise_why else ""

    def on_mount(self) -> None:
        self.show_work()
        self.browser.rows.highlighted = self.view.find(self.view.current) or 0
        self.look()

    def show_work(self) -> None:
        self.note(str(self._chat.jobs.job or self._chat.news() or self._trouble))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        offer, working = self._offer(), self._chat.jobs.job is not None
        offered = {
            "load": self._chat.fresh() or (offer is not None and self.view.text_came(offer)),
            "race": offer is not None and offer.usable and offer.name != PLAIN and not working,
            "switch": offer is not None and offer.usable and offer.name not in (AUTO, PLAIN) and offer.name.isalnum(),
            "train": offer is not None and offer.name in TRAINED and not working,
            "import": not working,
            "index": not working,
            "cancel": working,
        }
        return offered.get(action, True)

    def look(self) -> None:
        file = self._chat.file

        def find() -> Standing:
            from slipstream.app.library.drafter_status import standing  # a slow import

            return standing(file, Paths.default())

        run_in_thread(self, find, self._known, self._unknown)

    def _known(self, found: Standing) -> None:
        self.view.take(found)
        self._trouble = found.trouble
        self.show_work()

    def _unknown(self, error: SlipstreamError) -> None:
        from slipstream.app.library.drafter_status import Standing

        self._known(Standing(trouble=f"{sentence(error.title)} {error.hint}"))

    def _offer(self) -> DrafterOffer | None:
        row: DrafterOffer | str | None = self.browser.row
        return None if isinstance(row, str) else row

    @on(Browser.Chosen)
    def action_use(self) -> None:
        offer, known = self._offer(), self.view.standing
        if offer is None:
            if self.view.unfold(self.browser.key or ""):
                self.browser.draw()
                self.browser.rows.action_last()
        elif offer.usable:
            self.dismiss(DrafterChoice(offer.name))
        elif self.view.text_came(offer) or (
            self._chat.fresh() and known and any(not file.why_not for file in known.of(offer.name))
        ):
            self.dismiss(DrafterChoice(offer.name, load=True))
        else:
            self.say(f"{offer.name} cannot guess for this model.")

    def action_race(self) -> None:
        offer = self._offer()
        if offer and offer.usable:
            self.dismiss(DrafterChoice(offer.name, race=True))

    def action_load(self) -> None:
        self.dismiss(DrafterChoice(self.view.current, load=True))

    def action_switch(self) -> None:
        offer = self._offer()
        if offer is None or self.view.standing is None:
            return
        name, off, fingerprint = offer.name, not self.view.is_off(offer.name), self._loaded.fingerprint

        def done(_: None) -> None:
            self.say(f"Automatic {'no longer uses' if off else 'may use'} {name}.")
            self.look()

        run_in_thread(self, lambda: leave_out(Paths.default().drafters, fingerprint, name, off), done, self.fail)

    def action_train(self) -> None:
        offer, known = self._offer(), self.view.standing
        if offer is None:
            return
        if known and not known.trains:
            self.say(NO_TORCH)
            return

        def answered(answer: tuple[str, int] | None) -> None:
            if answer:
                self._chat.begin(training(offer.name, self._chat.model, *answer))

        self.app.push_screen(TrainScreen(offer.name), answered)

    def action_import(self) -> None:
        about = "A folder with published Medusa heads or a Kangaroo adapter, or the file in it with the weights."
        self._begin_with_path(LineScreen("Import heads", "", "imports", about), importing)

    def action_index(self) -> None:
        about = (
            "Text and code below it are drafted from, on this machine only; the same folder again takes what is new."
        )
        self._begin_with_path(LineScreen("Index a folder or file", "", "indexes", about), indexing)

    def _begin_with_path(self, screen: LineScreen, command: Callable[[str, str], BackgroundCommand]) -> None:
        def answered(path: str | None) -> None:
            if path:
                self._chat.begin(command(path, self._chat.model))

        self.app.push_screen(screen, answered)

    def action_cancel(self) -> None:
        jobs = self._chat.jobs
        if jobs.job is None:
            return
        if jobs.job.stopping:
            jobs.stop()  # a further request escalates, see ``Background.stop``
            return
        title = jobs.job.title

        def stop() -> None:
            if jobs.job and jobs.job.title == title:
                jobs.stop()
                self.show_work()

        confirm(self.app, f"{title}: cancel it?", "What it has done so far is kept.", "cancels", stop)
