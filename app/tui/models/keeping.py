"""The model manager: verifies, removes and imports installed models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.tui.models.listing import Choice, Listing
from slipstream.app.tui.parts.dialogs import ConfirmScreen, Dialog, PathSuggester
from slipstream.app.tui.parts.format import percent
from slipstream.app.tui.parts.key_bar import sheet_keys
from slipstream.app.tui.parts.notice import hint, trouble
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.library.offers import Removal
    from slipstream.models.library.records import Checked, Installed, Removed


class ImportScreen(Dialog[tuple[Path, Literal["link", "copy"]] | None]):
    """Edits a path. Closes with the path and whether to link or copy the file, or with None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Back"),
        ("ctrl+y", "take('copy')", "Copy"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = "Import a model file"
            sheet.border_subtitle = sheet_keys("Enter links", "^y copies", "Esc back")
            yield Input(placeholder="/path/to/model.gguf", suggester=PathSuggester())
            yield Static(
                Content("→ completes. A link takes no room and leaves the file where it is; a copy stands on its own."),
                classes="detail",
            )

    def on_input_submitted(self) -> None:
        self.action_take("link")

    def action_take(self, how: Literal["link", "copy"]) -> None:
        typed = self.query_one(Input).value.strip()
        if typed:
            self.dismiss((Path(typed).expanduser(), how))


TITLES = 3
"""Maximum number of chats that the removal dialog names."""


class InstalledActions:
    """Actions on installed models; each runs in a thread and reports its end."""

    def __init__(self, screen: Screen[Choice | None], listing: Listing) -> None:
        self._screen, self._listing, self._installed = screen, listing, listing.installed

    def verify(self) -> None:
        """Hashes the files of the selected model; a second call stops it."""
        model = self._listing.model
        if model is None:
            return
        verifying = self._installed.verifying
        if model.name in verifying:
            del verifying[model.name]
            self._listing.redraw(self._installed)
            return
        verifying[model.name] = 0.0

        def read(done: int, total: int) -> None:
            if model.name in verifying:
                verifying[model.name] = done / max(total, 1)
                self._screen.call_later(self._listing.redraw, self._installed)

        def verify(models: ModelManager) -> Checked | None:
            try:
                return models.verify(model.name, read, lambda: model.name not in verifying)
            except KeyboardInterrupt:  # it was stopped
                return None

        def checked(found: Checked | None) -> None:
            verifying.pop(model.name, None)
            self._listing.list_installed()
            if found and found.problem:
                trouble(self._screen, SlipstreamError(f"{model.name}: {found.problem}", found.hint))
            elif found:
                known = all(found.expected)
                hint(
                    self._screen,
                    f"{one_line(model.name)} {'checked: every byte is right' if known else 'file checked: OK'}.",
                )

        self._listing.ask(verify, checked)
        self._listing.redraw(self._installed)

    def remove(self) -> None:
        """Removes the selected model after confirmation."""
        model = self._listing.model
        if model is None:
            return
        if model.fingerprint == self._installed.in_use:
            hint(self._screen, f"{one_line(model.name)} is in use. Use another model first.")
        elif model.origin == "bundled":
            hint(self._screen, "This model ships with slipstream and stays.")
        elif model.foreign:
            hint(self._screen, "Another program keeps this model; remove it there.")
        else:
            self._listing.ask(lambda models: models.removal(model.name), self._ask_removal)

    def _ask_removal(self, removal: Removal) -> None:
        name = removal.model.name
        titles = ", ".join(f"“{one_line(title)}”" for title in removal.chats[:TITLES])
        more = f" and {len(removal.chats) - TITLES} more" if len(removal.chats) > TITLES else ""
        wrote = f" It wrote in {plural(len(removal.chats), 'chat')}, which stay: {titles}{more}." if titles else ""
        detail = f"It goes to the system's trash, {size(removal.frees)}; the key u brings it back.{wrote}"

        def removed(gone: Removed) -> None:
            hint(self._screen, f"Removed {one_line(gone.name)}. The key u brings it back.")
            self._listing.list_installed()

        def answered(yes: bool | None) -> None:
            if yes:
                self._listing.ask(lambda models: models.remove(name), removed)

        self._screen.app.push_screen(ConfirmScreen(f"Remove “{one_line(name)}”?", detail, "removes"), answered)

    def undo(self) -> None:
        """Restores the model that was removed last."""

        def back(brought: Removed) -> None:
            hint(self._screen, f"{one_line(brought.name)} is here again.")
            self._listing.list_installed()

        self._listing.ask(lambda models: models.undo(), back)

    def ask_import(self) -> None:

        def chosen(answer: tuple[Path, Literal["link", "copy"]] | None) -> None:
            if answer:
                self._import(*answer)

        self._screen.app.push_screen(ImportScreen(), chosen)

    def _import(self, path: Path, how: Literal["link", "copy"]) -> None:
        view, name = self._installed, one_line(path.name)

        def note(words: str) -> None:
            view.note = words
            self._listing.redraw(view)

        def read(done: int, total: int) -> None:
            self._screen.call_later(note, f"Taking in {name}: {percent(done / max(total, 1))}")

        def taken(model: Installed) -> None:
            note("")
            hint(self._screen, f"{one_line(model.name)} is here now.")
            self._listing.list_installed()

        def refused(error: SlipstreamError) -> None:
            note("")
            trouble(self._screen, error)

        note(f"Taking in {name} …")
        self._listing.ask(lambda models: models.import_file(path, how, read), taken, refused)
