"""Replies stopped at random moments in prefill and decode.

A command: ``python -m tests.soak.cancels [COUNT [SEED]]``; COUNT is 1,000. Prints what went wrong, then one line: what,
how many, how many failed, the 95 % bound, and how soon the engine was idle. A stop fails if the text that was written
is not the beginning of the undisturbed one, or if the next reply differs from an undisturbed one.
"""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from tests.app.engine.disturbed import Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine


def main(count: int = 1000, seed: int = 1) -> int:
    """Stops; returns 1 if anything went wrong."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(Engine(folder / "engine.log")) as engine, closing(ChatStore(folder / "chats.db")) as store:
            disturbed = Disturbed(engine, bundled(folder / "derived"), store, random.Random(seed))
            disturbed.begin()
            tried = 0
            with suppress(KeyboardInterrupt):  # Ctrl-C reports what was tried so far
                while tried < count:
                    wrong = disturbed.stop("prefill" if tried % 2 else "decode")
                    tried += 1
                    if wrong:
                        failed += 1
                        print(f"stop {tried}: {wrong}", flush=True)
    idle = sorted(disturbed.milliseconds) or [0.0]
    fell = ", ".join(f"{number} in {phase}" for phase, number in sorted(disturbed.phases.items()))
    bound = f", 95 % bound {3 / max(tried, 1):.1%}" if not failed else ""
    print(
        f"stops: {tried} ({fell}, the rest after the end), {failed} failed{bound};"
        f" idle after {idle[len(idle) // 2]:.0f} ms, 99 % within {idle[len(idle) * 99 // 100]:.0f} ms"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
