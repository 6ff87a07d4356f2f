"""Command line of the recipe: ``python -m slipstream.drafters.training STAGE --data DIR --out DIR``."""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from slipstream.drafters.training import stages
from slipstream.drafters.training.export import KINDS
from slipstream.drafters.training.loop import Plan
from slipstream.drafters.training.model import DRAFT, TARGET

_DRAFT_PLAN = Plan(batch_tokens=4096, other_rate=6e-3, check_every=100)


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and runs one stage."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.drafters.training", description=__doc__)
    parser.add_argument("stage", choices=("tokenizer", "target", "draft", "export"))
    parser.add_argument("--data", type=Path, help="folder of *.jsonl.xz (stage tokenizer)")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    parser.add_argument("--minutes", type=float, default=0.0, help="time budget")
    parser.add_argument("--tokens", type=int, default=0, help="token budget")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=TARGET.vocabulary)
    for name in ("width", "layers", "heads", "kv-heads", "head-size", "ffn", "batch-tokens", "check-every"):
        parser.add_argument(f"--{name}", type=int, help="instead of the stage's own value")
    parser.add_argument("--models", type=Path, help="where the GGUF files go (stage export; else --out)")
    parser.add_argument("--kind", choices=KINDS, default="q8_0", help="how export stores matrices")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    sizes = {k: v for k in ("width", "layers", "heads", "kv_heads", "head_size", "ffn") if (v := getattr(given, k))}
    plans = {k: v for k in ("batch_tokens", "check_every") if (v := getattr(given, k))}
    budget = {"minutes": given.minutes, "tokens": given.tokens, "seed": given.seed}
    if given.stage in ("target", "draft") and not (given.minutes or given.tokens):
        parser.error("give --minutes or --tokens")
    if given.stage == "tokenizer":
        if given.data is None:
            parser.error("the stage tokenizer needs --data")
        stages.make_tokenizer(given.data, given.out, given.vocabulary, given.seed)
    elif given.stage == "target":
        shape = replace(TARGET, vocabulary=given.vocabulary, **sizes)
        stages.train_target(given.out, shape, replace(Plan(), **budget, **plans))
    elif given.stage == "draft":
        shape = replace(DRAFT, vocabulary=given.vocabulary, **sizes)
        stages.train_draft(given.out, shape, replace(_DRAFT_PLAN, **budget, **plans))
    else:
        stages.export(given.out, given.models or given.out, given.kind)


if __name__ == "__main__":
    main()
