"""The commands of the chat: one table for the prompt (``/name``), its completion, and the palette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.models.errors import UsageError

if TYPE_CHECKING:
    from slipstream.app.tui.screens.chat import ChatScreen

MARK = "/"


@dataclass(frozen=True, slots=True)
class Command:
    """Something to do.

    Attributes:
        name: What is typed behind the slash.
        title: Its name in the palette.
        about: What it does, in a line.
        run: Does it; gets what was typed behind the name, which is empty where nothing was.
        argument: What follows the name: "NAME", in brackets where it may be left out; empty where nothing does.
        key: A key that does the same, or empty.
        plain: Whether it needs no chat on the screen.
    """

    name: str
    title: str
    about: str
    run: Callable[[ChatScreen, str], Awaitable[object] | object]
    argument: str = ""
    key: str = ""
    plain: bool = False

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"{MARK}{self.name} {self.argument}".strip()

    @property
    def needs(self) -> bool:
        """Whether something must follow its name."""
        return bool(self.argument) and not self.argument.startswith("[")

    @property
    def help(self) -> str:
        """What the palette says: how else it is done, and what it does."""
        return " · ".join(filter(None, (self.key, self.usage.replace("[", r"\["), self.about)))  # it reads markup


COMMANDS: tuple[Command, ...] = (
    Command("new", "New chat", "begin a chat", lambda chat, _: chat.action_new_chat(), key="Ctrl-N"),
    Command(
        "chats", "All chats", "search, open, rename, pin, delete", lambda chat, _: chat.action_chats(), key="Ctrl-O"
    ),
    Command("undelete", "Bring back the deleted chat", "for a minute", lambda chat, _: chat.action_undo_delete()),
    Command(
        "export", "Export this chat", "as .md or .json", lambda chat, file: chat.export_as(file), argument="[FILE]"
    ),
    Command("retry", "Reply again", "same question, another seed", lambda chat, _: chat.action_again(), key="F5"),
    Command("go", "Go on", "with a reply that was stopped", lambda chat, _: chat.action_go_on(), key="Ctrl-G"),
    Command(
        "copy", "Copy the last reply", "through the terminal", lambda chat, _: chat.action_copy_reply(), key="Ctrl-Y"
    ),
    Command(
        "thoughts",
        "Thoughts",
        "open or fold those of the last reply",
        lambda chat, _: chat.action_thoughts(),
        key="Ctrl-T",
    ),
    Command("search", "Search earlier prompts", "of all chats", lambda chat, _: chat.action_recall(), key="Ctrl-R"),
    Command("attach", "Attach a text file", "or type @path", lambda chat, file: chat.attach(file), argument="FILE"),
    Command(
        "system",
        "System prompt",
        "of this chat: a text, a kept name, or none",
        lambda chat, text: chat.use_system(text),
        argument="[TEXT]",
    ),
    Command(
        "preset",
        "Sampling preset",
        "how this chat's replies are drawn",
        lambda chat, name: chat.use_preset(name),
        argument="[NAME]",
    ),
    Command(
        "keep-system",
        "Keep this system prompt",
        "under a name",
        lambda chat, name: chat.keep_system(name),
        argument="NAME",
    ),
    Command(
        "keep-preset",
        "Keep this sampling",
        "under a name",
        lambda chat, name: chat.keep_preset(name),
        argument="NAME",
    ),
    Command("seed", "Seed", "of the next replies", lambda chat, seed: chat.take_seed(seed), argument="N"),
    Command(
        "temp",
        "Temperature",
        "of the next replies; 0 takes the likeliest",
        lambda chat, t: chat.take_temperature(t),
        argument="T",
    ),
    Command(
        "model",
        "Use a model by name",
        "as `slipstream models list` names it",
        lambda chat, name: chat.use_model(name),
        argument="NAME",
    ),
    Command("models", "Models", "use, find, fetch, remove", lambda chat, _: chat.action_models(), key="Ctrl-L"),
    Command(
        "drafter",
        "All drafters",
        "choose one, or see why not",
        lambda chat, name: chat.use_drafter(name),
        argument="[NAME]",
        key="Ctrl-D",
    ),
    Command("next", "Next drafter", "from the next reply on", lambda chat, _: chat.action_next_drafter(), key="F2"),
    Command("bench", "Benchmark", "what drafting gains on this machine", lambda chat, _: chat.action_bench(), key="F8"),
    Command("colours", "Colours", "who wrote which words", lambda chat, _: chat.action_colours(), key="F3"),
    Command("trees", "Drafts", "as trees, and how often they are right", lambda chat, _: chat.action_trees(), key="F4"),
    Command(
        "help", "Keys and figures", "all keys, and what the figures mean", lambda chat, _: chat.action_help(), key="F1"
    ),
    Command("settings", "Settings", "all of them, explained", lambda chat, _: chat.action_settings(), key="F9"),
    Command(
        "light",
        "Light or dark",
        "switch between the two themes",
        lambda chat, _: chat.app.run_action("light_or_dark"),
        plain=True,
    ),
    Command(
        "theme", "All themes", "choose from all themes", lambda chat, _: chat.app.action_change_theme(), plain=True
    ),
    Command("quit", "Quit", "everything is kept", lambda chat, _: chat.app.action_quit(), key="Ctrl-Q", plain=True),
)


def is_command(text: str) -> bool:
    """Whether a prompt is a command; two slashes begin a message with one."""
    return text.startswith(MARK) and not text.startswith(2 * MARK)


def literal(message: str) -> str:
    """A message as it is typed: where it begins with a slash, with two."""
    return MARK + message if message.startswith(MARK) else message


def parsed(text: str) -> tuple[Command, str]:
    """Reads a prompt that is a command.

    Returns:
        The command, and what follows its name.

    Raises:
        UsageError: If there is no such command, or something is missing or too much.
    """
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
    """The commands that go on from what was typed behind the slash."""
    return [command for command in COMMANDS if command.name.startswith(begin.casefold())]
