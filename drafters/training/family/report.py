"""What the model card says in figures: sizes, losses, curves, and the answers to the development set."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from slipstream.drafters.training import texts
from slipstream.drafters.training.family import mix, prompt_sets, stages
from slipstream.drafters.training.family.curves import curves
from slipstream.drafters.training.family.decoders import held_out_loss, load_decoder
from slipstream.drafters.training.family.heads import REPORT_FILE
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.replies import ManyReplies
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import repeated_share

CURVES_FILE = "curves.svg"
DEVELOPMENT_FILE = "development.md"
_ANSWER_TOKENS = 120
_TITLES = {
    "target": "target",
    "draft": "draft model",
    "medusa": "Medusa heads",
    "kangaroo": "Kangaroo adapter",
    "eagle": "EAGLE-3 head",
    "space": "SPACE masks",
    "space-tuned": "target tuned for SPACE",
}


def write(out: Path) -> None:
    """Adds figures to the report, draws the curves and lets the target answer the development set.

    Args:
        out: the folder that the stages have filled.
    """
    path = out / REPORT_FILE
    report = json.loads(path.read_text(encoding="utf-8"))
    report["runs"] = {}
    histories: dict[str, Any] = {}
    for name, title in _TITLES.items():
        progress = torch.load(out / f"{name}.pt", weights_only=True)["progress"]
        histories[title] = progress.pop("history")
        report["runs"][name] = progress
    (out / CURVES_FILE).write_text(curves(histories), encoding="utf-8")
    held_out = mix.load(out / stages.CORPUS_FILE, "held_out")
    for name in ("target", "draft"):
        model, _ = load_decoder(out / f"{name}.pt")
        lengths = [length for length in (256, 1024, 2048) if length <= model.shape.context]
        report["runs"][name] |= {
            "parameters": sum(p.numel() for p in model.parameters()),
            "held_out": {length: held_out_loss(model, held_out, 7, 64, length) for length in lengths},
            "held_out_by_source": {s: held_out_loss(model, {s: held_out[s]}, 7, 32) for s in held_out},
        }
    said, report["repeated_4_grams"] = answers(out / f"{stages.TARGET_NAME}-q8_0.gguf")
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")
    (out / DEVELOPMENT_FILE).write_text(said, encoding="utf-8")


def answers(model_path: Path) -> tuple[str, float]:
    """Answers to the development set at temperature 0, one try each.

    Returns:
        The answers as Markdown, and the share of their tokens that finish a repeated run of four.
    """
    with (
        closing(LlamaModel(model_path)) as model,
        closing(ManyReplies(model, 4, 512, stages.OPTIONS)) as replies,
    ):
        ids = texts.ChatIds(model)
        prompts = {
            tuple(ids.prompt([{"role": "user", "content": prompt}])): (kind, prompt)
            for kind, prompt in prompt_sets.development()
        }
        asked = ((list(prompt), Sampler(temperature=0)) for prompt in prompts)
        written = {tuple(prompt): reply for prompt, reply in replies.replies(asked, _ANSWER_TOKENS)}
        parts = []
        for tokens, (kind, prompt) in prompts.items():
            reply = written[tokens]
            said = model.pieces(reply).decode("utf-8", "replace").strip()
            cut = "" if reply[-1] in model.ends else " […]"
            parts.append(
                f"**{prompt}** ({kind})\n\n" + "\n".join(f"> {line}".rstrip() for line in f"{said}{cut}".splitlines())
            )
    repeated = sum(len(reply) * repeated_share(reply) for reply in written.values()) / sum(map(len, written.values()))
    return "\n\n".join(parts) + "\n", repeated
