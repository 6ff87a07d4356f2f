"""The commands and keys of the chat: one table for the prompt (``/name``), its completion, the palette and the help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from textual.binding import Binding, BindingType

from slipstream.app.tui.keys import named
from slipstream.models.errors import UsageError

MARK: Final = "/"
# default keys of the chat; the settings can change them
KEYS: Final[list[BindingType]] = named(
    [
        Binding("escape", "command('stop')", "Stop", id="stop", key_display="Esc"),
        Binding("escape", "command('leave-edit')", "Leave it", key_display="Esc", id="stop"),
        Binding("ctrl+g", "command('go')", "Go on", priority=True, id="go-on"),
        Binding("f1", "app.help", "Help"),
        Binding("f2", "command('next')", "Next drafter", show=False, id="next-drafter"),
        Binding("ctrl+d", "command('drafter')", "Drafters", priority=True, id="drafters"),
        Binding("f3", "command('colours')", "Colours", id="colours"),
        Binding("f4", "command('trees')", "Guesses", id="trees"),
        Binding("f6", "command('offer')", "Fetch a model", show=False, id="offer"),
        Binding("ctrl+l", "command('models')", "Models", priority=True, id="models"),
        Binding("alt+n", "command('new')", "New", priority=True, id="new-chat", key_display="^n"),
        Binding("ctrl+o", "command('chats')", "Chats", priority=True, id="chats"),
        Binding("ctrl+up,alt+up", "command('select', -1)", "Messages", show=False, priority=True, id="message-before"),
        Binding(
            "ctrl+down,alt+down",
            "command('select', 1)",
            "Next message",
            show=False,
            priority=True,
            id="message-after",
        ),
        Binding("alt+s", "command('panel')", "This chat", show=False, priority=True, id="panel"),
        Binding("f9", "app.settings", "Settings", show=False),
        Binding("f5", "command('retry')", "Again", show=False, priority=True, id="again"),
        Binding("alt+r", "command('dry')", "Again without repeats", show=False, priority=True, id="dry"),
        Binding("f8", "command('bench')", "Benchmark", show=False, priority=True, id="bench"),
        Binding("ctrl+r", "command('search')", "Search prompts", show=False, priority=True, id="recall"),
        Binding("ctrl+t", "command('thoughts')", "Thoughts", show=False, priority=True, id="thoughts"),
        Binding("alt+t", "command('next-thinking')", "More or less thinking", show=False, priority=True, id="thinking"),
        Binding("alt+a", "command('answer-now')", "Stop thinking now", show=False, priority=True, id="answer-now"),
        Binding("ctrl+y", "command('copy')", "Copy reply", show=False, priority=True, id="copy-reply"),
        Binding("alt+e", "command('editor')", "Open in $EDITOR", show=False, priority=True, id="editor"),
        Binding("ctrl+q", "app.quit", "Quit", priority=True),
        Binding("ctrl+p", "history(-1)", "Earlier prompts", show=False, priority=True, id="prompt-before"),
        Binding("ctrl+n", "history(1)", "Later prompts", show=False, priority=True, id="prompt-after"),
        Binding("ctrl+c", "interrupt", "Copy, stop or quit", show=False, priority=True),
        Binding("pageup", "command('page', -1)", "Page up", show=False, priority=True, id="page-up"),
        Binding("pagedown", "command('page', 1)", "Page down", show=False, priority=True, id="page-down"),
        Binding("ctrl+home", "command('top')", "Top", show=False, priority=True, id="top"),
        Binding("ctrl+end", "command('bottom')", "Newest", show=False, priority=True, id="bottom"),
    ]
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the chat."""

    name: str  # the name after the slash
    title: str  # its name in the palette
    about: str  # what it does, an imperative that can be read alone
    argument: str = ""  # name of the argument, in brackets if optional; empty for none
    key: str = ""  # default key, or empty
    plain: bool = False  # whether it works on screens other than the chat

    @property
    def usage(self) -> str:
        return f"{MARK}{self.name} {self.argument}".strip()

    @property
    def needs(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")

    @property
    def help(self) -> str:
        return " · ".join(
            filter(None, (self.key, self.usage.replace("[", r"\["), self.about))
        )  # the palette parses markup


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
    Command("model", "Use a model by name", "use a model that `slipstream models list` names", argument="NAME"),
    Command("compact", "Summarize", "summarize older messages to make room; undo restores", argument="[undo]"),
    Command("context", "Context", "set the context in tokens; auto is the model's own", argument="[TOKENS]"),
    Command("models", "Models", "use, find, fetch or remove models", key="Ctrl-L"),
    Command("offer", "Take the suggested model", "take the model that the chat suggests", key="F6"),
    Command("drafter", "All drafters", "choose a drafter, or see what one lacks", argument="[NAME]", key="Ctrl-D"),
    Command("next", "Next drafter", "use the next drafter, from the next reply on", key="F2"),
    Command("guess", "See it guess", "reply once with guesses shown, and what they gained", argument="[PROMPT]"),
    Command("race", "Race", "write one reply with and without the drafter", argument="[PROMPT]"),
    Command("bench", "Benchmark", "measure what drafting gains on this machine", key="F8"),
    Command("colours", "Colours", "show which words were guessed, copied or corrected", key="F3"),
    Command("trees", "Guesses", "show each step's guesses, and how many are right", key="F4"),
    Command("help", "Keys and figures", "show all keys, and what the figures mean", key="F1"),
    Command("settings", "Settings", "see and change the settings, all explained", key="F9"),
    Command("commands", "All commands", "list all commands", key="Alt-P", plain=True),
    Command("light", "Light or dark", "switch between the light and the dark theme", plain=True),
    Command("theme", "All themes", "choose from all themes", plain=True),
    Command("suspend", "Suspend", "go back to the shell; fg continues"),
    Command("quit", "Quit", "quit; everything is kept", key="Ctrl-Q", plain=True),
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
        raise UsageError(
            f"there is no command {MARK}{name}; nothing was sent.",
            "/ lists all; // sends a message that begins with /.",
        )
    if command.needs and not argument:
        raise UsageError(f"{MARK}{command.name} needs a word more: {command.usage}.", "Nothing was changed.")
    if argument and not command.argument:
        raise UsageError(
            f"nothing follows {command.usage}; nothing was sent.", "// sends a message that begins with /."
        )
    return command, argument


def matching(begin: str) -> list[Command]:
    return [command for command in COMMANDS if command.name.startswith(begin.casefold())]
