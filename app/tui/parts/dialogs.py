"""Base classes of the screens above the chat; dialogs for a confirmation and a line of text; path completion."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from textual import events
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.containers import Vertical
from textual.content import Content
from textual.markup import escape
from textual.screen import ModalScreen, Screen
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.worker import Worker

from slipstream.app.platform.safe_text import clean

T = TypeVar("T")
W = TypeVar("W", bound=Widget)
BORDER_KEYS: Final = {"Enter": "enter", "Esc": "escape", "^y": "ctrl+y"}  # that a click on a border simulates


class Sheet(Screen[T]):
    """A screen that ignores a ``dismiss`` while it is not the uppermost one.

    Keys and answers may be queued while it closes, or while a dialog above it opens; Textual would then close the
    uppermost screen instead, or end the program if there is none.
    """

    terms: Sequence[tuple[str, str]] = ()  # words of this screen alone, explained by F1

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen_stack[-1:] == [self] else AwaitComplete()


class Dialog(ModalScreen[T], Sheet[T]):
    """A sheet that leaves the screen below visible."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back", priority=True)]


def sheet(box: W, title: str, *keys: str) -> W:
    """Makes a container the box of a dialog, with a title and keys on its border."""
    box.add_class("sheet")
    box.border_title, box.border_subtitle = Content(title), " · ".join(map(_border_key, keys))
    return box


def _border_key(words: str) -> str:
    """A key on a border, such as "Enter runs"; a click simulates one of ``BORDER_KEYS``."""
    key = BORDER_KEYS.get(words.split()[0])
    return f"[@click=app.simulate_key('{key}')]{escape(words)}[/]" if key else escape(words)


class Palette(CommandPalette, Sheet[None]):
    """Textual's palette, made safe for keys that arrive before it is drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "escape", priority=True)]

    def run_worker(self, *arguments: Any, **options: Any) -> Worker[Any]:
        """Collects the commands; ignores failures, since closing the palette during the work causes one."""
        return super().run_worker(*arguments, **options | {"exit_on_error": False})

    def _action_command_list(self, action: str) -> None:
        """Moves in the list; Textual would raise a ``KeyError`` before the list has rows."""
        with suppress(KeyError):
            super()._action_command_list(action)


class RowList(OptionList, can_focus=False):
    """A list whose rows come and go while another widget has the focus; ignores a click on rows that have just gone."""

    async def _on_click(self, event: events.Click) -> None:
        if event.style.meta.get("option", 0) >= self.option_count:
            event.prevent_default()


class ConfirmScreen(Dialog[bool]):
    """Asks for confirmation. Closes with True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [("y,enter", "answer", "Yes"), ("n", "dismiss", "No")]

    def __init__(self, question: str, detail: str, yes: str) -> None:
        super().__init__()
        self._words = (question, detail, yes)

    def compose(self) -> ComposeResult:
        question, detail, yes = self._words
        with sheet(Vertical(classes="dialog"), "", f"Enter {yes}", "Esc back"):
            yield Static(Content(clean(question)), classes="question")
            yield Static(Content(clean(detail)), classes="detail")

    def action_answer(self) -> None:
        self.dismiss(True)


def confirm(app: App[Any], question: str, detail: str, yes: str, then: Callable[[], object]) -> None:
    """Calls ``then`` after a confirmation; ``yes`` is the action of Enter, as a verb."""

    def answered(confirmed: bool | None) -> None:
        if confirmed:
            then()

    app.push_screen(ConfirmScreen(question, detail, yes), answered)


class LineScreen(Dialog[str | None]):
    """Edits a line of text, or a path if there are words ``about`` it. Closes with it, or None."""

    def __init__(self, title: str, text: str, enter: str, about: str = "") -> None:
        super().__init__()
        self._title, self._text, self._enter, self._about = title, text, enter, about

    def compose(self) -> ComposeResult:
        with sheet(Vertical(classes="dialog"), self._title, f"Enter {self._enter}", "Esc back"):
            if self._about:
                yield Input(self._text, placeholder="~/a/folder", suggester=PathSuggester())
                yield Static(classes="problem")
                yield Static(Content(f"→ completes. {self._about}"), classes="detail")
            else:
                yield Input(self._text, max_length=1000)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if not self._about or (text and path_there(self, text)):
            self.dismiss(text or None)


def path_there(dialog: Dialog[Any], typed: str) -> Path | None:
    """The path that was typed into a dialog; None if nothing is there, which the dialog then says."""
    with suppress(OSError, RuntimeError, ValueError):  # too long a name, no such user, or a zero byte
        if (path := Path(typed).expanduser()).exists():
            return path
    dialog.query_one(".problem", Static).update(Content(clean(f"{typed}: no such file or folder.")))
    return None


class PathSuggester(Suggester):
    """Completes the path of a folder or of a model file."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)  # no cache: files change

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value)


def completed(typed: str) -> str | None:
    folder, _, begun = typed.rpartition("/")
    if not typed.startswith(("/", "~", ".")):
        return None
    with suppress(OSError, RuntimeError):  # no such folder, no right to read it, or no such user
        for path in sorted(Path(folder + "/").expanduser().iterdir()):
            hidden = path.name.startswith(".") and not begun.startswith(".")
            if path.name.startswith(begun) and not hidden and (path.is_dir() or path.name.endswith(".gguf")):
                return f"{folder}/{path.name}{'/' * path.is_dir()}"
    return None
