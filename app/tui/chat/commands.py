"""The commands and keys of the chat: one table for the prompt (``/name``), its completion, the palette and the help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content, Span
from textual.message import Message
from textual.widgets import Static

from slipstream.app.tui.chat.authorship import legend
from slipstream.app.tui.keys import KeyMap, named
from slipstream.app.tui.parts.dialogs import Dialog, sheet
from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.errors import UsageError

MARK: Final = "/"
# default keys of the chat; the settings can change them
KEYS: Final[list[BindingType]] = named(
    [
        Binding("escape", "command('stop')", "Stop", id="stop", key_display="Esc"),
        Binding("escape", "command('leave-edit')", "Leave it", key_display="Esc", id="stop"),
        Binding("ctrl+g", "command('go')", "Go on", id="go-on"),
        Binding("f1", "app.help", "Help"),
        Binding("f2", "command('next')", "Next drafter", show=False, id="next-drafter"),
        Binding("ctrl+d", "command('drafter')", "Drafters", id="drafters"),
        Binding("f3", "command('colours')", "Colours", id="colours"),
        Binding("f4", "command('trees')", "Guesses", id="trees"),
        Binding("f6", "command('offer')", "Fetch a model", show=False, id="offer"),
        Binding("ctrl+l", "command('models')", "Models", id="models"),
        Binding("alt+n", "command('new')", "New", id="new-chat", key_display="^n"),
        Binding("ctrl+o", "command('chats')", "Chats", id="chats"),
        Binding("ctrl+up,alt+up", "command('select', -1)", "Messages", show=False, id="message-before"),
        Binding("ctrl+down,alt+down", "command('select', 1)", "Next message", show=False, id="message-after"),
        Binding("alt+s", "command('panel')", "This chat", show=False, id="panel"),
        Binding("f9", "app.settings", "Settings", show=False),
        Binding("f5", "command('retry')", "Again", show=False, id="again"),
        Binding("alt+r", "command('dry')", "Again without repeats", show=False, id="dry"),
        Binding("f8", "command('bench')", "Benchmark", show=False, id="bench"),
        Binding("ctrl+r", "command('search')", "Search prompts", show=False, id="recall"),
        Binding("ctrl+t", "command('thoughts')", "Thoughts", show=False, id="thoughts"),
        Binding("alt+t", "command('next-thinking')", "More or less thinking", show=False, id="thinking"),
        Binding("alt+a", "command('answer-now')", "Stop thinking now", show=False, id="answer-now"),
        Binding("ctrl+y", "command('copy')", "Copy reply", show=False, id="copy-reply"),
        Binding("alt+e", "command('editor')", "Open in $EDITOR", show=False, id="editor"),
        Binding("ctrl+q", "app.quit", "Quit"),
        Binding("ctrl+p", "history(-1)", "Earlier prompts", show=False, id="prompt-before"),
        Binding("ctrl+n", "history(1)", "Later prompts", show=False, id="prompt-after"),
        Binding("ctrl+c", "interrupt", "Copy, stop or quit", show=False),
        Binding("pageup", "command('page', -1)", "Page up", show=False, id="page-up"),
        Binding("pagedown", "command('page', 1)", "Page down", show=False, id="page-down"),
        Binding("ctrl+home", "command('top')", "Top", show=False, id="top"),
        Binding("ctrl+end", "command('bottom')", "Newest", show=False, id="bottom"),
    ]
)
HELP: Final[Mapping[str, Sequence[str | tuple[str, str]]]] = {  # by section: keys and what they do, or a command's key
    "Writing": (
        ("Enter", "send; while a reply is written, after it"),
        ("Ctrl-J, Alt-Enter", "new line (also Shift-Enter, if the terminal tells it apart)"),
        "Alt-E",
        ("Esc", "stop the reply; what was written stays"),
        ("Up, Down", "in an empty prompt: earlier prompts"),
        ("Ctrl-P, Ctrl-N", "in the prompt: earlier prompts, later ones"),
        "Ctrl-R",
        ("/, //", "a command; a message that begins with a slash"),
        ("@", "attach a text file"),
        ("Tab", "on pasted or attached text: put it into the prompt; in an empty prompt: something to try"),
    ),
    "Guesses": ("F2", "Ctrl-D", "F8", "F3", "F4", ("/guess", "reply once with guesses shown, and what they gained")),
    "Models": ("Ctrl-L", "F6"),
    "Replies": ("F5", "Alt-R", "Ctrl-T", "Alt-T", "Alt-A", "Ctrl-Y", "Ctrl-G"),
    "Messages": (
        ("Ctrl-Up, Ctrl-Down", "select a message (also with Alt), then:"),
        ("  e, r", "edit it, reply again; the old version is kept"),
        ("  Left, Right", "the other versions of it, where it says 2/3"),
        ("  c, 1 to 9", "copy it, or a code block of it"),
        ("  f", "fork: a new chat that ends with it"),
        ("  d, u", "delete it, bring it back"),
    ),
    "Chats": (
        ("Ctrl-N, Alt-N", "new chat"),
        ("Ctrl-O", "all chats; type to search, then:"),
        ("  Enter, Ctrl-R", "open it, rename it"),
        ("  Ctrl-T, Ctrl-X", "pin it, delete it (Ctrl-Z brings it back)"),
        ("  Ctrl-S", "export it"),
    ),
    "Screen and program": (
        ("PgUp, PgDn", "scroll; the mouse wheel does too"),
        ("Ctrl-Home, Ctrl-End", "to the top, to the newest"),
        ("Ctrl-C", "copy what is selected, else stop, clear, quit"),
        ("Ctrl-Z", "undo typing; /suspend goes back to the shell"),
        *("F1", "Alt-S", "F9", "Alt-P", "Ctrl-Q"),
    ),
}
FIGURES = (
    ("token", "a word or a part of one, as the model reads and writes"),
    ("drafter", "what guesses the next tokens; auto chooses one; Ctrl-D says how each guesses"),
    ("step, pass", "one run of the model: it checks the guesses, and adds a token"),
    ("tree", "guesses that branch: several for one place"),
    ("heads, adapter", "small layers that were trained to guess for one model"),
    ("T", "temperature: at 0 always the likeliest token"),
    (f"30 / {DEFAULT_CONTEXT:,}", "context: tokens of the chat and of what you type, of those that it can hold"),
    ("tok/s", "tokens per second over the reply, once it began"),
    ("with drafter", "the speed now: guessed, and checked by the model"),
    ("without", "this model alone: timed in this chat, on steps without guesses"),
    ("unsteady", "its steps differ too much for a comparison"),
    ("machine is busy", "other programs use much of the processor"),
    ("1.8x faster", "speed-up: with drafter over without"),
    ("68 % right", "acceptance: share of guesses that the model took"),
    ("│, … 42 %", "in F4: the model's own word; a guess that was left out, and how likely it seemed"),
    ("tokens per step", "tokens that one pass of the model yields; 1 without guesses"),
    ("text identical", "same text: a drafter changes no word"),
    ("same odds", "each word has the same odds, but rounding may choose another one; Ctrl-D says why"),
    ("corrected", "recovered: the model's word where a guess was wrong"),
    ("extra", "bonus: the model's own token, after right guesses"),
)
WIDTH = 80  # largest width of the sheet, as in ``app.tcss``
FRAME = 7  # cells of its border, its padding and its scrollbar
NARROW = 70  # screen width below which a meaning is on the line below its key


@dataclass
class CommandRequest(Message):
    """A widget asks the screen to run a command."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the chat."""

    name: str  # the name after the slash
    title: str  # its name in the palette
    about: str  # what it does, an imperative that can be read alone
    argument: str = ""  # name of the argument, in brackets if optional; empty for none
    key: str = ""  # default key, or empty
    app: str = ""  # the action of the whole program that it is; empty for one of the chat
    plain: bool = False  # whether it works on screens other than the chat

    @property
    def usage(self) -> str:
        return f"{MARK}{self.name} {self.argument}".strip()

    @property
    def needs(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")

    @property
    def help(self) -> str:
        usage = self.usage.replace("[", r"\[")  # the palette parses markup
        return " · ".join(filter(None, (self.key, usage, self.about)))


COMMANDS: tuple[Command, ...] = (
    Command("new", "New chat", "begin a chat", key="Ctrl-N"),
    Command("chats", "All chats", "search, open, rename, pin or delete chats", key="Ctrl-O"),
    Command("undelete", "Undo deleting", "bring back the message or chat deleted last"),
    Command("export", "Export this chat", "write this chat to a .md or .json file", argument="[FILE]"),
    Command("retry", "Reply again", "reply again, with another seed", key="F5"),
    Command("dry", "Reply again without repeats", "reply again, with a penalty for repeats", key="Alt-R"),
    Command("fork", "Fork this chat", "begin a chat with the messages up to here"),
    Command("go", "Go on", "continue a stopped reply", key="Ctrl-G"),
    Command("copy", "Copy the last reply", "copy the last reply to the clipboard", key="Ctrl-Y"),
    Command("thoughts", "Thoughts", "open or fold the thoughts of the last reply", key="Ctrl-T"),
    Command("editor", "Open in $EDITOR", "write the prompt, or read a message, in $EDITOR", key="Alt-E"),
    Command("search", "Search earlier prompts", "search earlier prompts, in all chats", key="Ctrl-R"),
    Command("attach", "Attach a text file", "attach a text file or an image, as @path does", argument="FILE"),
    Command("panel", "This chat", "set system prompt, sampling, drafter and context", key="Alt-S"),
    Command("system", "System prompt", "set the system prompt: a text, a kept name, or none", argument="[TEXT]"),
    Command("preset", "Sampling preset", "choose how this chat's replies are sampled", argument="[NAME]"),
    Command("keep-system", "Keep this system prompt", "keep this system prompt under a name", argument="NAME"),
    Command("keep-preset", "Keep this sampling", "keep this sampling under a name", argument="NAME"),
    Command("think", "Thinking", "set how much the model thinks: a level, or tokens", argument="[LEVEL]", key="Alt-T"),
    Command("answer-now", "Stop thinking now", "end the thoughts, so that the model answers", key="Alt-A"),
    Command("seed", "Seed", "set the seed of the next replies", argument="N"),
    Command("temp", "Temperature", "set the temperature; 0 takes the likeliest token", argument="T"),
    Command("model", "Use a model by name", "use a model of the list, or a GGUF file by its path", argument="NAME"),
    Command("compact", "Summarize", "summarize older messages to make room; undo restores", argument="[undo]"),
    Command("context", "Context", "set the context in tokens; auto is the model's own", argument="[TOKENS]"),
    Command("models", "Models", "use, find, fetch or remove models", key="Ctrl-L"),
    Command("offer", "Take the suggested model", "take the model that the chat suggests", key="F6"),
    Command("drafter", "All drafters", "choose, train or import drafters; index text", argument="[NAME]", key="Ctrl-D"),
    Command("next", "Next drafter", "use the next drafter, from the next reply on", key="F2"),
    Command("guess", "See it guess", "reply once with guesses shown, and what they gained", argument="[PROMPT]"),
    Command("race", "Race", "write one reply with and without the drafter", argument="[PROMPT]"),
    Command("bench", "Benchmark", "measure what drafting gains on this machine", key="F8"),
    Command("colours", "Colours", "show which words were guessed, copied or corrected", key="F3"),
    Command("trees", "Guesses", "show each step's guesses, and how many are right", key="F4"),
    Command("help", "Keys and figures", "show all keys, and what the figures mean", key="F1", app="help"),
    Command("settings", "Settings", "see and change the settings, all explained", key="F9", app="settings"),
    Command("commands", "All commands", "list all commands", key="Alt-P", app="command_palette", plain=True),
    Command("light", "Light or dark", "switch between the light and the dark theme", app="light_or_dark", plain=True),
    Command("theme", "All themes", "choose from all themes", app="change_theme", plain=True),
    Command("suspend", "Suspend", "go back to the shell; fg continues", app="suspend_job"),
    Command("quit", "Quit", "quit; everything is kept", key="Ctrl-Q", app="quit", plain=True),
)


def is_command(text: str) -> bool:
    """Whether a prompt is a command; a message that begins with a slash is typed with two."""
    return text.startswith(MARK) and not text.startswith(2 * MARK)


def literal(message: str) -> str:
    """A message as typed: doubles a leading slash."""
    return MARK + message if message.startswith(MARK) else message


def parsed(text: str) -> tuple[Command, str]:
    """Parses a command and its argument; raises ``UsageError`` if it is unknown, lacks an argument, or takes none."""
    name, *rest = text[len(MARK) :].split(maxsplit=1) if text[len(MARK) :].strip() else [""]
    argument = rest[0].strip() if rest else ""
    command = next((command for command in COMMANDS if command.name == name.casefold()), None)
    if command is None:
        words = f"there is no command {MARK}{name}; nothing was sent."
        raise UsageError(words, "/ lists all; // sends a message that begins with /.")
    if command.needs and not argument:
        raise UsageError(f"{MARK}{command.name} needs a word more: {command.usage}.", "Nothing was changed.")
    if argument and not command.argument:
        words = f"nothing follows {command.usage}; nothing was sent."
        raise UsageError(words, "// sends a message that begins with /.")
    return command, argument


def matching(begin: str) -> list[Command]:
    return [command for command in COMMANDS if command.name.startswith(begin.casefold())]


class HelpScreen(Dialog[None]):
    """Lists the keys, the figures and the colours."""

    BINDINGS: ClassVar[list[BindingType]] = [("f1,q,enter", "dismiss", "Close")]

    def __init__(self, keys: KeyMap, here: Sequence[tuple[str, str]] = ()) -> None:
        """Lists the keys and the words; of another screen that is open first its keys, ``here``, and the words."""
        super().__init__()
        self._keys, self._here = keys, here

    def compose(self) -> ComposeResult:
        with sheet(VerticalScroll(id="help"), "Keys", "Esc closes"):
            screen = self.app.size.width
            narrow, room = screen < NARROW, min(screen, WIDTH) - FRAME
            sections = {title: _named(rows, self._keys) for title, rows in HELP.items()}
            every = [*FIGURES, *(row for rows in sections.values() for row in rows)]
            width = 0 if narrow else max(len(name) for name, _ in every)
            keys = [(title, _rows(rows, width, room)) for title, rows in sections.items()]
            words = [("Words and figures", _rows(FIGURES, width, room)), ("Colours (F3)", legend(room))]
            if self._here:
                yield Static(_rows(self._here, width, room))
            for title, part in [*words, ("In the chat", Content("")), *keys] if self._here else [*keys, *words]:
                yield Static(Content(title), classes="heading")
                yield Static(part)


def with_command(usual: str, keys: KeyMap) -> str:
    """The current keys of a row, and the command with the same action; empty if there is neither."""
    command = next((each for each in COMMANDS if each.key and each.key == usual.split(", ")[0]), None)
    return ", ".join(filter(None, (keys.now(usual), f"{MARK}{command.name}" if command else "")))


def _named(rows: Sequence[str | tuple[str, str]], keys: KeyMap) -> list[tuple[str, str]]:
    about = {command.key: command.about for command in COMMANDS}
    every = [(each, about[each]) if isinstance(each, str) else each for each in rows]
    return [(name, meaning) for usual, meaning in every if (name := with_command(usual, keys))]


def _rows(rows: Sequence[tuple[str, str]], width: int, room: int) -> Content:
    """The rows in at most ``room`` cells, with keys of ``width`` cells; 0 puts a meaning below its key."""
    indent = "\n" + " " * (width + 2)
    lines = []
    for name, meaning in rows:
        column = indent.join(wrap(meaning, max(room - width - 2, 1)))
        between = "  " if width else indent
        lines.append(Content(f"{name:<{width}}{between}{column}", [Span(0, len(name), "bold $primary")]))
    return Content("\n").join(lines)
