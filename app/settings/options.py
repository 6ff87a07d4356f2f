"""What ``slipstream settings`` takes on the command line; it loads nothing else, so that every command starts fast."""

from __future__ import annotations

import argparse
from typing import Any


def add_settings(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command with its own commands."""
    about = "settings: list, set and reset them"
    alone = about.capitalize() + ". Without a command, it lists them."
    parser = commands.add_parser("settings", help=about, description=alone)
    kinds = parser.add_subparsers(dest="settings_command", metavar="COMMAND")
    parser.set_defaults(settings_command="list", json=False)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = kinds.add_parser(name, help=about, description=about.capitalize() + ".")
        return made

    listing = command("list", "all settings, what they hold, and what they do")
    listing.add_argument("--json", action="store_true", help="one JSON object a setting")
    setting = command("set", "settle a value, as the settings screen does")
    setting.add_argument("name", metavar="NAME", help="such as sampling.temperature, as slipstream settings list says")
    setting.add_argument("value", metavar="VALUE", help="a number, a text, or on and off")
    reset = command("reset", "take settings back to their defaults")
    reset.add_argument("name", metavar="NAME", nargs="+")
