"""The recipe's command line."""

import argparse
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from slipstream.drafters.training.family import chats, heads, prompt_sets, report, sources, stages
from slipstream.drafters.training.family.decoders import keep_memory
from slipstream.drafters.training.family.decontaminate import Benchmarks, Overlaps
from slipstream.drafters.training.family.sizes import BUNDLED, TINY, Family

_ABOUT = "Trains the bundled models from text, on any machine; a stage that was stopped goes on."
STAGES = (
    "tokenizer",
    "loops",
    "target",
    "answers",
    "draft",
    "medusa",
    "kangaroo",
    "eagle3",
    "dflash",
    "space",
    "space-tuned",
    "report",
)
AVERAGE = "average"
"""An optional stage: it averages the weights of two targets that were trained from the same start."""
LOOKS = ("filter", "decontaminate", "test-set")
"""Commands that only print: what the filter leaves out, what overlaps benchmarks, whether the test set is unchanged."""


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and runs one stage, or all of them in order."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.drafters.training", description=_ABOUT)
    parser.add_argument(
        "stage", choices=("family", *STAGES, AVERAGE, *LOOKS), help="family runs all stages in this order"
    )
    parser.add_argument("--data", type=Path, help="folder of *.jsonl.xz (tokenizer, filter, decontaminate)")
    parser.add_argument("--against", type=Path, help="folder of benchmarks that no text may overlap")
    parser.add_argument("--out", type=Path, help="folder for everything that is made")
    parser.add_argument("--show", action="store_true", help="print the prompts of the test set: once, when all is done")
    parser.add_argument(
        "--start",
        type=Path,
        help="folder of an earlier family to go on from: tokenizer and weights",
    )
    parser.add_argument("--tiny", action="store_true", help="the same recipe on a very small scale, in a minute")
    parser.add_argument("--tokens", type=int, default=0, help="another budget than the recipe's, for the target")
    parser.add_argument("--minutes", type=float, default=0.0, help="a time budget, for the target")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the target's learning rates")
    parser.add_argument("--decay-from", type=float, help="share of the target's budget from which they fall")
    parser.add_argument("--other", type=Path, help="folder of another leg, whose target average mixes in")
    parser.add_argument("--share", type=float, default=0.5, help="of the other leg's weights in the average")
    parser.add_argument("--threads", type=int, default=0, help="of torch (0: its own choice)")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    keep_memory()
    family = TINY if given.tiny else BUNDLED
    plan = family.target_plan
    if given.tokens or given.minutes:
        plan = replace(plan, tokens=given.tokens, minutes=given.minutes)
    plan = replace(plan, matrix_rate=given.rate * plan.matrix_rate, other_rate=given.rate * plan.other_rate)
    if given.decay_from is not None:
        plan = replace(plan, decay_from=given.decay_from)
    family = replace(family, target_plan=plan)
    if given.stage in LOOKS:
        look(given, parser)
        return
    if given.out is None:
        parser.error(f"the stage {given.stage} needs --out")
    if given.stage == AVERAGE:
        if given.other is None:
            parser.error("average needs --other")
        stages.average(given.out, given.other, given.share)
        return
    for stage in STAGES if given.stage == "family" else (given.stage,):
        if stage == "tokenizer" and given.data is None:
            parser.error(f"the stage {stage} needs --data")
        stages.say(f"--- {stage}")
        run_stage(stage, given.data, given.out, family, given.start, given.against)


def look(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Prints what one of ``LOOKS`` finds; exits with 1 if the test set has changed."""
    match given.stage:
        case "test-set":
            chosen = prompt_sets.choose_test_set(sources.plain_rows())
            same = sorted(map(prompt_sets.digest, chosen)) == sorted(prompt_sets.fixed_digests())
            for prompt in prompt_sets.test_set(sources.plain_rows()) if given.show else ():
                stages.say(prompt)
            stages.say(f"{len(chosen)} prompts chosen by hash; {'as' if same else 'NOT as'} fixed in test_set.sha256")
            if not same:
                raise SystemExit(1)
        case "filter" if given.data:
            kept, _ = sources.split([*sources.read(given.data), *sources.plain_rows()])
            made, left_out = chats.build(
                kept, BUNDLED.target_plan.seed, prompt_sets.barred_from_training(sources.plain_rows())
            )
            for source in made:
                stages.say(f"{source:24} left out {left_out[source]:6} chats")
            stages.say(f"{'all':24} left out {left_out.total():6} chats")
        case "decontaminate" if given.data and given.against:
            found, benchmarks = Overlaps(), Benchmarks(given.against)
            for _ in benchmarks.clean(chain(sources.read(given.data), sources.plain_rows()), found):
                pass
            stages.say("\n".join(f"{name}: {count} texts" for name, count in benchmarks.texts.items()))
            stages.say(str(found))
        case _:
            parser.error(f"{given.stage} needs --data" + (" and --against" if given.stage == "decontaminate" else ""))


def run_stage(
    stage: str, data: Path, out: Path, family: Family, earlier: Path | None = None, against: Path | None = None
) -> None:
    """Runs one stage; each reads the files of earlier stages in ``out``, and resumes where it was stopped."""
    target, draft = (
        earlier / f"{name}-q8_0.gguf" if earlier else None for name in (stages.TARGET_NAME, stages.DRAFT_NAME)
    )
    match stage:
        case "tokenizer":
            stages.make_tokenizer(
                data, out, family.target.vocabulary, family.target_plan.seed, family.own_text, target, against
            )
        case "loops":
            if target:
                stages.make_loops(out, target, family.answer_tokens)
            else:
                stages.say("nothing to do without --start: no target has repeated itself yet")
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
        case "dflash":
            heads.train_dflash(out, family, earlier)
        case "space":
            heads.train_masks(out, family, earlier)
        case "space-tuned":
            heads.train_tuned(out, family)
        case "report":
            report.write(out)
