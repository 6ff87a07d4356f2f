"""The chat store against a model of a few lines, in random steps: writes, branches, deletions, searches, new starts.

A command: ``python -m tests.soak.chat_store [RUNS [STEPS]]``; 2,000 runs of up to 100 steps. Prints one line: what, how
many, how many failed, the 95 % bound.
"""

import sys
import traceback

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.app.chats.test_model import Chats

_AT_ONCE = 50


def main(runs: int = 2000, steps: int = 100) -> int:
    done = failed = 0
    while done < runs:
        some = min(_AT_ONCE, runs - done)
        way = settings(
            max_examples=some, stateful_step_count=steps, deadline=None, database=None,
            phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        try:
            run_state_machine_as_test(Chats, settings=way)
        except Exception:
            failed += 1
            traceback.print_exc()
        done += some
    bound = f", 95 % bound {3 / runs:.2%}" if not failed else ""
    print(f"chat store: {runs:,} runs of up to {steps} steps against a model, {failed} failed{bound}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
