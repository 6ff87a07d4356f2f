"""Wrong model files by the thousand, and the header's checks fuzzed for as long as one likes.

A command: ``python -m tests.soak.gguf N`` makes N mutated files, half of them wrong in their structure. Each goes
through the header's checks, and, whatever they say, into llama.cpp in a process of its own, which shows what a crasher
is; what the checks let through also goes into the probe. ``--fuzz SECONDS`` fuzzes the checks alone, with Hypothesis
and with mutants. Either prints what went wrong, then one line: what, how many, how many failed, the 95 % bound, and the
worst time and memory.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from io import BytesIO
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.models.mutants import good_files, headers, mutant

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.probe import Prober
from slipstream.models.gguf.reader import read_header, read_streams
from slipstream.models.gguf.vocabulary import check_vocabulary

SECONDS, MEGABYTES, SHARE = 2.0, 256, 0.98
_EXAMPLES = 500


def upper(failed: int, tried: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson; the rule of three where nothing failed)."""
    if not tried:
        return 1.0
    if not failed:
        return min(1.0, 3 / tried)
    z, share = 1.645, failed / tried
    spread = z * (share * (1 - share) / tried + z * z / (4 * tried * tried)) ** 0.5
    return float((share + z * z / (2 * tried) + spread) / (1 + z * z / tried))


def memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def mutants(number: int) -> int:
    """Tries mutants; returns 1 if too many crashers got through, or something hung the probe."""
    crashers = through = died = hung = wrong = 0
    slowest = longest = 0.0
    with tempfile.TemporaryDirectory() as folder, closing(Prober()) as prober:
        good, path = good_files(Path(folder)), Path(folder) / "mutant.gguf"
        raw = subprocess.Popen(
            [sys.executable, "-m", "tests.models.raw_loads"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert raw.stdin and raw.stdout
        for turn in range(number):
            path.write_bytes(mutant(good[turn // 2 % len(good)], turn))
            started, refused = time.process_time(), False
            try:
                check_vocabulary(read_header(path))
            except ModelFileError:
                refused = True
            except Exception as error:
                wrong += 1
                print(f"mutant {turn}: {error!r}")
            slowest = max(slowest, time.process_time() - started)
            print(path, file=raw.stdin, flush=True)
            outcome = raw.stdout.readline().strip()
            crasher = outcome.split(" ")[0] not in ("fine", "refused")
            crashers += crasher
            if refused:
                continue
            if crasher:
                through += 1
                print(f"mutant {turn} got through: {outcome}")
            begun = time.monotonic()
            try:
                prober.check(path)
            except SlipstreamError as error:
                died += "crashes" in error.title
                hung += "hangs" in error.title
            longest = max(longest, time.monotonic() - begun)
        raw.stdin.close()
        raw.wait()
    stopped = 1 - through / max(1, crashers)
    print(
        f"model files: {number} mutants, {crashers} crash or hang llama.cpp, {through} of these got through the checks"
        f" ({stopped:.1%} stopped, 95 % bound {1 - upper(through, crashers):.1%}); the probe died {died} and"
        f" hung {hung} times, {wrong} checks failed otherwise; longest check {slowest:.2f} s, longest probe"
        f" {longest:.1f} s"
    )
    return int(stopped < SHARE or wrong > 0 or hung > 0)


def fuzz(seconds: float) -> int:
    """Fuzzes the header's checks; returns 1 if they raised something else, or took too long or too much."""
    tried = failed = 0
    slowest, ends = 0.0, time.monotonic() + seconds

    def look(content: bytes) -> None:
        nonlocal tried, failed, slowest
        started = time.process_time()
        try:
            read_streams(Path("fuzz.gguf"), [(BytesIO(content), len(content))])
        except ModelFileError:
            pass
        except Exception as error:
            failed += 1
            print(f"{error!r}: {content[:400]!r}")
        took = time.process_time() - started
        tried, failed, slowest = tried + 1, failed + (took > SECONDS), max(slowest, took)

    with tempfile.TemporaryDirectory() as folder:
        good = good_files(Path(folder))
    before = memory()
    for turn in count():
        if time.monotonic() >= ends:
            break

        @seed(turn)
        @settings(
            max_examples=_EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(headers())
        def one_turn(content: bytes) -> None:
            look(content)

        one_turn()
        for number in range(turn * _EXAMPLES, (turn + 1) * _EXAMPLES):
            look(mutant(good[number // 2 % len(good)], number))
    used = memory() - before
    failed += used > MEGABYTES
    print(
        f"header checks: {tried} fuzzed files in {seconds:.0f} s, {failed} failed, 95 % bound"
        f" {upper(failed, tried):.3%}; slowest {slowest:.2f} s, {used} MB more at most"
    )
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.gguf")
    parser.add_argument("mutants", type=int, nargs="?", default=20_000, help="how many mutants (20000)")
    parser.add_argument("--fuzz", type=float, metavar="SECONDS", help="fuzz the checks alone")
    options = parser.parse_args()
    return mutants(options.mutants) if options.fuzz is None else fuzz(options.fuzz)


if __name__ == "__main__":
    sys.exit(main())
