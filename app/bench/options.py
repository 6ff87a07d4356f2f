"""What ``slipstream bench`` takes on the command line; it loads nothing else, so that every command starts fast."""

from __future__ import annotations

import argparse
from typing import Any, Final

LIMIT: Final = 8
PAPERS_TYPICAL: Final = 0.09
"""The threshold that the Medusa paper uses."""

_EPILOG: Final = (
    "A file of prompts is .txt (one a line) or .jsonl (an object a line with messages, turns, prompt, question or"
    " text), plain or packed (.xz, .gz); all turns are played. With --drafters or --prompts, part drafters runs alone"
    " unless --only says otherwise. Part topics replays prose, a quoted document and code, and says how soon the"
    " autopilot notices. Part typing pastes, types and sends a long prompt. Part interface measures the screen alone,"
    " over replies that are played. Ctrl-C keeps what was measured. Tables are Markdown."
)


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command."""
    about = "measure this machine, and what drafting gains on it"
    bench = commands.add_parser("bench", help=about, description=about.capitalize() + ".", epilog=_EPILOG)
    bench.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="startup, plain, overhead, drafters, memory, check, topics, typing, interface or peers",
    )
    bench.add_argument(
        "--drafters",
        metavar="NAMES",
        help="all (the default), or some, with commas between them; slipstream run --help lists them",
    )
    bench.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="SET",
        help="prompts to reply to: chat, story, copy (the default is all three), or a file; may be repeated",
    )
    bench.add_argument("--limit", type=int, metavar="N", help=f"prompts of a set, chosen evenly; 0 for all ({LIMIT})")
    bench.add_argument(
        "--by-category", action="store_true", help="make a set of each category of a file, as Spec-Bench has them"
    )
    bench.add_argument("--temp", metavar="T,…", help="temperatures, with commas between them (0,0.8)")
    bench.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="reply to each prompt with N seeds, at temperature 0 with one; part topics: N rounds (1)",
    )
    bench.add_argument("--tokens", type=int, metavar="N", help="most tokens of a reply (160)")
    bench.add_argument(
        "-m",
        "--model",
        default=argparse.SUPPRESS,
        help="of parts drafters, check, topics, typing and peers: a path to a .gguf, or bundled (the default)",
    )
    bench.add_argument(
        "--draft-model", default=argparse.SUPPRESS, metavar="PATH", help="a draft model's .gguf, of the same vocabulary"
    )
    bench.add_argument(
        "--heads", action="append", default=[], metavar="FILE", help="heads beside those in the folder of heads"
    )
    bench.add_argument(
        "--no-memory", action="store_true", help="part drafters does not load the model again for each one's memory"
    )
    bench.add_argument(
        "--typical",
        type=float,
        nargs="?",
        const=PAPERS_TYPICAL,
        default=argparse.SUPPRESS,
        metavar="P",
        help="part drafters with Medusa's typical acceptance, which CHANGES THE TEXT",
    )
    bench.add_argument(
        "--check",
        action="store_true",
        help="compare every drafter's replies with plain decoding's, token for token; exit code 1 where one is wrong",
    )
    bench.add_argument("--svg", metavar="FILE", help="draw the speed-ups of part drafters with their intervals")
    bench.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="ENGINE",
        help="run another engine at its best on the same prompts: llama.cpp, llama-server, llama-cpp-python or all,"
        " or one kind of drafting of it, such as llama-server:draft; may be repeated",
    )
    bench.add_argument("--peer-python", metavar="PATH", help="a Python that has xllamacpp, for llama-server")
    bench.add_argument(
        "--inflate",
        metavar="SHAPES",
        help="measure the model widened to 135m, 0.5b, 1b, 3b, 7b, 8b or 13b (commas between them): a large model's"
        " cost and the small one's text; -m says which is widened",
    )
    bench.add_argument("--quant", metavar="TYPES", help="of --inflate: F32, F16, BF16, Q8_0, Q4_0, Q4_K_M (Q4_0)")
    bench.add_argument("--inflate-drafter", metavar="SHAPE", help="widen the draft model too, to this shape")
    bench.add_argument("--keep-inflated", action="store_true", help="leave what was made on the disk for the next time")
    bench.add_argument("--json", metavar="FILE", help="write the figures to a file as JSON")
