"""The stages of the recipe; each reads what the one before it wrote into the output folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from slipstream.drafters.training import chats, corpus, sources, tokenizer
from slipstream.drafters.training.distill import agreement, distillation_loss
from slipstream.drafters.training.export import write_gguf
from slipstream.drafters.training.loop import Plan, Run, held_out_loss, load_model, train, weighted_loss
from slipstream.drafters.training.model import Shape

TOKENIZER_FILE = "tokenizer.json"
CORPUS_FILE = "corpus.npz"
TARGET_FILE = "target.pt"
DRAFT_FILE = "draft.pt"
REPORT_FILE = "report.json"
TARGET_NAME = "slipstream-mini"
DRAFT_NAME = "slipstream-mini-draft"
_TOKENIZER_CHARACTERS = 16_000_000


def make_tokenizer(data: Path, out: Path, size: int, seed: int) -> None:
    """Reads the sources, holds rows out, trains the tokenizer and stores the encoded corpus.

    Args:
        data: folder of ``*.jsonl.xz``.
        out: gets the tokenizer and the corpus.
        size: number of ids.
        seed: of the wordings.
    """
    out.mkdir(parents=True, exist_ok=True)
    kept, held = sources.split(list(sources.read(data)))
    made, made_held = chats.build(kept, seed, train=True), chats.build(held, seed, train=False)
    if not (out / TOKENIZER_FILE).exists():
        trained = tokenizer.train(_tokenizer_texts(made), size)
        trained.save(str(out / TOKENIZER_FILE))
    encoder = tokenizer.ChatEncoder(tokenizer.load(out / TOKENIZER_FILE))
    encoded, encoded_held = corpus.encode(made, encoder), corpus.encode(made_held, encoder)
    corpus.save(out / CORPUS_FILE, encoded, encoded_held)
    for name, source in encoded.items():
        held_ids = len(encoded_held[name].ids) if name in encoded_held else 0
        print(f"{name:24} {len(source.offsets) - 1:7} chats {len(source.ids):9} tokens, held out {held_ids:7} tokens")


def _tokenizer_texts(made: dict[str, list[chats.Chat]]) -> Iterator[str]:
    for name, items in made.items():
        left = int(corpus.SHARES.get(name, 0.02) * _TOKENIZER_CHARACTERS)
        for chat in items:
            for message in chat:
                yield message["content"]
                yield f"{message['role']}\n"
                left -= len(message["content"])
            if left < 0:
                break


def train_target(out: Path, shape: Shape, plan: Plan) -> None:
    """Trains the target on the encoded corpus, from the last checkpoint if there is one."""
    run = Run(shape, plan, corpus.load(out / CORPUS_FILE, "train"), corpus.load(out / CORPUS_FILE, "held_out"))
    print(f"{sum(p.numel() for p in run.model.parameters())} parameters, {torch.get_num_threads()} threads", flush=True)
    train(run, out / TARGET_FILE, weighted_loss, say=_say)


def train_draft(out: Path, shape: Shape, plan: Plan) -> None:
    """Distils the draft model from the stored target, from the last checkpoint if there is one."""
    teacher, _ = load_model(out / TARGET_FILE)
    run = Run(shape, plan, corpus.load(out / CORPUS_FILE, "train"), corpus.load(out / CORPUS_FILE, "held_out"))
    print(f"{sum(p.numel() for p in run.model.parameters())} parameters, {torch.get_num_threads()} threads", flush=True)
    train(run, out / DRAFT_FILE, distillation_loss(teacher), say=_say)


def export(out: Path, models: Path, kind: str) -> None:
    """Writes both models as GGUF, and what they score on held-out text to the report.

    Args:
        out: where the checkpoints lie.
        models: where the GGUF files go.
        kind: how matrices are stored, one of ``export.KINDS``.
    """
    models.mkdir(parents=True, exist_ok=True)
    held_out = corpus.load(out / CORPUS_FILE, "held_out")
    target, progress = load_model(out / TARGET_FILE)
    files = {TARGET_NAME: (target, progress, "Slipstream mini", "A very small chat model that ships with Slipstream.")}
    if (out / DRAFT_FILE).exists():
        draft, draft_progress = load_model(out / DRAFT_FILE)
        files[DRAFT_NAME] = (draft, draft_progress, "Slipstream mini draft", "Draft model for Slipstream mini.")
    report: dict[str, dict[str, object]] = {}
    for name, (model, done, title, description) in files.items():
        write_gguf(model, out / TOKENIZER_FILE, models / f"{name}-{kind}.gguf", title, description, kind)
        scores = {s: held_out_loss(model, {s: held_out[s]}, Plan(), rows=32) for s in held_out}
        report[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": done["step"],
            "tokens": done["tokens"],
            "minutes": round(done["seconds"] / 60, 1),
            "held_out": held_out_loss(model, held_out, Plan(), rows=128),
            "held_out_1024": held_out_loss(model, held_out, Plan(), rows=32, length=1024),
            "held_out_by_source": scores,
        }
        if name == DRAFT_NAME:
            same, overlap = agreement(target, model, held_out, rows=128, window=256, seed=Plan().seed)
            report[name] |= {"same_best": same, "overlap": overlap}
    text = json.dumps(report, indent=1)
    (out / REPORT_FILE).write_text(text, encoding="utf-8")
    _say(text)


def _say(line: str) -> None:
    print(line, flush=True)
