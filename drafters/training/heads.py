"""Trains heads for any GGUF, from making the training text to writing a small file of heads."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.drafters.training import corpus, dflash, kangaroo, medusa, space, texts
from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.attention import frequencies, rotations
from slipstream.drafters.training.corpus import Source
from slipstream.drafters.training.features import Features, collect, low_middle_high
from slipstream.drafters.training.from_gguf import load_gguf, shape_of
from slipstream.drafters.training.kangaroo import Exit
from slipstream.drafters.training.loop import Plan, Say
from slipstream.drafters.training.medusa import MedusaShape
from slipstream.drafters.training.memory import available_memory, check_memory
from slipstream.drafters.training.pace import Pace, forecast
from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.gguf.vocabulary import spare_token
from slipstream.models.heads.file import HeadsInfo, Text, identity, write_heads
from slipstream.models.heads.matching_heads import TrainedMethod
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN

Messages = Sequence[Mapping[str, str]]
Trained = tuple[dict[str, NDArray[Any]], dict[str, Any], Acceptance]

_WINDOW = 256
_ROWS = 16_384  # most tokens that Medusa heads can guess: the frequent ones
_PASSES = 3  # passes over the text
_DFLASH_PASSES = 5  # the same for DFlash, where a pass trains on only some blocks of a window
_MASKS = 4
_TRIAL = 0.1  # share of the budget for trying each candidate exit layer
_PLAN = Plan(batch_tokens=4096, other_rate=1e-3, matrix_rate=0.01, decay_from=0.5, check_every=25, save_seconds=60)


@dataclass(frozen=True)
class Job:
    """Which heads to train, and on which text."""

    method: TrainedMethod
    model: Path
    out: Path  # the file to write
    work: Path  # folder of this run: text, hidden states, checkpoints; a stopped run resumes from it
    text: Text = "answers"  # the target's own answers, a folder, or chats
    tokens: int = 500_000  # tokens of text
    folder: Path | None = None  # with text ``folder``
    chats: Mapping[str, Messages] = field(default_factory=dict)  # with text ``chats``: chat id to messages
    seed: int = 7  # of everything that is drawn


def train_heads(job: Job, say: Say) -> Acceptance:
    """Trains heads and writes them; resumes an earlier run of the same job that was stopped.

    Returns:
        Acceptance by depth on held-out text.

    Raises:
        SlipstreamError: If the method cannot serve the model, or there is no room on the disk or in memory.
        UsageError: If there is no text to train on.
    """
    header = read_header(job.model)
    if header.tokenizer_model in (None, "none", "no_vocab"):  # tokenizing would abort the process
        raise ModelFileError(f"{job.model} has no vocabulary.", "Get another conversion of the model.")
    _check_serves(job.method, header)
    job.work.mkdir(parents=True, exist_ok=True)
    options = ContextOptions(max_rows=_WINDOW, max_leaves=1)
    with closing(LlamaModel(job.model)) as model:
        forecast(job.text, job.tokens, _PASSES, Pace.measured(model, options), say)
        text, held_out = _text(job, model, options, say)
        if job.method == "dflash":
            return _dflash(job, model, options, text, held_out, say)
        trainer = _space if job.method == "space" else _on_features
        tensors, settings, found = trainer(job, model, options, text, held_out, say)
        say(f"acceptance by depth on held-out text: {found}")
    settings = {**settings, "acceptance": [round(share, 4) for share in found.shares]}
    made = int(time.time())
    info = HeadsInfo(
        job.method, identity(header), header.name, job.text, tuple(job.chats), made, MappingProxyType(settings)
    )
    write_heads(job.out, info, tensors)
    return found


def device() -> torch.device:
    """Where torch trains: a GPU if there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _check_serves(method: TrainedMethod, header: Header) -> None:
    if method == "space":
        window = _WINDOW + space.GROUPS * _MASKS
        check_memory(header, available_memory(), 8 * window, window)
        shape_of(header)
    elif method in ("kangaroo", "dflash"):
        shape_of(header)
    if header.architecture in ("bert", "t5encoder"):
        raise SlipstreamError(f"{header.name} writes no text: it cannot be drafted for.", "Choose a chat model.")


def _text(job: Job, model: LlamaModel, options: ContextOptions, say: Say) -> tuple[Source, Source]:
    ids = texts.ChatIds(model)
    if job.text == "folder" and job.folder:
        return texts.split(texts.folder(job.folder, model, _WINDOW))
    if job.text == "chats":
        return texts.split(texts.as_source(ids.chat(messages) for messages in job.chats.values()))
    prompts = texts.own_prompts(ids, job.seed)
    return texts.split(texts.answers(model, options, prompts, job.tokens, job.work / "answers.jsonl", say))


def _on_features(
    job: Job, model: LlamaModel, options: ContextOptions, text: Source, held_out: Source, say: Say
) -> Trained:
    exits = _exits(model.n_layer) if job.method == "kangaroo" else ()
    train_on, measure_on = _features(job, model, options, text, held_out, exits, say)
    output = _vocabulary_matrix(model.header).to(device())
    plan = replace(_PLAN, tokens=_PASSES * train_on.tokens, seed=job.seed)
    return (_medusa if job.method == "medusa" else _kangaroo)(
        job, model.header, train_on, measure_on, output, plan, say
    )


