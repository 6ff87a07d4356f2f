"""The drafters screen: its keys."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType

from slipstream.app.drafters.left_out import leave_out
from slipstream.app.engine.requests import AUTO
from slipstream.app.paths import Paths
from slipstream.app.tui.behind import behind
from slipstream.app.tui.screens.dialogs import ConfirmScreen
from slipstream.app.tui.screens.drafters_dialogs import PathScreen, TrainScreen
from slipstream.app.tui.screens.drafters_list import DraftersList, Picked
from slipstream.app.tui.screens.drafters_work import TRAINED, importing, indexing, training
from slipstream.app.tui.widgets.drafters_view import PLAIN
from slipstream.app.tui.widgets.models_browser import Browser

NO_TORCH: Final = "Training needs torch, which is not installed: pip install 'slipstream[train]'."


class DraftersScreen(DraftersList):
    """All drafters: which serve the model, what they gain here, why the others do not serve, and what would help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "use", "Use"),
        Binding("r", "load", "Load again"),
        Binding("space", "switch", "On/off"),
        Binding("t", "train", "Train"),
        Binding("i", "import", "Import"),
        Binding("f", "index", "Index"),
        Binding("x,delete", "cancel", "Cancel", key_display="x"),
        Binding("escape,ctrl+d", "leave", "Back", key_display="Esc"),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers what can be done with the drafter under the bar."""
        offer, working = self._offer(), self._desk.jobs.job is not None
        offered = {
            "load": self._desk.fresh(),
            "switch": offer is not None and offer.usable and offer.name not in (AUTO, PLAIN) and "+" not in offer.name,
            "train": offer is not None and offer.name in TRAINED and not working,
            "import": not working,
            "index": not working,
            "cancel": working,
        }
        return offered.get(action, True)

    # --- choosing -------------------------------------------------------------------------------------------------

    @on(Browser.Chosen)
    def action_use(self) -> None:
        """Drafts the next reply with the drafter under the bar."""
        offer = self._offer()
        if offer is None:
            return
        if offer.usable:
            self.dismiss(Picked(offer.name))
        elif self._arrived(offer.name):
            self.dismiss(Picked(offer.name, load=True))
        else:
            self._say(f"{offer.name} cannot draft for this model.")

    def action_load(self) -> None:
        """Loads the model again, with what is new; the drafter stays."""
        self.dismiss(Picked(self._view.current, load=True))

    def action_switch(self) -> None:
        """Has the autopilot leave a drafter out, or no longer."""
        offer = self._offer()
        if offer is None or self._view.standing is None:
            return
        name, off, fingerprint = offer.name, not self._view.is_off(offer.name), self._loaded.fingerprint

        def done(_: None) -> None:
            self._say(f"auto {'leaves' if off else 'may choose'} {name}{' out' if off else ''} from the next reply on.")
            self.look()

        behind(self, lambda: leave_out(Paths.default().drafters, fingerprint, name, off), done, self._fail)

    # --- work -----------------------------------------------------------------------------------------------------

    def action_train(self) -> None:
        """Asks what to train on, and begins."""
        offer, known = self._offer(), self._view.standing
        if offer is None:
            return
        if known and not known.trains:
            self._say(NO_TORCH)
            return
        method, model = offer.name, self._desk.model

        def answered(answer: tuple[str, int] | None) -> None:
            if answer:
                self._desk.begin(training(method, model, *answer))

        self.app.push_screen(TrainScreen(method), answered)

    def action_import(self) -> None:
        """Asks for published heads, and imports them."""

        def answered(path: str | None) -> None:
            if path:
                self._desk.begin(importing(path, self._desk.model))

        about = "A folder with published Medusa heads or a Kangaroo adapter, or the file in it with the weights."
        self.app.push_screen(PathScreen("Import heads", about, "imports"), answered)

    def action_index(self) -> None:
        """Asks for a folder, and indexes it."""

        def answered(path: str | None) -> None:
            if path:
                self._desk.begin(indexing(path, self._desk.model))

        about = (
            "Text and code below it are drafted from, on this machine only; the same folder again takes what is new."
        )
        self.app.push_screen(PathScreen("Index a folder or file", about, "indexes"), answered)

    def action_cancel(self) -> None:
        """Asks, then stops the work."""
        jobs = self._desk.jobs
        if jobs.job is None:
            return
        if jobs.job.stopping:
            jobs.stop()  # asked again: more firmly
            return
        title = jobs.job.title

        def answered(yes: bool | None) -> None:
            if yes and jobs.job and jobs.job.title == title:
                jobs.stop()
                self.show_work()

        question = ConfirmScreen(f"{title}: cancel it?", "What it has done so far is kept.", "cancels")
        self.app.push_screen(question, answered)

    def _arrived(self, name: str) -> bool:
        """Whether a drafter that the loaded model knows nothing of would serve it once it is loaded again."""
        known = self._view.standing
        files = known is not None and any(not file.why_not for file in known.of(name))
        text = known is not None and name == "retrieval" and known.tokens > 0
        return self._desk.fresh() and (files or text)
