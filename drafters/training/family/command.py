"""The recipe's command line."""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from slipstream.drafters.training.family import heads, report, stages
from slipstream.drafters.training.family.decoders import keep_memory
from slipstream.drafters.training.family.sizes import BUNDLED, TINY, Family

_ABOUT = "Trains the bundled models from text, on any machine; a stage that was stopped goes on."
STAGES = ("tokenizer", "target", "answers", "draft", "medusa", "kangaroo", "eagle3", "space", "space-tuned", "report")


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and runs one stage, or all of them in order."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.drafters.training", description=_ABOUT)
    parser.add_argument("stage", choices=("family", *STAGES), help="family runs all of them in this order")
    parser.add_argument("--data", type=Path, help="folder of *.jsonl.xz (stage tokenizer)")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    parser.add_argument(
        "--start",
        type=Path,
        help="folder of an earlier family to go on from: tokenizer and weights",
    )
    parser.add_argument("--tiny", action="store_true", help="the same recipe on a very small scale, in a minute")
    parser.add_argument("--tokens", type=int, default=0, help="another budget than the recipe's, for the target")
    parser.add_argument("--minutes", type=float, default=0.0, help="a time budget, for the target")
    parser.add_argument("--threads", type=int, default=0, help="of torch (0: its own choice)")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    keep_memory()
    family = TINY if given.tiny else BUNDLED
    budget = {"tokens": given.tokens, "minutes": given.minutes}
    if any(budget.values()):
        family = replace(family, target_plan=replace(family.target_plan, **budget))
    for stage in STAGES if given.stage == "family" else (given.stage,):
        if stage == "tokenizer" and given.data is None:
            parser.error("the stage tokenizer needs --data")
        stages.say(f"--- {stage}")
        run_stage(stage, given.data, given.out, family, given.start)


def run_stage(stage: str, data: Path, out: Path, family: Family, earlier: Path | None = None) -> None:
    """Runs one stage; each reads what the ones before it left in ``out``, and goes on where it was stopped."""
    target, draft = (
        earlier / f"{name}-q8_0.gguf" if earlier else None for name in (stages.TARGET_NAME, stages.DRAFT_NAME)
    )
    match stage:
        case "tokenizer":
            stages.make_tokenizer(data, out, family.target.vocabulary, family.target_plan.seed, family.own_text, target)
        case "target":
            stages.train_target(out, family.target, family.target_plan, family.compiled, target)
        case "answers":
            heads.make_answers(out, family)
        case "draft":
            stages.train_draft(out, family.draft, family.draft_plan, family.compiled, draft)
            heads.measure_draft(out)
        case "medusa":
            heads.train_medusa(out, family, earlier)
        case "kangaroo":
            heads.train_kangaroo(out, family, earlier)
        case "eagle3":
            heads.train_eagle(out, family, earlier)
        case "space":
            heads.train_masks(out, family, earlier)
        case "space-tuned":
            heads.train_tuned(out, family)
        case "report":
            report.write(out)
