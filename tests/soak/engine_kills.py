"""The engine killed, or a reply stopped, at random moments in load, prefill and decode.

A command: ``python -m tests.soak.engine_kills [--stops] [COUNT [SEED]]``; COUNT is 1,000. Prints what went wrong, then
one line: what, how many, how many failed, the 95 % bound, and how soon the reason was told, or the engine idle. A kill
fails if its reason is not told within a second, if kept text differs from what was heard, if the next reply differs
from an undisturbed one, or if a process is left over; a stop, if the written text is not the beginning of the
undisturbed one, or if the next reply differs.
"""

import random
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from tests.app.engine.disturbed import PHASES, SIGNALS, Disturbed, bundled

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine

LATE = 1000.0  # milliseconds


def main(stops: bool, count: int = 1000, seed: int = 1) -> int:
    chance = random.Random(seed)
    failed = tried = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(Engine(folder / "engine.log")) as engine, closing(ChatStore(folder / "chats.db")) as store:
            disturbed = Disturbed(engine, bundled(folder / "derived"), store, chance)
            disturbed.begin()
            with suppress(KeyboardInterrupt):  # Ctrl-C reports what was tried so far
                while tried < count:
                    if stops:
                        wrong = disturbed.stop("prefill" if tried % 2 else "decode")
                    else:
                        wrong = disturbed.kill(chance.choice(SIGNALS), PHASES[tried % len(PHASES)])
                        late = disturbed.milliseconds[-1]
                        wrong = wrong or (f"the reason came after {late:.0f} ms" if late > LATE else "")
                    tried += 1
                    if wrong:
                        failed += 1
                        print(f"{'stop' if stops else 'kill'} {tried}: {wrong}", flush=True)
            orphans = disturbed.orphans()
    took = sorted(disturbed.milliseconds) or [0.0]
    fell = ", ".join(f"{number} in {phase}" for phase, number in sorted(disturbed.phases.items()))
    failed += len(orphans)
    bound = f", 95 % bound {3 / max(tried, 1):.1%}" if not failed else ""
    what, rest, when = ("stops", "after the end", "idle") if stops else ("engine kills", "when idle", "reason told")
    print(
        f"{what}: {tried} ({fell}, the rest {rest}), {failed} failed{bound}; {len(orphans)} orphans; {when} after"
        f" {took[len(took) // 2]:.0f} ms, 99 % within {took[len(took) * 99 // 100]:.0f} ms, at most {took[-1]:.0f} ms"
    )
    return int(failed > 0)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main("--stops" in words, *(int(word) for word in words if word != "--stops")))
