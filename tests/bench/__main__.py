"""Measurements for developers: ``python -m tests.bench NAME… [options of slipstream bench]``.

startup: the help, the chat's screen and the first token. plain: the loop against bare ``llama_decode``. overhead: time
outside of it. memory: peak of a process. predict: tokens a second as predicted and as measured. race: what a race shows
against what the benchmark measures. topics: how soon the autopilot notices prose, a quoted document and code. replay:
what drafters that read text gain on texts that were really written (--texts). typing: a long prompt that is pasted,
typed and sent. interface: the screen alone, over replies that are played. calls: how many functions a message calls in
the interface. grammar: what a JSON schema and a grammar
cost a token. peers: other engines at their best on the same prompts. network: drafters with the target on another
machine, over networks of several delays. waiting: passes beside busy programs, by how threads wait for each other.
busy: whole replies with ``auto`` and without, alone and beside busy programs. acceptance: how often each drafter is
right, by depth, where it drafts at every step. retrieval: what the index of past chats (--texts) and of code gains over
``lookup``, with a model's vocabulary alone. drafters, check: as in ``slipstream bench``. With ``--inflate``, all but
startup, plain, overhead, memory, interface, grammar, acceptance and retrieval measure widened models.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.inflate.family import Wish, run_inflated
from tests.bench.parts import NAMES, OF_A_MODEL, DevelopersParts, Sizes
from tests.bench.peers.choice import PeerChoice
from tests.bench.real_replies import DEFAULT_LIMIT, TextChoice

from slipstream.app.bench.runner import Parts, Setup, tell
from slipstream.app.bench.turns import CtrlC
from slipstream.app.cli.bench import Figures, Run, measure
from slipstream.app.cli.options import bench_options
from slipstream.app.cli.parser import Parser, path
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load
from slipstream.models.errors import SlipstreamError, UsageError


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads a command line."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = Parser(prog="python -m tests.bench", description=about, epilog=more)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    bench_options(parser)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="ENGINE",
        help="llama.cpp, llama-server, llama-cpp-python or all, or one kind of drafting of it, such as"
        " llama-server:draft; may be repeated",
    )
    parser.add_argument(
        "--texts",
        type=path,
        metavar="DIR",
        help="texts to replay: .jsonl lines with turns and replies, question and answer, prompt and canonical_solution,"
        " or prompt and reply; .txt for prose; plain or packed; --limit counts texts of a domain",
    )
    parser.add_argument("--peer-python", type=path, metavar="PATH", help="a Python with xllamacpp, for llama-server")
    parser.add_argument(
        "--inflate",
        metavar="SHAPES",
        help="measure the model of -m widened to 135m, 0.5b, 1b, 3b, 7b, 8b or 13b (commas between them): the"
        " speed of a large model; the text is the small one's in the same quantization",
    )
    types = "F32, F16, BF16, Q8_0, Q4_0, Q4_K_M (Q4_0)"
    parser.add_argument("--quant", metavar="TYPES", help=f"file types for --inflate: {types}")
    parser.add_argument("--inflate-drafter", metavar="SHAPE", help="widen the draft model too, to this shape")
    parser.add_argument("--keep-inflated", action="store_true", help="keep the widened files for the next time")
    parser.set_defaults(
        model=None, draft_model=None, typical=None, exact=None, gpu_layers=None, rpc=None, draft_device=None, lora=None
    )
    return parser.parse_args(arguments)


def bench(asked: argparse.Namespace, sizes: Sizes | None = None) -> int:
    """Runs the parts that are asked for; returns the exit code.

    Raises:
        UsageError: If something is asked of a part that does not do it.
        SlipstreamError: See ``slipstream.app.cli.bench.measure``.
    """
    if asked.svg:
        raise UsageError("--svg draws what slipstream bench measures.", "Leave it out.")
    unfit = [name for name in asked.names if name not in OF_A_MODEL]
    if asked.inflate and unfit:
        raise UsageError(f"part {unfit[0]} measures no widened model.", f"Parts that do: {', '.join(OF_A_MODEL)}.")
    peers = PeerChoice.of(asked.peer, asked.peer_python)
    limit = DEFAULT_LIMIT if asked.limit is None else asked.limit
    texts = TextChoice(Path(asked.texts) if asked.texts else None, limit)
    wish = Wish.of(asked.inflate, asked.quant, asked.inflate_drafter, asked.keep_inflated)
    given = sizes or (Sizes.brief() if wish else Sizes())

    def parts(setup: Setup) -> Parts:
        return DevelopersParts(setup, given, peers, texts).all()

    def widened(model: Load, run: Run, stop: CtrlC) -> tuple[Figures, bool]:
        assert wish
        figures, passed = run_inflated(model, wish, Paths.default().derived, run, tell, stop)
        return {"inflated": figures}, passed

    return measure(asked, asked.names, parts, given.plan, *([widened] if wish else []))


if __name__ == "__main__":
    try:
        sys.exit(bench(options(sys.argv[1:])))
    except SlipstreamError as error:
        sys.exit(f"{error.title} {error.hint}")