def _features(
    job: Job,
    model: LlamaModel,
    options: ContextOptions,
    text: Source,
    held_out: Source,
    layers: Sequence[int],
    say: Say,
) -> tuple[Features, Features]:
    """Hidden states of the text and of the held-out text: the last hidden state, and the inputs of ``layers``."""

    def read(source: Source, tokens: int, name: str) -> Features:
        windows = max(1, min(tokens, len(source.ids)) // _WINDOW)
        draws = corpus.Sampler({"answers": source}, job.seed)
        return collect(model, options, draws, (LAST_HIDDEN, *layers), windows, _WINDOW, job.work / name, say)

    return read(text, job.tokens, "features"), read(held_out, job.tokens // 10, "held-out")


def _dflash(
    job: Job, model: LlamaModel, options: ContextOptions, text: Source, held_out: Source, say: Say
) -> Acceptance:
    """Trains a DFlash head and writes it; its file has another format, since llama.cpp runs it."""
    header = model.header
    layers = low_middle_high(model.n_layer)
    train_on, measure_on = _features(job, model, options, text, held_out, layers, say)
    embedding, output = (matrix.to(device()) for matrix in (_matrix(header, "token_embd"), _vocabulary_matrix(header)))
    inputs = dflash.DflashInputs(shape_of(header), embedding, output, (0, 1, 2), spare_token(header))
    plan = replace(_PLAN, tokens=_DFLASH_PASSES * train_on.tokens, seed=job.seed)
    trained = dflash.fit(train_on, measure_on, inputs, plan, job.work / "dflash.pt", say)
    found = dflash.acceptance(trained, measure_on, inputs, dflash.BLOCK - 1)
    dflash.write(job.out, trained, header, layers, job.text, found)
    say(f"acceptance by depth on held-out text: {found}")
    return found


def _medusa(
    job: Job, header: Header, train_on: Features, held_out: Features, output: Tensor, plan: Plan, say: Say
) -> Trained:
    shape = MedusaShape(output.shape[1])
    model = medusa.fit(train_on, held_out, output, shape, _ROWS, plan, job.work / "medusa.pt", say)
    ranks = [round(float(x), 4) for x in medusa.rank_accuracies(model, held_out).ravel()]
    settings = {"n_heads": shape.heads, "rank_accuracies": ranks}
    return medusa.tensors(model), settings, medusa.acceptance(model, held_out)


def _kangaroo(
    job: Job, header: Header, train_on: Features, held_out: Features, output: Tensor, plan: Plan, say: Say
) -> Trained:
    shape = shape_of(header)
    per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, output.device)
    factors = rope_factors(header)
    if factors is not None:
        per_position = per_position / factors.to(output.device)
    rotation = rotations(torch.arange(_WINDOW, device=output.device), per_position)
    candidates = {layer: Exit(shape, rotation, output, place) for place, layer in enumerate(train_on.points[1:])}
    trial = int(_TRIAL * plan.tokens)
    adapter, settings, found = kangaroo.fit_best(candidates, train_on, held_out, plan, trial, job.work, say)
    return kangaroo.tensors(adapter), settings, found


def _space(job: Job, model: LlamaModel, options: ContextOptions, text: Source, held_out: Source, say: Say) -> Trained:
    window = _WINDOW + space.GROUPS * _MASKS
    dtype = check_memory(model.header, available_memory(), 8 * window, window)
    target = load_gguf(job.model, dtype).to(device())
    plan = replace(_PLAN, tokens=_PASSES * job.tokens, other_rate=1e-2, batch_tokens=8 * _WINDOW, seed=job.seed)
    held = {"answers": held_out}
    trained = space.fit(target, {"answers": text}, held, _MASKS, plan, job.work / "space.pt", say)
    found = space.acceptance(trained, held_out, _WINDOW, job.seed)
    return {"masks": trained.masks.masks.detach().float().cpu().numpy()}, {"n_masks": _MASKS}, found


def _exits(layers: int) -> tuple[int, ...]:
    """Candidate exit layers: the paper uses 2 of 32 and 3 of 40 layers; a shallow model needs a larger share."""
    return tuple(sorted({max(1, min(layers - 1, round(layers * share))) for share in (1 / 16, 1 / 8, 1 / 4)}))


def _vocabulary_matrix(header: Header) -> Tensor:
    """(vocabulary, width), float32: the output matrix, or the embedding if the model has no other one."""
    return _matrix(header, "output", "token_embd")


def _matrix(header: Header, *names: str) -> Tensor:
    """The first of these matrices that the file has, float32."""
    by_name = {tensor.name.removesuffix(".weight"): tensor for tensor in header.tensors}
    tensor = next((by_name[name] for name in names if name in by_name), None)
    if tensor is None:
        raise ModelFileError(f"{header.path} has no vocabulary matrix.", "Get another conversion of the model.")
    return torch.from_numpy(np.require(read_tensor(header, tensor), np.float32, ["W", "E"]))


def rope_factors(header: Header) -> Tensor | None:
    """Factors of the rotary frequencies, if the file has them."""
    tensor = next((tensor for tensor in header.tensors if tensor.name == "rope_freqs.weight"), None)
    return None if tensor is None else torch.from_numpy(np.require(read_tensor(header, tensor), np.float32, ["W", "E"]))
