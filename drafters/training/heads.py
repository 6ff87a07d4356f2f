"""Trains heads for any GGUF, from making the training text to writing small files of heads.

Several methods share the text and the hidden states.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.drafters.training import dflash, eagle, kangaroo, medusa, space, texts
from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import frequencies, rotations
from slipstream.drafters.training.features import LiveWindows, Windows, collect, low_middle_high
from slipstream.drafters.training.forecast import Pace, available_memory, check_memory, forecast, larger_targets
from slipstream.drafters.training.from_gguf import (
    ARCHITECTURES,
    embedding_matrix,
    load_gguf,
    rope_factors,
    shape_of,
    vocabulary_matrix,
)
from slipstream.drafters.training.gguf_head import write_gguf_head
from slipstream.drafters.training.kangaroo import Exit, KangarooAdapter
from slipstream.drafters.training.loop import BatchLoss, Draws, Run, Say, TrainingPlan, train
from slipstream.drafters.training.medusa import MedusaModule, MedusaShape
from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import spare_token
from slipstream.models.heads.check import Method
from slipstream.models.heads.file import HeadsInfo, Text, identity, write_heads
from slipstream.models.heads.matching_heads import TrainedMethod
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN

Messages = Sequence[Mapping[str, str]]
Measure = Callable[[int], Acceptance]  # acceptance on up to so many held-out windows

_WINDOW = 256
_MEDUSA_ROWS = 16_384  # most tokens that Medusa heads can guess: the frequent ones
_EAGLE_ROWS = 8_192  # the same for an EAGLE-3 head, which reads its vocabulary matrix at every depth
_PASSES = 3  # passes over the text
_DFLASH_PASSES = 5  # the same for DFlash, where a pass trains on only some blocks of a window
_MASKS = 4
_TRIAL = 0.1  # share of the budget for trying each candidate exit layer
_CHECKED = 32  # held-out windows that a run is checked with while it trains
_ALL = 1 << 20
ANSWERS = "answers.jsonl"
"""The file of a run's folder with the target's own answers, which other methods can be trained on later."""


@dataclass(frozen=True)
class HeadsJob:
    """Which heads to train, and on which text."""

    model: Path
    outs: Mapping[TrainedMethod, Path]  # the file to write for each method
    work: Path  # folder of this run: text, hidden states, checkpoints; a stopped run resumes from it
    text: Text = "answers"  # the target's own answers, a folder, or chats
    tokens: int = 500_000  # tokens of text
    folder: Path | None = None  # with text ``folder``
    chats: Mapping[str, Messages] = field(default_factory=dict)  # with text ``chats``: chat id to messages
    prompts: Path | None = None  # with text ``answers``: a file of what is asked, see ``read_prompts``
    seed: int = 7  # of everything that is drawn


def train_heads(job: HeadsJob, say: Say) -> dict[TrainedMethod, Acceptance]:
    """Trains heads and writes them; resumes an earlier run of the same job that was stopped.

    Returns:
        Acceptance by depth on held-out text, by method.
    """
    header = read_header(job.model)
    if header.tokenizer_model in (None, "none", "no_vocab"):  # tokenizing would abort the process
        raise ModelFileError(f"{job.model} has no vocabulary.", "Get another conversion of the model.")
    for method in job.outs:
        _check_serves(method, header)
    job.work.mkdir(parents=True, exist_ok=True)
    options = ContextOptions(max_rows=_WINDOW, max_leaves=1)
    with closing(LlamaModel(job.model)) as model:
        passes = sum(_DFLASH_PASSES if method == "dflash" else _PASSES for method in job.outs)
        pace = Pace.measured(model, options)
        made = texts.answered_tokens(job.work / ANSWERS)
        forecast(job.text, job.tokens, passes, pace, say, made=made)
        say(larger_targets(header, pace, job.tokens))
        return _Training(job, model, options, say).run()


def device() -> torch.device:
    """Where torch trains: a GPU if there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _check_serves(method: TrainedMethod, header: Header) -> None:
    if method == "space":
        window = _WINDOW + space.GROUPS * _MASKS
        check_memory(header, available_memory(), 8 * window, window)
    if method != "medusa":
        shape_of(header)
    if header.architecture in ("bert", "t5encoder"):
        raise SlipstreamError(f"{header.title} writes no text: it cannot be drafted for.", "Choose a chat model.")


