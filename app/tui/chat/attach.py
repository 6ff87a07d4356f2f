"""Reads text files and images for a message, completes ``@path``, and folds long text into short marks."""

import codecs
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from textual.app import App, SuspendNotSupported
from textual.widgets import TextArea

from slipstream.app.chats.images import AttachedImage, read_attached
from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.tui.chat.commands import is_command
from slipstream.app.tui.parts.notice import trouble
from slipstream.models.errors import UsageError, reason_of
from slipstream.models.outside import read_limited
from slipstream.models.vision.image_file import named_like_image

MOST_BYTES = 1 << 20  # largest file that can be attached, enough to fill the longest contexts
MOST_LISTED = 5000  # maximum entries of a folder that are read for completions
MOST_OFFERED = 50  # maximum names that are offered at once
MOST_STARTS = 4  # how many ``@`` of a line are tried as the start of a name, since names may contain spaces and ``@``
_MENTION = re.compile(r"(?<!\S)@(\S+)")
_START = re.compile(r"(?:^|\s)@(?!\s)")
_ESCAPED = re.compile(r"\\(.)")
_RUN = re.compile(r"`{3,}")
_FENCED = re.compile(
    r"(?:\A|\n)(?P<name>[^\n]+):\n(?P<fence>`{3,})(?P<kind>[^\n`]*)\n(?P<text>.*?)\n(?P=fence)(?:\n|\Z)", re.DOTALL
)
_BEHIND = ".,;:!?)"  # punctuation after a name
_LIKE_A_PATH = re.compile(r"~?[^\s\"'`()<>{}\[\]=~/]*(?:/[^\s\"'`()<>{}\[\]=]*|[^/.]\.[A-Za-z][A-Za-z0-9]{0,3})")
_SECONDS = 8.0  # duration of a toast
MOST_LINES = 30  # lines from which a text is folded; the prompt shows six
MOST_CHARACTERS = 4000  # characters above which a text is folded


