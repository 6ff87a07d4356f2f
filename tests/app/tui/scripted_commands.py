"""Commands beside the chat that do what a test says: real processes, without a model."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slipstream.app.bench.figures import ALL_KINDS

_PROGRAM = """
import shutil, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
code, gate, copies, error, *lines = sys.argv[1:]
for line in lines:
    print(line, file=sys.stdout if line.startswith("{") else sys.stderr, flush=True)
try:
    if gate:
        open(gate).read()
except KeyboardInterrupt:
    print("slipstream: stopped", file=sys.stderr)
    sys.exit(130)
for source, target in zip(*[iter(copies.split("|"))] * 2):
    shutil.copy(source, target)
if error:
    print("slipstream: " + error, file=sys.stderr)
else:
    print("outcome of it")
sys.exit(int(code))
"""


@dataclass
class Commands:
    folder: Path  # for the pipe that they wait at
    asked: list[list[str]] = field(default_factory=list)  # the arguments of each
    lines: Sequence[str] = ("step 1 of 4",)  # what they tell of their progress
    held: bool = True  # whether they wait for ``go`` then
    error: str = ""  # what they end with; empty if all goes well
    copies: list[tuple[Path, Path]] = field(default_factory=list)  # files that they write then, from and to
    written: Path | None = None  # what a benchmark writes, or None
    nice: int = 0  # how urgent the last one was

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def command(self, arguments: Sequence[str], nice: int) -> list[str]:
        self.asked.append(list(arguments))
        self.nice = nice
        copies = [str(path) for pair in self.copies for path in pair]
        if self.written:  # as the file that --json names
            copies += [str(self.written), arguments[list(arguments).index("--json") + 1]]
        gate = str(self.gate) if self.held else ""
        code = "1" if self.error else "0"
        return [sys.executable, "-c", _PROGRAM, code, gate, "|".join(copies), self.error, *self.lines]

    def go(self) -> None:
        self.gate.write_text("")


def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(folder)
    os.mkfifo(made.gate)
    monkeypatch.setattr("slipstream.app.tui.jobs.command", made.command)
    return made


def result(path: Path, *, stopped: bool = False) -> Path:
    def ratio(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 0.1, "high": value + 0.1}

    def row(drafter: str, kind: str, value: float) -> dict[str, object]:
        return {
            "drafter": drafter, "kind": kind, "temperature": 0.8, "tok_per_s": 40.0 * value, "speedup": ratio(value),
            "by_prompt": [value, value], "tokens_per_step": 1.5 * value,
            "acceptance": None if drafter == "none" else 0.5, "by_depth": [0.5, None],
            "phases": {"draft": 0.1, "evaluate": 1.0}, "first_token_ms": 12.0, "tokens": 96, "equal_texts": 2,
            "texts": 2,
        }  # fmt: skip

    kinds = ("chat", "copy")
    drafters = (("none", 1.0), ("auto", 1.7), ("lookup", 1.9), ("recycle", 0.8))
    best = [
        {
            "kind": kind, "temperature": 0.8, "drafter": "lookup", "speedup": ratio(1.9), "auto": ratio(1.7),
            "auto_over_best": None,
        }
        for kind in (*kinds, ALL_KINDS)
    ]  # fmt: skip
    report = {
        "model": "Small model", "promise": "same text",
        "rows": [row(name, kind, value) for kind in (*kinds, ALL_KINDS) for name, value in drafters], "best": best,
        "unusable": {"medusa": "it needs medusa heads, and this model has none"}, "prompts": dict.fromkeys(kinds, 2),
        "too_long": dict.fromkeys(kinds, 0), "seeds": [1], "reply": 48, "typical": None, "equal_texts": 8, "texts": 8,
        "memory_mb": {}, "stopped": stopped,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": {"processor": "A processor"}, "drafters": report}), "utf-8")
    return path
