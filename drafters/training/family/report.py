"""Writes the figures of the model card: sizes, losses, curves, and the answers to the development set."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any

import torch

from slipstream.drafters.training import texts
from slipstream.drafters.training.family import mix, prompt_sets, stages
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
    "dflash": "DFlash head",
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
        The answers as Markdown, and the share of their tokens that complete a repeated run of four.
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


_WIDTH, _HEIGHT, _MARGIN, _COLUMNS = 300, 200, 42, 3
_COLOURS = (("loss", "#2f6fb5", "in training"), ("held_out", "#c4572b", "held out"))


def curves(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Draws the losses of the runs as SVG.

    Args:
        runs: by title, entries with ``tokens``, ``loss`` and ``held_out``.
    """
    rows = -(-len(runs) // _COLUMNS)
    panels = [
        f'<g transform="translate({i % _COLUMNS * _WIDTH},{i // _COLUMNS * _HEIGHT})">{_panel(title, entries)}</g>'
        for i, (title, entries) in enumerate(runs.items())
    ]
    size = f'width="{_COLUMNS * _WIDTH}" height="{rows * _HEIGHT}"'
    style = "font-family='sans-serif' font-size='10' fill='#333'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {style}><rect width='100%' height='100%' fill='white'/>" + (
        "".join(panels) + "</svg>\n"
    )


def _panel(title: str, entries: Sequence[Mapping[str, float]]) -> str:
    most = max(entry["tokens"] for entry in entries)
    values = [entry[name] for entry in entries[1:] or entries for name, _, _ in _COLOURS]
    low, high = min(values), max(values)
    span = max(high - low, 1e-9)

    def at(tokens: float, value: float) -> str:
        x = _MARGIN + tokens / most * (_WIDTH - _MARGIN - 12)
        y = 24 + (high - min(value, high)) / span * (_HEIGHT - 24 - _MARGIN)
        return f"{x:.1f},{y:.1f}"

    parts = [f"<text x='{_MARGIN}' y='14' font-size='12'>{escape(title)}</text>"]
    for name, colour, label in _COLOURS:
        points = " ".join(at(entry["tokens"], entry[name]) for entry in entries)
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.2'/>")
        place = _WIDTH - 70, 34 + 12 * (name == "held_out")
        parts.append(f"<text x='{place[0]}' y='{place[1]}' fill='{colour}'>{label}</text>")
    bottom = _HEIGHT - _MARGIN
    parts.append(f"<path d='M{_MARGIN},24 V{bottom} H{_WIDTH - 12}' fill='none' stroke='#999'/>")
    for value in (low, (low + high) / 2, high):
        y = float(at(0, value).split(",")[1])
        parts.append(f"<text x='{_MARGIN - 4}' y='{y + 3:.1f}' text-anchor='end'>{value:.2f}</text>")
    for share in (0.0, 0.5, 1.0):
        x = float(at(share * most, low).split(",")[0])
        parts.append(
            f"<text x='{x:.1f}' y='{bottom + 14}' text-anchor='middle'>{share * most / 1e6:.1f} M tokens</text>"
        )
    return "".join(parts)
