"""The last part of every command's help: examples, environment, exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = MappingProxyType(
    {
        "slipstream": (
            ("slipstream", "the chat, with the model that was chosen last"),
            ("slipstream -m bundled --chat notes", "go on with the chat called notes, or begin it"),
            ("slipstream --inline", "a few questions, below the prompt of the shell"),
            ('slipstream run -p "Why is the sky blue?"', "one reply to standard output"),
        ),
        "slipstream run": (
            ('slipstream run -p "Why is the sky blue?"', "one reply"),
            ('git diff | slipstream run -p "Write a commit message:"', "what is piped in stands below the prompt"),
            ("slipstream run --temp 0 --seed 1 < question.txt > answer.txt", "a filter"),
            ('slipstream run --chat notes -p "And then?"', "go on with a kept chat, with its own sampling"),
            ("slipstream run --json -p Hi | tail -n 1 | jq .tok_per_s", "the summary is the last line"),
        ),
        "slipstream completion": (
            ("source <(slipstream completion bash)", "in ~/.bashrc"),
            ("source <(slipstream completion zsh)", "in ~/.zshrc, below compinit"),
            ("slipstream completion fish > ~/.config/fish/completions/slipstream.fish", "once, for fish"),
        ),
        "slipstream bench": (
            ("slipstream bench", "everything, in about ten minutes"),
            ("slipstream bench --only drafters -m qwen3 --json figures.json", "the drafters of one model"),
            ("slipstream bench --check", "compare every drafter's replies with plain decoding's"),
        ),
        "slipstream models": (
            ("slipstream models", "what is here"),
            ("slipstream models search qwen3 4b", "what is on the hub"),
            ("slipstream models pull Qwen/Qwen3-4B-GGUF:Q4_K_M --with-drafter", "fetch a model and its drafter"),
        ),
        "slipstream models list": (("slipstream models list --json", "for a script"),),
        "slipstream models search": (
            ("slipstream models search qwen3 4b --limit 5", "the most fetched ones"),
            ("slipstream models search Qwen/Qwen3-4B-GGUF", "the quantizations of one"),
        ),
        "slipstream models pull": (
            ("slipstream models pull Qwen/Qwen3-4B-GGUF:Q4_K_M", "given again, it goes on where it stopped"),
        ),
        "slipstream models import": (("slipstream models import ~/Downloads/model.gguf", "link to it, or --copy it"),),
        "slipstream models verify": (("slipstream models verify qwen3", "compare it with what was published"),),
        "slipstream models rm": (
            ("slipstream models rm qwen3", "it can be brought back with models undo"),
            ("slipstream models rm --now", "free the room of all that was removed"),
        ),
        "slipstream models undo": (("slipstream models undo", "bring back what was removed last"),),
        "slipstream models pairs": (("slipstream models pairs qwen3", "its drafters, and why others cannot serve it"),),
        "slipstream drafters": (
            ("slipstream drafters", "who can draft for the model that was chosen last"),
            ("slipstream drafters train medusa -m qwen3", "train heads for it here"),
        ),
        "slipstream drafters list": (("slipstream drafters list -m qwen3", "who serves it and why others do not"),),
        "slipstream drafters train": (
            ("slipstream drafters train medusa -m qwen3", "on what the model itself writes"),
            ("slipstream drafters train kangaroo --on chats", "on your own chats, for the bundled model"),
        ),
        "slipstream drafters import": (("slipstream drafters import medusa-vicuna-7b -m vicuna", "published heads"),),
        "slipstream drafters off": (("slipstream drafters off lookahead -m qwen3", "leave one out for a model"),),
        "slipstream drafters on": (("slipstream drafters on lookahead -m qwen3", "let it draft again"),),
        "slipstream drafters index": (
            ("slipstream drafters index ~/project", "draft from your files"),
            ("slipstream drafters index --list", "what is indexed"),
        ),
        "slipstream chats": (("slipstream chats", "all chats, the newest first"),),
        "slipstream chats list": (("slipstream chats list --json", "one object a line"),),
        "slipstream chats search": (("slipstream chats search garden fence", "in every branch of every chat"),),
        "slipstream chats show": (
            ("slipstream chats show notes", "as Markdown"),
            ('slipstream chats show "garden pl"', "by the beginning of its title"),
        ),
        "slipstream chats export": (("slipstream chats export --format json -o chats.json", "to import it elsewhere"),),
        "slipstream chats import": (("slipstream chats import conversations.json", "an export of ChatGPT"),),
        "slipstream chats delete": (("slipstream chats delete notes", "for good"),),
        "slipstream chats rename": (('slipstream chats rename notes "Garden plans"', "the new title last"),),
        "slipstream settings": (("slipstream settings", "what there is to settle"),),
        "slipstream settings list": (("slipstream settings list --json", "one object a setting"),),
        "slipstream settings set": (("slipstream settings set sampling.temperature 0.5", "as on the screen"),),
        "slipstream settings reset": (("slipstream settings reset sampling.temperature", "its default again"),),
        "slipstream doctor": (("slipstream doctor --json > machine.json", "for a report"),),
        "slipstream paths": (("slipstream paths", "a place a line"),),
    }
)
"""A command, by its whole name, to (what to type, what it does)."""

ENVIRONMENT: Final = (
    ("SLIPSTREAM_HOME", "keep everything below this folder"),
    ("HF_TOKEN", "token of the hub, for models that ask for one"),
    ("HF_HUB_OFFLINE", "1: ask the hub nothing"),
    ("HF_ENDPOINT", "another address of the hub"),
    ("NO_COLOR", "set to anything: no colours"),
)
EXIT_CODES: Final = (
    ("0", "done"),
    ("1", "an error; standard error says what, why and what to try"),
    ("2", "a wrong use: another option or input is needed"),
    ("130", "interrupted by Ctrl-C; what was written until then stays"),
    ("141", "whoever read the output has left, as head does"),
)


def ending(command: str) -> str:
    """What stands at the end of a command's help.

    Args:
        command: Its whole name, such as ``slipstream models pull``.
    """
    parts = []
    if examples := EXAMPLES.get(command):
        parts += ["examples:", *(f"  {typed}\n      {does}" for typed, does in examples), ""]
    parts += ["environment:", *_rows(ENVIRONMENT), "", "exit codes:", *_rows(EXIT_CODES)]
    return "\n".join(parts) + "\n"


def _rows(rows: tuple[tuple[str, str], ...]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {about}" for name, about in rows]
