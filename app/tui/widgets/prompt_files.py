"""Files in the text of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message
from textual.widgets import TextArea

from slipstream.app.safe_text import one_line
from slipstream.app.tui.attach import Attachment, begun, mentioned, read_attachment, unattached
from slipstream.app.tui.slash import is_command
from slipstream.app.tui.toasts import trouble
from slipstream.app.tui.widgets.prompt_folds import Folds
from slipstream.models.errors import UsageError

_SECONDS = 8.0  # that a line of words stays


class FilePrompt(TextArea):
    """A text box whose text takes files in; each stands behind a mark that says its size."""

    @dataclass
    class Attached(Message):
        """A file was read and is part of the message now."""

        attachment: Attachment

    def __init__(self) -> None:
        """Makes it empty."""
        super().__init__(soft_wrap=True, tab_behavior="focus", show_line_numbers=False, placeholder="Say something")
        self._folds = Folds()
        self._missed: set[str] = set()  # names that its owner was told are no files

    def attach(self, name: str, start: int | None = None) -> Attachment:
        """Puts a text file into the message.

        Args:
            name: Its path.
            start: Column of the cursor's line from which on it replaces what was typed; None takes the whole prompt.

        Raises:
            UsageError: If it cannot be read; the prompt is as it was.
        """
        read = read_attachment(name)
        mark = self._folds.fold(read.fenced, read.label)
        row, column = self.cursor_location
        begin, end = ((0, 0), self.document.end) if start is None else ((row, start), (row, column))
        after = self.document.get_text_range(end, self.document.end)
        self.replace(mark if after and not after[0].isalnum() else f"{mark} ", begin, end)
        self.post_message(self.Attached(read))
        return read

    def _attached(self, name: str, start: int) -> Attachment | None:
        """A file that was attached; None where it could not be, and its owner was told."""
        try:
            return self.attach(name, start)
        except UsageError as error:
            trouble(self, error)
            return None

    def _attach_mentioned(self) -> bool:
        """Reads the files that the text names, and says which; False where one cannot be read."""
        taken: list[str] = []
        for row in range(self.document.line_count):
            at = len(taken)
            for begin, end, name in reversed(mentioned(self.document.get_line(row))):
                self.move_cursor((row, end))
                read = self._attached(name, begin)
                if read is None:
                    return False
                taken.insert(at, read.label)
        if taken:
            self.notify(f"Attached: {'; '.join(taken)}.", timeout=_SECONDS, markup=False)
        self._tell_missing(self.text)
        return True

    def _name_ended(self, row: int, column: int) -> None:
        """Reads the file whose name ends at a place, where something that is no part of it has just been typed."""
        line = self.document.get_line(row)
        before = line[:column]
        if is_command(self.text) or "@" not in before or begun(f"{before} ")[1]:  # the last: a name may have spaces
            return
        last = mentioned(before, at_end=True)
        if last:
            cursor = self.cursor_location
            self.move_cursor((row, last[0][1]))
            self._attached(last[0][2], last[0][0])
            grown = len(self.document.get_line(row)) - len(line)
            self.move_cursor((cursor[0], cursor[1] + grown * (cursor[0] == row)))
        else:
            self._tell_missing(before.rpartition(" ")[2])

    def _tell_missing(self, text: str) -> None:
        """Tells once of each name behind an ``@`` that looks like a file's and is none."""
        missed = {name: why for name, why in unattached(text) if name not in self._missed}
        self._missed |= missed.keys()
        if missed:
            words = "; ".join(f"@{one_line(name)}: {why}" for name, why in missed.items())
            self.notify(f"{words}; it is sent as text.", severity="warning", timeout=_SECONDS, markup=False)
