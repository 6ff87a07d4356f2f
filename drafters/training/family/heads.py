"""Trains, measures and writes the heads of the bundled family."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.drafters.training import dflash, kangaroo, medusa, space
from slipstream.drafters.training.acceptance import Acceptance, chain_guesses, mean, of_guesses
from slipstream.drafters.training.corpus import Sampler
from slipstream.drafters.training.family import eagle, mix, stages
from slipstream.drafters.training.family.decoders import load_decoder
from slipstream.drafters.training.family.export import write_eagle, write_gguf
from slipstream.drafters.training.family.sizes import Family
from slipstream.drafters.training.family.stages import (
    CORPUS_FILE,
    DRAFT_FILE,
    TARGET_FILE,
    TARGET_NAME,
    TOKENIZER_FILE,
    WINDOW,
    say,
)
from slipstream.drafters.training.features import low_middle_high
from slipstream.drafters.training.kangaroo import Exit
from slipstream.drafters.training.model import Decoder
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.heads.check import Method
from slipstream.models.heads.file import HeadsInfo, identity, read_heads, write_heads

TUNED_NAME = "slipstream-mini-tuned"
EAGLE_NAME = "slipstream-mini-eagle3"
DFLASH_NAME = "slipstream-mini-dflash"
REPORT_FILE = "report.json"
MASK_ID = 3  # ``<|reserved_0|>``, which no text contains
DEPTH = 6  # greatest depth that acceptance is reported for


def heads_file(folder: Path, method: Method, target: str = TARGET_NAME) -> Path:
    return folder / f"{target}-{method}.gguf"


def make_answers(out: Path, family: Family) -> None:
    """Generates the target's answers to prompts: one set for training, and a greedy one for measuring."""
    stages.answers(out, family.answer_tokens)
    stages.answers(out, family.held_answer_tokens, held_out=True)


def train_medusa(out: Path, family: Family, earlier: Path | None = None) -> None:
    """Trains Medusa heads and writes them.

    Args:
        earlier: Folder of an earlier family; training starts from its heads, also in the functions below.
    """
    train_on, held_out, target = *_features(out, family), _target(out)
    output = target.token_embd.weight.detach()
    plan = family.plan(family.medusa_tokens)
    model = medusa.fit(
        train_on, held_out, output, family.medusa_shape, family.medusa_rows, plan, out / "medusa.pt", say,
        _heads(earlier, "medusa"),
    )  # fmt: skip
    found = medusa.acceptance(model, held_out)
    ranks = [round(float(x), 4) for x in medusa.rank_accuracies(model, held_out).ravel()]
    _write(out, "medusa", medusa.tensors(model), found, {"n_heads": model.shape.heads, "rank_accuracies": ranks})


def train_kangaroo(out: Path, family: Family, earlier: Path | None = None) -> None:
    """Trains an adapter briefly for each exit layer, then fully for the best one, and writes it."""
    start, exits = None, family.exits
    if earlier:
        before = read_heads(heads_file(earlier, "kangaroo"))
        start, exits = before.tensors, (int(str(before.info.settings["exit_layer"])),)
    train_on, held_out, target = *_features(out, family), _target(out)
    rotation, output = target.rotation(torch.arange(WINDOW)), target.token_embd.weight.detach()
    stored = train_on.points[1:]
    candidates = {layer: Exit(target.shape, rotation, output, stored.index(layer)) for layer in exits}
    plan = family.plan(family.kangaroo_tokens)
    adapter, settings, found = kangaroo.fit_best(
        candidates, train_on, held_out, plan, family.trial_tokens, out, say, DEPTH, start
    )
    if earlier:
        settings["trials"] = before.info.settings["trials"]
    _write(out, "kangaroo", kangaroo.tensors(adapter), found, settings)


def train_eagle(out: Path, family: Family, earlier: Path | None = None) -> None:
    """Trains an EAGLE-3 head and writes it as a GGUF that llama.cpp runs."""
    start = None
    if earlier:
        header = read_header(earlier / f"{EAGLE_NAME}-q8_0.gguf")
        start = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    train_on, held_out, target = *_features(out, family), _target(out)
    embedding = target.token_embd.weight.detach()
    layers = low_middle_high(target.shape.layers)
    places = tuple(train_on.points[1:].index(layer) for layer in layers)
    inputs = eagle.EagleInputs(target.shape, target.rotation(torch.arange(WINDOW)), embedding, embedding, places)
    model = eagle.fit(train_on, held_out, inputs, family.plan(family.eagle_tokens), out / "eagle.pt", say, start)
    target_id = identity(read_header(out / f"{TARGET_NAME}-q8_0.gguf"))
    file = out / f"{EAGLE_NAME}-q8_0.gguf"
    write_eagle(eagle.tensors(model), target.shape, layers, out / TOKENIZER_FILE, file, target_id)
    _report(out, "eagle3", eagle.acceptance(model, held_out, inputs, DEPTH))


