"""The long runs: ``python -m tests.soak [NAME…] [--size quick|usual|release] [--minutes N] [--markdown]``.

Runs the commands of this folder one after the other, each in a process of its own, and collects the lines that they end
with as a table. "quick" is a look of a minute or so each, "usual" fits a night, "release" has the figures of a release.
``--list`` names them with what they run at each size.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SIZES: Final = ("quick", "usual", "release")


@dataclass(frozen=True, slots=True)
class Run:
    name: str  # what it is called here, and its module unless that is given
    about: str  # what it shows
    # what it is given at each of ``SIZES``; None where it is left out
    arguments: tuple[str | None, str | None, str | None]
    module: str = ""  # the module, if it has another name
    lines: int = 1  # how many lines it ends with

    def command(self, size: str) -> list[str] | None:
        given = self.arguments[SIZES.index(size)]
        module = f"tests.soak.{self.module or self.name}"
        return None if given is None else [sys.executable, "-m", module, *given.split()]


RUNS: Final = (
    Run("exact", "drafting never changes what is written", ("200 2000", "2000 100000", ""), lines=2),
    Run(
        "same_text", "replies with drafters are plain ones", ("bundled --cases 4", "bundled --kinds", "bundled --kinds")
    ),
    Run("verifier", "changes to the verifier are caught by its tests", ("", "", "")),
    Run("engine_kills", "the engine killed", ("40", "400", "1000")),
    Run("engine_ends", "the screen says why the engine ended", (None, "2", "15")),
    Run("stops", "replies stopped", ("--stops 50", "--stops 400", "--stops 1000"), module="engine_kills"),
    Run("kills", "the interface killed while a reply streams", ("5", "100", "1000")),
    Run("strangers", "what a stranger does to the program", (None, "1", "10 --minutes 200")),
    Run("first_minutes", "no two figures on the screens contradict", (None, "both", "both")),
    Run("countdown", "the benchmark's estimate of its time", (None, "--limit 2 --tokens 48", "")),
    Run("install", "installed as a user does", (None, "", "")),
    Run("signals", "endings of the chat, the terminal afterwards", (None, "2", "15")),
    Run("gguf", "damaged model files", ("300", "4000", "20000")),
    Run("headers", "fuzzed headers", ("--fuzz 60", "--fuzz 1800", "--fuzz 14400"), module="gguf"),
    Run("text", "hostile text through the filter", ("20000", "100000", "100000")),
    Run("templates", "hostile chat templates", ("", "", "")),
    Run("downloads", "faults, kills and full disks while a model is fetched", ("48 20 5", "600 200 20", "600 200 20")),
    Run("write_faults", "disks that fail at the n-th call, kills there", ("chats", "", ""), lines=0),
    Run("chat_store", "the chat store against a model", ("20 30", "400 50", "2000 100")),
    Run("damage", "damaged chats", ("1", "6", "50")),
    Run("fit", "what models need of the memory", ("512", "", "")),
    Run("talk", "one engine for hours", ("1", "60", "480")),
)


def run(one: Run, command: list[str], seconds: float) -> tuple[bool, list[str]]:
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its own children too
        child.communicate()
        return False, [f"{one.name}: not done after {seconds / 60:g} minutes"]
    said = [line for line in out.splitlines() if line]
    told = said[-one.lines :] if one.lines else [line for line in said if line.startswith(one.name.replace("_", " "))]
    for line in said:
        if line not in told:
            print(f"  {line}", flush=True)
    return child.returncode == 0, told or [f"{one.name}: said nothing, exit code {child.returncode}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (all)")
    parser.add_argument("--size", choices=SIZES, default="usual", help="how much of each (usual)")
    parser.add_argument("--minutes", type=float, default=600.0, metavar="N", help="most for each (600)")
    parser.add_argument("--markdown", metavar="FILE", help="write the table there, too")
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    known = {one.name: one for one in RUNS}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(RUNS)
    if options.list:
        for one in chosen:
            sizes = ", ".join(
                f"{size}: {given or 'all'}"
                for size, given in zip(SIZES, one.arguments, strict=True)
                if given is not None
            )
            print(f"{one.name:<14}{one.about} ({sizes})")
        return 0
    failed, rows = 0, ["| run | result |", "|---|---|"]
    for one in chosen:
        if command := one.command(options.size):
            began = time.monotonic()
            good, told = run(one, command, 60 * options.minutes)
            failed += not good
            print(*told, f"  ({time.monotonic() - began:.0f} s{'' if good else ', FAILED'})", sep="\n", flush=True)
            asked = " ".join(command[2:])
            rows += [f"| `{asked}` | {line} |" for line in told]
            if options.markdown:
                Path(options.markdown).write_text("\n".join(rows) + "\n", "utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