@dataclass(frozen=True, slots=True)
class Attachment:
    """The content of an attached file."""

    name: str
    bytes: int
    text: str  # its content; empty for an image
    image: AttachedImage | None = None

    @property
    def tokens(self) -> int:
        """Estimate of its tokens: about four ASCII characters each, or one character of other scripts; 1 for images."""
        plain = sum(map(str.isascii, self.text)) if not self.text.isascii() else len(self.text)
        return max(-(-plain // 4) + len(self.text) - plain, 1)

    @property
    def label(self) -> str:
        if self.image:
            return self.image.label
        return f"{one_line(self.name)}, {size(self.bytes)}, about {plural(self.tokens, 'token')}"

    @property
    def fenced(self) -> str:
        """The name and the text in a code fence that the text does not contain; for an image, its mark."""
        if self.image:
            return self.image.mark
        fence = "`" * max([3, *(len(run) + 1 for run in _RUN.findall(self.text))])
        name = one_line(self.name)
        return f"\n{name}:\n{fence}{_kind(name)}\n{self.text.rstrip(chr(10))}\n{fence}\n"


def folded(message: str) -> str:
    """A message for the screen: replaces each attached text (see ``Attachment.fenced``) by its name and size."""

    def label(block: re.Match[str]) -> str:
        if block["kind"] != _kind(block["name"]):  # a code block that the user typed
            return block.group()
        text = block["text"]
        lines = plural(text.count("\n") + 1, "line")
        return f"[{block['name']}, {lines}, {size(len(text.encode('utf-8', 'replace')))}]"

    return _FENCED.sub(label, message)


def _kind(name: str) -> str:
    kind = Path(name).suffix[1:]
    return kind if kind.isalnum() else ""


@dataclass(frozen=True, slots=True)
class PathCompletion:
    """A path completion."""

    path: str  # path after the ``@``; ends with a slash if it is a folder
    bytes: int | None  # size of a file; None for a folder


def read_attachment(name: str) -> Attachment:
    """Reads a text file, or the header of an image; raises ``UsageError`` if that is not possible."""
    shown = one_line(name)
    if named_like_image(name) and _is_file(name):
        image = read_attached(_path(name))
        return Attachment(name, image.facts.bytes, "", image)
    try:
        path = _path(name)
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise UsageError(f"cannot attach {shown}: it is not a file.", "Name a text file.")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
            whole = max(os.fstat(file.fileno()).st_size, len(raw))
    except (OSError, ValueError) as error:  # a zero byte in a name is a ValueError
        raise UsageError(f"cannot attach {shown}: {reason_of(error)}.", "Nothing was attached.") from error
    if len(raw) > MOST_BYTES:
        words = f"cannot attach {shown}: it is too large, {size(whole)}."
        raise UsageError(words, f"Attach a part of it, at most {size(MOST_BYTES)}.")
    return Attachment(name, len(raw), _decoded(raw, shown))


def mentioned(text: str, at_end: bool = False) -> list[tuple[int, int, str]]:
    """Start, end and path of each file that a text mentions with ``@path``; one with spaces only by completion."""
    found = []
    for mention in _MENTION.finditer(text):
        if at_end and mention.end() < len(text):
            continue
        for name in (mention[1], mention[1].rstrip(_BEHIND)):
            if _is_file(name):
                found.append((mention.start(), mention.start() + 1 + len(name), name))
                break
    return found


def pasted_image(text: str) -> str | None:
    """The path of a pasted or dropped image, in any form that terminals use; None for other text."""
    name = text.strip()
    if not name or "\n" in name:
        return None
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
    elif name[0] == name[-1] and name[0] in "'\"" and len(name) > 2:
        name = name[1:-1]
    elif not _is_file(name):
        name = _ESCAPED.sub(r"\1", name)
    return name if named_like_image(name) and _is_file(name) else None


def unattached(text: str) -> list[tuple[str, str]]:
    """Lists the names after an ``@`` that look like paths but are not files, each with the reason."""
    named = dict.fromkeys(mention[1].rstrip(_BEHIND) for mention in _MENTION.finditer(text))
    likely = [name for name in named if _LIKE_A_PATH.fullmatch(name) and not _is_file(name)]
    return [(name, _why_no_file(name)) for name in likely]


def path_completions(line: str) -> tuple[int, list[PathCompletion]]:
    """Lists names that complete the ``@path`` at the end of a line, folders first; and the column of the ``@``."""
    for start in list(_START.finditer(line))[-MOST_STARTS:]:  # the first one with a completion wins
        typed = line[start.end() :]
        if found := list(islice(_completions(typed), MOST_OFFERED)):
            return start.end() - 1, found
    return 0, []


def _completions(typed: str) -> Iterator[PathCompletion]:
    folder, slash, begin = typed.rpartition("/")
    if typed == "~":
        folder, slash, begin = "~", "/", ""
    try:
        with os.scandir(_path(folder + slash) if slash else ".") as entries:
            named = [entry for entry in islice(entries, MOST_LISTED) if _fits(entry.name, begin)]
    except (OSError, ValueError):
        return
    rows = [(not os.path.isdir(entry), entry.name.casefold(), entry) for entry in named]
    for is_file, _, entry in sorted(rows, key=lambda row: row[:2]):
        path = f"{folder}{slash}{entry.name}"
        try:
            yield PathCompletion(path, entry.stat().st_size) if is_file else PathCompletion(f"{path}/", None)
        except OSError:  # a dangling link, or deleted meanwhile
            continue


def _fits(name: str, begin: str) -> bool:
    """Whether a name completes ``begin``; hidden names need a typed dot, unprintable ones never match."""
    if not name.isprintable() or (name.startswith(".") and not begin.startswith(".")):
        return False
    return name.casefold().startswith(begin.casefold())


def _is_file(name: str) -> bool:
    return os.path.isfile(_path(name))


def _why_no_file(name: str) -> str:
    path = _path(name)  # a name that is too long or may not be read does not exist
    return "it is a folder" if os.path.isdir(path) else "it is not a file" if os.path.exists(path) else "no such file"


def _path(name: str) -> Path:
    return Path(os.path.expanduser(name))  # unlike ``Path.expanduser``, leaves the name of an unknown user


def _decoded(raw: bytes, shown: str) -> str:
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in raw and not wide:
        words = f"cannot attach {shown}: it is not text: it contains zero bytes."
        raise UsageError(words, "Only text files can be attached.")
    try:
        text = raw.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        words = f"cannot attach {shown}: it is not UTF-8 text: byte {error.start:,} is invalid."
        raise UsageError(words, "Convert it, or attach another file.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def edited_outside(app: App[Any], text: str) -> str:
    """The text as the user leaves it in ``$VISUAL`` or ``$EDITOR``, which has the terminal meanwhile."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ("notepad" if sys.platform == "win32" else "vi")
    hint = "Name one in the variable EDITOR, and start again."
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:  # only its owner can read it
        file = Path(folder, "message.md")
        file.write_text(text, "utf-8", "replace", newline="\n")
        why, raw = "", b""
        try:
            with app.suspend():  # it goes on only where nothing is raised inside
                try:
                    code = subprocess.run([*shlex.split(named), str(file)]).returncode
                    why = f"it ended with code {code}" if code else ""
                except (OSError, ValueError) as error:
                    why = str(error)
            raw = read_limited(file, MOST_BYTES)
        except (OSError, SuspendNotSupported) as error:
            why = why or str(error)
    if why:
        raise UsageError(f"the editor {one_line(named)} cannot be used: {one_line(why)}; nothing was changed.", hint)
    return raw.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n")


def is_long(text: str) -> bool:
    return len(text) > MOST_CHARACTERS or text.count("\n") >= MOST_LINES


class Folds:
    """Maps marks in a prompt to long texts, which are kept until the program ends, for undo and the history."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._marks = re.compile(r"(?!)")  # matches nothing

    def fold(self, text: str, label: str = "") -> str:
        """Creates a mark for a text; without a label, it says the size of the pasted text."""
        lines = text.removesuffix("\n").count("\n") + 1
        label = label or f"pasted {plural(lines, 'line')}, {size(len(text.encode('utf-8', 'replace')))}"
        label = label.replace("[", "(").replace("]", ")")
        mark, number = f"[{label}]", 1
        while self._texts.get(mark, text) != text:
            number += 1
            mark = f"[{label}, {number}]"
        self._texts[mark] = text
        self._marks = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        return mark

    def unfold(self, text: str) -> str:
        return self._marks.sub(lambda mark: self._texts[mark.group()], text)

    def folded_again(self, text: str) -> str:
        for mark, whole in sorted(self._texts.items(), key=lambda each: -len(each[1])):
            text = text.replace(whole, mark) if is_long(whole) else text
        return text

    def spans(self, line: str) -> list[tuple[int, int]]:
        return [mark.span() for mark in self._marks.finditer(line)]

    def at(self, line: str, column: int) -> tuple[int, int] | None:
        return next((span for span in self.spans(line) if span[0] <= column <= span[1]), None)


class Files:
    """Reads the files that a prompt names, and replaces each name by a mark."""

    def __init__(self, prompt: TextArea, folds: Folds, attached: Callable[[Attachment], object]) -> None:
        self._prompt, self._folds, self._attached = prompt, folds, attached
        self._reported: set[str] = set()  # names that were reported as missing

    def attach(self, name: str, start: int | None = None) -> Attachment:
        """Attaches a file in place of the text from ``start`` to the cursor; None replaces the whole prompt."""
        prompt = self._prompt
        read = read_attachment(name)
        mark = self._folds.fold(read.fenced, read.label)
        row, column = prompt.cursor_location
        begin, end = ((0, 0), prompt.document.end) if start is None else ((row, start), (row, column))
        after = prompt.document.get_text_range(end, prompt.document.end)
        prompt.replace(mark if after and not after[0].isalnum() else f"{mark} ", begin, end)
        self._attached(read)
        return read

    def attach_or_report(self, name: str, start: int) -> Attachment | None:
        try:
            return self.attach(name, start)
        except UsageError as error:
            trouble(self._prompt, error)
            return None

    def attach_mentioned(self) -> bool:
        """Attaches all files that the text mentions; returns False if one cannot be read."""
        prompt = self._prompt
        labels: list[str] = []
        for row in range(prompt.document.line_count):
            at = len(labels)
            for begin, end, name in reversed(mentioned(prompt.document.get_line(row))):
                prompt.move_cursor((row, end))
                read = self.attach_or_report(name, begin)
                if read is None:
                    return False
                labels.insert(at, read.label)
        if labels:
            prompt.notify(f"Attached: {'; '.join(labels)}.", timeout=_SECONDS, markup=False)
        self._report_missing(prompt.text)
        return True

    def attach_ended(self, row: int, column: int) -> None:
        """Attaches the file that is mentioned directly before a space or line end that was just typed."""
        prompt = self._prompt
        line = prompt.document.get_line(row)
        before = line[:column]
        if is_command(prompt.text) or "@" not in before or path_completions(f"{before} ")[1]:  # a name may have spaces
            return
        last = mentioned(before, at_end=True)
        if not last:
            self._report_missing(before.rpartition(" ")[2])
            return
        begin, end, name = last[0]
        cursor_row, cursor_column = prompt.cursor_location
        prompt.move_cursor((row, end))
        self.attach_or_report(name, begin)
        grown = len(prompt.document.get_line(row)) - len(line)
        prompt.move_cursor((cursor_row, cursor_column + grown * (cursor_row == row)))

    def _report_missing(self, text: str) -> None:
        missing = {name: why for name, why in unattached(text) if name not in self._reported}
        self._reported |= missing.keys()
        if missing:
            words = "; ".join(f"@{one_line(name)}: {why}" for name, why in missing.items())
            words = f"{words}; it is sent as text."
            self._prompt.notify(words, severity="warning", timeout=_SECONDS, markup=False)