def train_dflash(out: Path, family: Family, earlier: Path | None = None) -> None:
    """Trains a DFlash head on the features that EAGLE-3 reads, and writes it as a GGUF that llama.cpp runs."""
    start, file = None, f"{DFLASH_NAME}-q8_0.gguf"
    if earlier and (earlier / file).exists():
        header = read_header(earlier / file)
        start = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    train_on, held_out, target = *_features(out, family), _target(out)
    embedding = target.token_embd.weight.detach()
    layers = low_middle_high(target.shape.layers)
    places = tuple(train_on.points[1:].index(layer) for layer in layers)
    inputs = dflash.DflashInputs(target.shape, embedding, embedding, places, MASK_ID)
    model = dflash.fit(train_on, held_out, inputs, family.plan(family.dflash_tokens), out / "dflash.pt", say, start)
    found = dflash.acceptance(model, held_out, inputs, DEPTH)
    dflash.write(
        out / file, model, read_header(out / f"{TARGET_NAME}-q8_0.gguf"), layers, "corpus", found, licence="mit"
    )
    _report(out, "dflash", found)


def train_masks(out: Path, family: Family, earlier: Path | None = None) -> None:
    """Trains SPACE's masks on the frozen target and writes them."""
    start = _heads(earlier, "space")
    _space(out, family, TARGET_NAME, family.mask_tokens, start["masks"] if start else None)


def train_tuned(out: Path, family: Family) -> None:
    """Tunes a copy of the target together with SPACE's masks, as in the paper, and writes both."""
    _space(out, family, TUNED_NAME, family.tuned_tokens, read_heads(heads_file(out, "space")).tensors["masks"])


def _space(out: Path, family: Family, name: str, tokens: int, start: NDArray[Any] | None) -> None:
    tune = name == TUNED_NAME
    text = mix.load(out / CORPUS_FILE, "train") | {"answers": stages.answers(out, 0)}
    plan = replace(family.plan(tokens), other_rate=1e-3 if tune else 1e-2, matrix_rate=4e-3)
    target = _target(out)
    checkpoint = out / ("space-tuned.pt" if tune else "space.pt")
    held_text = mix.load(out / CORPUS_FILE, "held_out")
    masks = None if start is None else torch.from_numpy(start)
    model = space.fit(target, text, held_text, family.masks, plan, checkpoint, say, masks, tune)
    if tune:
        title = ("Slipstream mini, tuned for SPACE", "Slipstream mini trained on with mask tokens.")
        write_gguf(model.target, out / TOKENIZER_FILE, out / f"{name}-q8_0.gguf", *title)
    held = stages.answers(out, family.held_answer_tokens, name, held_out=True)
    found = space.acceptance(model, held, WINDOW, seed=5)
    tensors = {"masks": model.masks.masks.detach().numpy()}
    _write(out, "space", tensors, found, {"n_masks": family.masks}, name, "space-tuned" if tune else "space")


def measure_draft(out: Path) -> None:
    """Reports the acceptance of the draft model on the target's greedy replies."""
    model, _ = load_decoder(out / DRAFT_FILE)
    held = stages.answers(out, 0, held_out=True)
    parts: list[Acceptance] = []
    sampler = Sampler({"answers": held}, 5)
    for _ in range(max(1, len(held.ids) // WINDOW // 16)):
        ids, weights, chats = sampler.batch(16, WINDOW)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[:, :-1], torch.from_numpy(chats)[:, :-1])
        best: NDArray[np.int64] = logits.argmax(-1).numpy()
        parts.append(of_guesses(chain_guesses(best, DEPTH), ids, weights))
    _report(out, "draft", mean(parts))


def _heads(earlier: Path | None, method: Method) -> Mapping[str, NDArray[Any]] | None:
    return read_heads(heads_file(earlier, method)).tensors if earlier else None


def _target(out: Path) -> Decoder:
    return load_decoder(out / TARGET_FILE)[0].requires_grad_(False)


def _features(out: Path, family: Family) -> tuple[Any, Any]:
    return (
        stages.features(out, family.points, family.feature_tokens),
        stages.features(out, family.points, family.held_answer_tokens, held_out=True),
    )


def _write(
    out: Path,
    method: Method,
    tensors: Mapping[str, NDArray[Any]],
    found: Acceptance,
    settings: Mapping[str, Any],
    target: str = TARGET_NAME,
    name: str = "",
) -> None:
    header = read_header(out / f"{target}-q8_0.gguf")
    shares = [round(share, 4) for share in found.shares]
    info = HeadsInfo(
        method,
        identity(header),
        header.name,
        "corpus",
        (),
        0,
        MappingProxyType({**settings, "acceptance": shares}),
        "mit",
    )
    write_heads(heads_file(out, method, target), info, tensors)
    _report(out, name or method, found)


def _report(out: Path, name: str, found: Acceptance) -> None:
    path = out / REPORT_FILE
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    report.setdefault("acceptance", {})[name] = {"shares": found.shares, "reached": found.reached}
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")
    say(f"{name}: acceptance by depth {found}")
