"""Reads what a terminal sends, and drops what is malformed, so that it cannot end the program."""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Final, cast

from textual import constants, events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, FOCUSIN, FOCUSOUT, XTermParser
from textual.keys import Keys
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput

from slipstream.app.platform.error_log import note
from slipstream.app.platform.safe_text import typed

ESC: Final = "\x1b"
SYNCHRONIZED: Final = re.compile(r"\x1b\[\?2026;[1-9]\$y")
CURSOR: Final = re.compile(r"\x1b\[(\d+);(\d+)R")
BURST: Final = 32  # characters in one read that count as a paste; terminals without bracketed paste send keys
LONGEST: Final = 128  # characters of a sequence; Textual's patterns take very long for longer ones
MOST_UNFINISHED: Final = 4096  # characters of a sequence without an end
SEQUENCE_WAIT: Final = 1.0  # seconds for the rest of a sequence that is no key of its own
PASTE_WAIT: Final = 1.0  # seconds without a character after which an unended paste is inserted
KEY_GAP: Final = 0.2  # seconds after which a lone control key is one that a person presses to leave an unended paste
ONE_KEY: Final = 16  # maximum characters of one key; after PASTE_WAIT, so few end the paste
LOG_EVERY: Final = 60.0  # seconds between two notes in the log about dropped sequences
_BURST: Final = re.compile(rf"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]{{{BURST},}}")
_LINE: Final = re.compile(r"([^\r\n]+)(\r|\n|\r\n)?\Z")  # one line; its end is the Enter key
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_FLOOD: Final = re.compile(rf"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f]{{{BURST},}}")  # no person and no paste sends these
_TOKEN: Final = re.compile(
    r"[^\x1b]"
    r"|\x1b\[M[^\x00-\x1f]{3}"  # an old mouse report
    r"|\x1b\[\[[A-E]"  # function keys of the Linux console
    r"|\x1b\[\d+\$"  # rxvt's keys with Shift
    r"|\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1bO[ -~]"
    r"|\x1b[]P^_X][^\x00-\x1f\x7f]*(?:\x07|\x1b\\)"  # a string: an answer about colours, a title
    r"|\x1b[^\x1b\[\]OP^_X]"  # Alt with a character
)
_UNFINISHED: Final = re.compile(
    r"\x1b(?:\[(?:M[^\x00-\x1f]{0,2}|\[|(?!\d+\$)[0-?]*[ -/]*)|O|[]P^_X][^\x00-\x1f\x7f]*\x1b?)?\Z"
)
_BROKEN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O|[]P^_X][^\x00-\x1f\x7f]*)?")


class FromInput(Message):
    """Never posted. Textual passes on prevented messages: one that prevents this one was caused by input."""


def mark(message: Message) -> None:
    """Marks a message that comes from the terminal, and thereby all messages that it will cause."""
    message._prevent.add(FromInput)


