"""The engine killed at random moments in load, prefill and decode, by four signals.

A command: ``python -m tests.soak.engine_kills [COUNT [SEED]]``; COUNT is 1,000. Prints what went wrong, then one line:
what, how many, how many failed, the 95 % bound, and how soon the reason was told. A kill fails if its reason is not
told within a second, if kept text differs from what was heard, if the next reply differs from an undisturbed one, or if
a process is left over.
"""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from tests.app.engine.disturbed import PHASES, SIGNALS, Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine

LATE = 1000.0  # milliseconds


def main(count: int = 1000, seed: int = 1) -> int:
    """Kills; returns 1 if anything went wrong."""
    chance = random.Random(seed)
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(Engine(folder / "engine.log")) as engine, closing(ChatStore(folder / "chats.db")) as store:
            disturbed = Disturbed(engine, bundled(folder / "derived"), store, chance)
            disturbed.begin()
            tried = 0
            with suppress(KeyboardInterrupt):  # Ctrl-C reports what was tried so far
                while tried < count:
                    wrong = disturbed.kill(chance.choice(SIGNALS), PHASES[tried % len(PHASES)])
                    late = disturbed.milliseconds[-1]
                    wrong = wrong or (f"the reason came after {late:.0f} ms" if late > LATE else "")
                    tried += 1
                    if wrong:
                        failed += 1
                        print(f"kill {tried}: {wrong}", flush=True)
            orphans = disturbed.orphans()
    told = sorted(disturbed.milliseconds) or [0.0]
    fell = ", ".join(f"{number} in {phase}" for phase, number in sorted(disturbed.phases.items()))
    failed += len(orphans)
    bound = f", 95 % bound {3 / max(tried, 1):.1%}" if not failed else ""
    print(
        f"engine kills: {tried} ({fell}, the rest when nothing was asked), {failed} failed{bound};"
        f" {len(orphans)} orphans; reason told after {told[len(told) // 2]:.0f} ms, at most {told[-1]:.0f} ms"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
