"""What ``slipstream chats`` takes on the command line; it loads nothing else, so that every command starts fast."""

from __future__ import annotations

import argparse
from typing import Any, Final

_CHAT: Final = "its id or title, or the beginning of the title, as slipstream chats list says"


def add_chats(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command with its own commands."""
    about = "kept chats: list, search, show, export, import, rename, delete"
    alone = about.capitalize() + ". Without a command, it lists them."
    parser = commands.add_parser("chats", help=about, description=alone)
    kinds = parser.add_subparsers(dest="chats_command", metavar="COMMAND")
    parser.set_defaults(chats_command="list", json=False)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = kinds.add_parser(name, help=about, description=about.capitalize() + ".")
        return parser

    listing = command("list", "all chats, pinned ones first, then the newest")
    listing.add_argument("--json", action="store_true", help="one JSON object a chat")
    search = command("search", "messages and titles that have all these words, in any branch")
    search.add_argument("words", nargs="+", metavar="WORD", help="a word or its beginning")
    search.add_argument("--limit", type=int, default=50, metavar="N", help="most places (50)")
    search.add_argument("--json", action="store_true", help="one JSON object a place")
    show = command("show", "a chat as Markdown, the branch that is shown in the chat alone")
    show.add_argument("chat", metavar="CHAT", help=_CHAT)
    show.add_argument("--thoughts", action="store_true", help="also what the model thought before it answered")
    export = command("export", "chats with all branches and figures")
    export.add_argument("chat", nargs="*", metavar="CHAT", help=f"{_CHAT}; all if left out")
    export.add_argument("--format", choices=("md", "json"), default="md", help="Markdown, or JSON to import again (md)")
    export.add_argument("-o", "--output", metavar="FILE", help="a new file, in place of standard output")
    taking = command("import", "chats of an export in JSON, or of ChatGPT's conversations.json")
    taking.add_argument("file", metavar="FILE")
    delete = command("delete", "erase chats with all that was kept of them, for good")
    delete.add_argument("chat", nargs="+", metavar="CHAT", help=_CHAT)
    delete.add_argument("-y", "--yes", action="store_true", help="do not ask where only a beginning is given")
    rename = command("rename", "give a chat another title")
    rename.add_argument("chat", metavar="CHAT", help=_CHAT)
    rename.add_argument("title", metavar="TITLE", help="the new one")