class InputReader:
    """Turns the bytes of a terminal into Textual's messages; drops what is malformed and notes that in the log.

    Textual's own parser raises errors for some sequences, and types those in a paste as keys, each with its own edit.
    """

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._keys = XTermParser()
        self._rest = ""  # an unfinished sequence
        self._pasted: list[str] | None = None  # the text of a paste that has not ended
        self._stalled = False  # whether that paste has paused for long
        self._last = 0.0  # when the last character came
        self._dropped, self._logged = 0, -LOG_EVERY

    def feed(self, data: bytes, now: float) -> Iterator[Message]:
        if now - self._last >= KEY_GAP and _CONTROL.fullmatch(data):
            yield from self._stall()
        text = self._rest + self._decode(data)
        self._rest, self._last, at = "", now, 0
        if self._stalled and len(text) <= ONE_KEY and BRACKETED_PASTE_END not in text:
            self._pasted, self._stalled = None, False
        while at < len(text):
            if self._pasted is not None:
                end = text.find(BRACKETED_PASTE_END, at)
                if end < 0:
                    end = _begun(BRACKETED_PASTE_END, text, at)
                    self._pasted.append(text[at:end])
                    self._rest = text[end:]
                    break
                self._pasted.append(text[at:end])
                at = end + len(BRACKETED_PASTE_END)
                yield from self._paste()
                self._pasted, self._stalled = None, False
            elif burst := _BURST.match(text, at):
                line = _LINE.match(burst[0])
                at = burst.start() + line.end(1) if line else burst.end()
                yield events.Paste(typed(text[burst.start() : at]))
            elif flood := _FLOOD.match(text, at):
                at = flood.end()
                self._drop(now)
            elif text[at] == ESC and _UNFINISHED.match(text, at):
                if len(text) - at <= MOST_UNFINISHED:
                    self._rest = text[at:]
                else:
                    self._drop(now)
                break
            elif token := _TOKEN.match(text, at):
                at = token.end()
                if token[0] == BRACKETED_PASTE_START:
                    self._pasted = []
                else:
                    yield from self._read(token[0], now)
            else:
                broken = cast(re.Match[str], _BROKEN.match(text, at))
                at = broken.end()
                if broken[0] == ESC:
                    yield from self._read(ESC, now)
                else:
                    self._drop(now)

    def tick(self, now: float) -> Iterator[Message]:
        """Call it often: ends a lone Esc, a sequence whose rest does not come, and a paste without an end."""
        if now - self._last >= PASTE_WAIT:
            yield from self._stall()
        wait = constants.ESCAPE_DELAY if len(self._rest) <= 2 else SEQUENCE_WAIT
        if self._rest and self._pasted is None and now - self._last >= wait:
            token, self._rest = self._rest, ""
            yield from self._read(token, now)

    def _stall(self) -> Iterator[Message]:
        """Inserts what a paste without an end holds so far; the next key ends it."""
        if self._pasted is not None and not self._stalled:
            self._pasted.append(self._rest)
            self._rest, self._stalled = "", True
            yield from self._paste()
            self._pasted = []

    def _paste(self) -> Iterator[Message]:
        text = typed("".join(self._pasted or ()))
        if text:
            yield events.Paste(text)

    def _read(self, token: str, now: float) -> Iterable[Message]:
        """The messages of a character or of a sequence; none if it is malformed."""
        try:
            found = self._messages(token)
        except Exception as error:  # Textual's parser checks neither code points nor numbers
            found = None
            self._drop(now, error)
        else:
            if found is None:
                self._drop(now)
        return found or ()

    def _messages(self, token: str) -> list[Message] | None:
        if len(token) > LONGEST:
            return None
        if token == ESC:
            return [events.Key("escape", ESC)]
        if token in (FOCUSIN, FOCUSOUT):
            return [events.AppFocus() if token == FOCUSIN else events.AppBlur()]
        if place := CURSOR.fullmatch(token):
            return [events.CursorPosition(int(place[2]) - 1, int(place[1]) - 1)]
        keys = list(self._keys._sequence_to_key_events(token))
        if not keys and len(token) == 2:
            keys = list(self._keys._sequence_to_key_events(token[1], alt=True))
        if keys:
            return [key for key in keys if key.key != Keys.Ignore]
        if SYNCHRONIZED.fullmatch(token):
            return [TerminalSupportsSynchronizedOutput()]
        mouse = self._keys.parse_mouse_code(token)
        return [mouse] if mouse else None

    def _drop(self, now: float, error: Exception | None = None) -> None:
        self._dropped += 1
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            note(f"the terminal sent sequences that mean nothing here; dropped so far: {self._dropped}", error)


def _begun(end: str, text: str, at: int) -> int:
    """Where a sequence that may go on in the next read begins at the end of a text; the length of the text if none."""
    first = max(len(text) - len(end) + 1, at)
    return next((place for place in range(first, len(text)) if end.startswith(text[place:])), len(text))