class _Training:
    """One job on an open model."""

    def __init__(self, job: HeadsJob, model: LlamaModel, options: ContextOptions, say: Say) -> None:
        self._job, self._model, self._options, self._say = job, model, options, say
        self._header = model.header
        self._plan = TrainingPlan(tokens=_PASSES * job.tokens, window=_WINDOW, seed=job.seed)
        self._exits, self._points = _exits(model.n_layer), low_middle_high(model.n_layer)
        wanted = set(self._exits if "kangaroo" in job.outs else ())
        wanted |= set(self._points if {"eagle3", "dflash"} & set(job.outs) else ())
        self._layers = sorted(wanted)  # whose inputs the hidden states hold
        self._places = tuple(self._layers.index(point) for point in self._points if point in wanted)
        self._train_on, self._held_out = self._text().split()

    def run(self) -> dict[TrainedMethod, Acceptance]:
        """Trains and writes the heads of the job's methods."""
        methods: dict[TrainedMethod, Callable[[], Acceptance]] = {
            "medusa": self._medusa,
            "kangaroo": self._kangaroo,
            "space": self._space,
            "eagle3": self._eagle,
            "dflash": self._dflash,
        }
        found = {}
        for method in self._job.outs:
            found[method] = methods[method]()
            self._say(f"{method}: acceptance by depth on held-out text: {found[method]}")
        return found

    def _text(self) -> TrainingText:
        job, model = self._job, self._model
        if job.text == "folder" and job.folder:
            return texts.folder(job.folder, model, _WINDOW)
        if job.text == "chats":
            ids = texts.ChatIds(model)
            return TrainingText.of(ids.chat(messages) for messages in job.chats.values())
        return texts.made_answers(
            model,
            self._options,
            tokens=job.tokens,
            path=job.work / ANSWERS,
            seed=job.seed,
            say=self._say,
            prompts=texts.read_prompts(job.prompts) if job.prompts else (),
        )

    @cached_property
    def _windows(self) -> tuple[Windows, Windows]:
        """The text and the held-out text with the last hidden state and the inputs of ``_layers``."""
        job, header = self._job, self._header
        if device().type == "cuda" and header.architecture in ARCHITECTURES:
            target = load_gguf(job.model, torch.bfloat16).to(device())
            live = [
                LiveWindows(target, text, self._layers, _WINDOW, job.seed) for text in (self._train_on, self._held_out)
            ]
            return live[0], live[1]

        def read(text: TrainingText, tokens: int, name: str) -> Windows:
            return collect(
                self._model,
                self._options,
                WindowSampler(text, job.seed),
                points=(LAST_HIDDEN, *self._layers),
                windows=max(1, min(tokens, len(text.ids)) // _WINDOW),
                window=_WINDOW,
                folder=job.work / name,
                say=self._say,
            )

        return read(self._train_on, job.tokens, "features"), read(self._held_out, job.tokens // 10, "held-out")

    @cached_property
    def _output(self) -> Tensor:
        return vocabulary_matrix(self._header).to(device())

    def _fit(self, name: str, model: nn.Module, loss: BatchLoss, draws: Draws, measure: Measure, **plan: Any) -> None:
        """Trains a model in place; resumes from its checkpoint."""
        fitted = replace(self._plan, **plan).fitted()
        run = Run(model, fitted, draws, partial(measure, _CHECKED), {"name": name})
        train(run, self._job.work / f"{name}.pt", loss, self._say)
        model.eval()

    def _medusa(self) -> Acceptance:
        train_on, held_out = self._windows
        shape = MedusaShape(self._output.shape[1])
        torch.manual_seed(self._job.seed)
        ids = self._frequent(train_on, _MEDUSA_ROWS)
        model = MedusaModule(shape, self._output[ids], ids).to(device())
        measure = partial(medusa.acceptance, model, held_out)
        self._fit("medusa", model, medusa.loss(self._output[ids].clone()), train_on, measure)
        ranks = [round(float(x), 4) for x in medusa.rank_accuracies(model, held_out, _ALL).ravel()]
        settings = {"n_heads": shape.heads, "rank_accuracies": ranks}
        return self._write("medusa", medusa.tensors(model), settings, measure(_ALL))

    def _frequent(self, train_on: Windows, rows: int) -> Tensor:
        return torch.from_numpy(medusa.frequent(train_on.counts(len(self._output)), rows)).to(device())

    def _kangaroo(self) -> Acceptance:
        """Trains an adapter briefly for every candidate exit layer, then fully for the best one."""
        layers = self._exits
        train_on, held_out = self._windows
        shape = shape_of(self._header)
        per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, device())
        factors = rope_factors(self._header)
        if factors is not None:
            per_position = per_position / factors.to(device())
        rotation = rotations(torch.arange(_WINDOW, device=device()), per_position)
        tried: dict[int, Acceptance] = {}

        def fit(layer: int, name: str, tokens: int, most: int) -> tuple[KangarooAdapter, Acceptance]:
            exit_at = Exit(shape, rotation, self._output, self._layers.index(layer))
            torch.manual_seed(self._job.seed)
            adapter = KangarooAdapter(shape).to(device())
            measure = partial(kangaroo.acceptance, adapter, exit_at, held_out)
            self._fit(name, adapter, kangaroo.loss(exit_at), train_on, measure, tokens=tokens)
            return adapter, measure(most)

        for layer in layers:
            self._say(f"trying an exit before layer {layer}")
            _, tried[layer] = fit(layer, f"kangaroo-{layer}", max(1, int(_TRIAL * self._plan.tokens)), _CHECKED)
        best = kangaroo.best_exit(tried, shape)
        trials = [f"{layer}: {found}" for layer, found in tried.items()]
        self._say(f"acceptance by exit layer: {'; '.join(trials)}; taken: {best}")
        adapter, found = fit(best, "kangaroo", self._plan.tokens, _ALL)
        return self._write("kangaroo", kangaroo.tensors(adapter), {"exit_layer": best, "trials": trials}, found)

    def _space(self) -> Acceptance:
        window = _WINDOW + space.GROUPS * _MASKS
        dtype = check_memory(self._header, available_memory(), 8 * window, window)
        target = load_gguf(self._job.model, dtype).to(device())
        masks = space.Masks(_MASKS, target.token_embd.weight.detach(), self._job.seed)
        draws = space.CutDraws(WindowSampler(self._train_on, self._job.seed), self._job.seed, _MASKS)
        measure = partial(space.acceptance, masks, target, self._held_out, length=_WINDOW)
        self._fit("space", masks, space.loss(target), draws, measure, other_rate=1e-2, batch_tokens=8 * _WINDOW)
        return self._write("space", space.tensors(masks), {"n_masks": _MASKS}, measure(_ALL))

    def _eagle(self) -> Acceptance:
        train_on, held_out = self._windows
        ids = self._frequent(train_on, _EAGLE_ROWS)
        embedding = embedding_matrix(self._header).to(device())
        inputs = eagle.EagleInputs(shape_of(self._header), embedding, self._output[ids], ids, self._places)
        torch.manual_seed(self._job.seed)
        model = eagle.EagleHead(inputs).to(device())
        measure = partial(eagle.acceptance, model, inputs, held_out)
        self._fit("eagle3", model, eagle.loss(inputs), train_on, measure)
        return self._write_gguf_head("eagle3", eagle, model, measure(_ALL))

    def _dflash(self) -> Acceptance:
        train_on, held_out = self._windows
        embedding = embedding_matrix(self._header).to(device())
        inputs = dflash.DflashInputs(
            shape_of(self._header), embedding, self._output, self._places, spare_token(self._header)
        )
        torch.manual_seed(self._job.seed)
        model = dflash.DflashHead(inputs).to(device())
        measure = partial(dflash.acceptance, model, inputs, held_out)
        tokens = _DFLASH_PASSES * self._job.tokens
        self._fit("dflash", model, dflash.loss(inputs), train_on, measure, tokens=tokens)
        return self._write_gguf_head("dflash", dflash, model, measure(_ALL))

    def _write(
        self, method: Method, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any], found: Acceptance
    ) -> Acceptance:
        job, header = self._job, self._header
        facts = MappingProxyType({**settings, "acceptance": [round(share, 4) for share in found.shares]})
        info = HeadsInfo(
            method=method,
            target=identity(header),
            target_name=header.title,
            text=job.text,
            chats=tuple(job.chats),
            made=int(time.time()),
            settings=facts,
        )
        write_heads(job.outs[method], info, tensors)
        return found

    def _write_gguf_head(self, method: TrainedMethod, module: Any, model: Any, found: Acceptance) -> Acceptance:
        """Args: module: of a head that llama.cpp runs."""
        write_gguf_head(
            self._job.outs[method],
            module.ARCHITECTURE,
            model.shape,
            module.tensors(model),
            target=self._header,
            layers=self._points,
            more=module.metadata(model),
            text=self._job.text,
            found=found,
        )
        return found


def _exits(layers: int) -> tuple[int, ...]:
    """Candidate exit layers: the paper uses 2 of 32 and 3 of 40 layers; a shallow model needs a larger share."""
    return tuple(sorted({max(1, min(layers - 1, round(layers * share))) for share in (1 / 16, 1 / 8, 1 / 4)}))
