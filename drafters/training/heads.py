"""Trains heads for any GGUF, from making the training text to writing small files of heads.

Several methods share the text and the hidden states.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream.drafters.training import dflash, eagle, kangaroo, medusa, space, texts
from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import Decoder, frequencies, rotations
from slipstream.drafters.training.features import LiveWindows, Windows, acceptance, collect, low_middle_high
from slipstream.drafters.training.forecast import Pace, StepCost, check_memory, forecast, larger_targets, weights_of
from slipstream.drafters.training.from_gguf import ARCHITECTURES, TargetMatrices, dequantized, load_gguf, shape_of
from slipstream.drafters.training.gguf_head import StoredHeads, write_gguf_head
from slipstream.drafters.training.loop import Draws, Run, Say, TrainingPlan, train
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
_WINDOW = 256
# most tokens that heads can guess, the frequent ones; EAGLE-3 reads its vocabulary matrix at every depth
_ROWS: Mapping[str, int] = MappingProxyType({"medusa": 16_384, "eagle3": 8_192})
_THROUGH_TARGET: Mapping[str, float] = MappingProxyType({"space": 1e-2, "adapter": 1.5e-3})
"""Learning rates of the steps that send gradients through the target."""
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
    begin: Path | None = None  # a file of heads, or a folder of them, that the training goes on from
    adapter: Path | None = None  # with the method space: the LoRA adapter to write; its masks stand beside it
    seed: int = 7  # of everything that is drawn


def train_heads(job: HeadsJob, say: Say) -> dict[TrainedMethod, Acceptance]:
    """Trains heads and writes them; resumes an earlier run of the same job that was stopped.

    Returns:
        Acceptance by depth on held-out text, by method.
    """
    header = read_header(job.model)
    if header.tokenizer_model in (None, "none", "no_vocab"):  # tokenizing would abort the process
        raise ModelFileError(f"{job.model} has no vocabulary.", "Get another conversion of the model.")
    if header.architecture in ("bert", "t5encoder"):
        raise SlipstreamError(f"{header.title} writes no text: it cannot be drafted for.", "Choose a chat model.")
    if set(job.outs) - {"medusa"}:
        shape_of(header)  # refuses what the decoder does not compute
    job.work.mkdir(parents=True, exist_ok=True)
    options = ContextOptions(max_rows=_WINDOW, max_leaves=1)
    with closing(LlamaModel(job.model)) as model:
        training = _Training(job, model, options, say)
        check_memory(training.costs, available_memory(header), say)
        pace = Pace.measured(model, options)
        made = texts.answered_tokens(job.work / ANSWERS)
        forecast(header, job.text, job.tokens, training.work(), pace, say=say, made=made)
        say(larger_targets(header, pace, job.tokens, training.work() / len(job.outs)))
        return training.run()


def available_memory(header: Header) -> int:
    """Bytes free for training, without swapping; on a GPU, beside the target's weights."""
    if device().type == "cuda":
        return int(torch.cuda.mem_get_info()[0]) - 2 * weights_of(header)
    return int(psutil.virtual_memory().available)


def device() -> torch.device:
    """Where torch trains: a GPU if there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


class _Training:
    def __init__(self, job: HeadsJob, model: LlamaModel, options: ContextOptions, say: Say) -> None:
        self._job, self._model, self._options, self._say = job, model, options, say
        self._header = model.header
        self._begun = StoredHeads.read(job.begin, job.outs, model.header) if job.begin else {}
        reads: dict[str, Sequence[int]] = {"kangaroo": _exits(model.n_layer)}
        reads |= dict.fromkeys(("eagle3", "dflash"), low_middle_high(model.n_layer))
        reads |= {method: stored.layers for method, stored in self._begun.items()}
        self._reads: dict[str, tuple[int, ...]] = {method: tuple(reads.get(method, ())) for method in job.outs}
        self._layers = sorted({layer for layers in self._reads.values() for layer in layers})  # in the hidden states
        self._dtype = torch.float32  # of a target that gradients go through
        steps: list[str] = [*job.outs, *(["adapter"] if job.adapter else [])]
        self.costs = {step: self._cost(step) for step in steps}
        if any(
            self.costs[step].memory > available_memory(self._header)
            for step in {"space", "adapter"} & self.costs.keys()
        ):
            self._dtype = torch.bfloat16
            self.costs |= {step: self._cost(step) for step in ("space", "adapter") if step in self.costs}

    def run(self) -> dict[TrainedMethod, Acceptance]:
        """Trains and writes the heads of the job's methods."""
        methods = {"kangaroo": self._kangaroo, "space": self._space, "medusa": self._medusa}
        found = {}
        for method in self._job.outs:
            found[method] = methods[method]() if method in methods else self._llama_head(method)
            self._say(f"{method}: acceptance by depth on held-out text: {found[method]}")
        return found

    def work(self) -> float:
        """Multiplications and additions of the whole job."""
        return sum(
            cost.work / (plan := self.plan(step)).batch_tokens * plan.tokens for step, cost in self.costs.items()
        )

    def plan(self, step: str, tokens: int | None = None) -> TrainingPlan:
        """The settings of a method's run, or of a trial with fewer tokens."""
        passes = _DFLASH_PASSES if step == "dflash" else _PASSES
        plan = TrainingPlan(tokens=tokens or passes * self._job.tokens, window=_WINDOW, seed=self._job.seed)
        if step in _THROUGH_TARGET:
            plan = replace(plan, other_rate=_THROUGH_TARGET[step], batch_tokens=8 * _WINDOW)
        return replace(plan, decay_from=0.0 if self._begun else plan.decay_from).fitted()

    def _cost(self, step: str) -> StepCost:
        plan, header = self.plan(step), self._header

        def build() -> tuple[nn.Module, list[Tensor]]:
            rows, ids = plan.batch_tokens // _WINDOW, torch.zeros(_ROWS.get(step, 0), dtype=torch.int64)
            text = [torch.zeros(rows, _WINDOW + 1, dtype=kind) for kind in (torch.int64, torch.float32, torch.int64)]
            if step not in _THROUGH_TARGET:
                matrices = TargetMatrices.of(header, lambda _, info: torch.empty(info.shape[::-1]))
                states = torch.zeros(1 + len(self._layers), rows, _WINDOW, self._model.n_embd)
                return self._module(step, matrices, ids, self._reads[step]), [*text, *states]
            torch.set_default_dtype(self._dtype)
            target = Decoder(shape_of(header)).requires_grad_(False)
            torch.set_default_dtype(torch.float32)
            return self._masks(step, target), [*text, torch.zeros(rows, space.GROUPS, dtype=torch.int64)]

        return StepCost.of(build)

    @cached_property
    def _text(self) -> tuple[TrainingText, TrainingText]:
        job, model = self._job, self._model
        if job.text == "folder" and job.folder:
            return texts.folder(job.folder, model, _WINDOW).split()
        if job.text == "chats":
            ids = texts.ChatIds(model)
            return TrainingText.of(ids.chat(messages) for messages in job.chats.values()).split()
        return texts.made_answers(
            model,
            self._options,
            tokens=job.tokens,
            path=job.work / ANSWERS,
            seed=job.seed,
            say=self._say,
            prompts=texts.read_prompts(job.prompts) if job.prompts else (),
        ).split()

    @cached_property
    def _windows(self) -> tuple[Windows, Windows]:
        job, header = self._job, self._header
        if device().type == "cuda" and header.architecture in ARCHITECTURES:
            target = load_gguf(job.model, torch.bfloat16).to(device())
            live = [LiveWindows(target, text, self._layers, _WINDOW, job.seed) for text in self._text]
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

        return read(self._text[0], job.tokens, "features"), read(self._text[1], job.tokens // 10, "held-out")

    @cached_property
    def _matrices(self) -> TargetMatrices:
        return TargetMatrices.of(self._header, lambda header, info: dequantized(header, info).to(device()))

    def _module(self, step: str, given: TargetMatrices, ids: Tensor, layers: Sequence[int]) -> nn.Module:
        """A new module, for the tokens ``ids`` of a cut vocabulary, that reads the inputs of ``layers``."""
        torch.manual_seed(self._job.seed)
        output, places = given.output, tuple(self._layers.index(layer) for layer in layers)
        if step == "medusa":
            return medusa.MedusaModule(self._medusa_shape(output.shape[1]), output[ids], ids)
        shape = shape_of(self._header)
        if step == "eagle3":
            return eagle.EagleHead(shape, given.embedding, output[ids], ids, places)
        if step == "dflash":
            return dflash.DflashHead(shape, given.embedding, output, places, spare_token(self._header))
        per_position = frequencies(shape.head_size, shape.rope_base, shape.rope_scaling, output.device)
        if given.rope_factors is not None:
            per_position = per_position / given.rope_factors
        rotation = rotations(torch.arange(_WINDOW, device=output.device), per_position)
        return kangaroo.KangarooAdapter(shape, output, rotation, places[0])

    def _medusa_shape(self, width: int) -> medusa.MedusaShape:
        names = self._begun["medusa"].tensors if "medusa" in self._begun else ()
        numbers = [name.split(".")[1:3] for name in names if name.startswith("head.") and name.endswith(".bias")]
        if not numbers:
            return medusa.MedusaShape(width)
        heads, layers = (1 + max(map(int, column)) for column in zip(*numbers, strict=True))
        return medusa.MedusaShape(width, heads, layers)

    def _masks(self, step: str, target: Decoder) -> space.Masks:
        """New masks for a target; in the step ``adapter`` with an adapter."""
        torch.manual_seed(self._job.seed)
        return space.Masks(_MASKS, target, self._job.seed, space.LowRank(target) if step == "adapter" else None)

    def _fit(self, step: str, model: Any, tokens: int | None = None, name: str = "", most: int = _ALL) -> Acceptance:
        """Trains a module in place, or goes on from its checkpoint; its acceptance on ``most`` held-out windows."""
        train_on: Draws
        if step in _THROUGH_TARGET:
            train_on = space.CutDraws(WindowSampler(self._text[0], self._job.seed), self._job.seed, _MASKS)
            check = partial(model.acceptance, self._text[1], length=_WINDOW)
        else:
            train_on, held_out = self._windows
            check = partial(acceptance, model, held_out)
        begun = self._begun.get(cast(TrainedMethod, step))
        if begun:
            begun.put_into(model)
        run = Run(model.to(device()), self.plan(step, tokens), train_on, lambda: check(_CHECKED))
        if begun:
            self._say(f"{step}: held-out acceptance {run.measure()} to begin with")  # so that it does not end below
        train(run, self._job.work / f"{name or step}.pt", self._say)
        model.eval()
        return check(most)

    def _frequent(self, step: str) -> Tensor:
        if begun := self._begun.get(cast(TrainedMethod, step)):
            ids = begun.tensors.get("d2t", begun.tensors.get("output.ids"))
            if ids is not None:
                return torch.from_numpy(ids.astype(np.int64)).to(device())
        counts = self._windows[0].counts(len(self._matrices.output))
        return torch.from_numpy(medusa.frequent(counts, _ROWS.get(step, 0))).to(device())

    def _medusa(self) -> Acceptance:
        model: Any = self._module("medusa", self._matrices, self._frequent("medusa"), ())
        found = self._fit("medusa", model)
        ranks = [round(float(x), 4) for x in medusa.rank_accuracies(model, self._windows[1], _ALL).ravel()]
        settings = {"n_heads": model.shape.heads, "rank_accuracies": ranks}
        return self._write("medusa", self._job.outs["medusa"], medusa.tensors(model), settings, found)

    def _kangaroo(self) -> Acceptance:
        """Trains an adapter briefly for every candidate exit layer, then fully for the best one."""
        layers, trials = self._reads["kangaroo"], list[str]()
        models: dict[int, Any] = {}

        def fit(layer: int, *trial: Any) -> Acceptance:
            models[layer] = self._module("kangaroo", self._matrices, torch.zeros(0), [layer])
            return self._fit("kangaroo", models[layer], *trial)

        best = layers[0]
        if len(layers) > 1:
            tried, tokens = dict[int, Acceptance](), max(1, int(_TRIAL * self.plan("kangaroo").tokens))
            for layer in layers:
                self._say(f"trying an exit before layer {layer}")
                tried[layer] = fit(layer, tokens, f"kangaroo-{layer}", _CHECKED)
            best = kangaroo.best_exit(tried, shape_of(self._header))
            trials = [f"{layer}: {found}" for layer, found in tried.items()]
            self._say(f"acceptance by exit layer: {'; '.join(trials)}; taken: {best}")
        found = fit(best)
        settings = {"exit_layer": best} | ({"trials": trials} if trials else {})
        return self._write("kangaroo", self._job.outs["kangaroo"], kangaroo.tensors(models[best]), settings, found)

    def _space(self) -> Acceptance:
        """Trains masks for the target as it is, then if asked for others with an adapter, which begin as these."""
        target, settings = load_gguf(self._job.model, self._dtype).to(device()), {"n_masks": _MASKS}
        masks = self._masks("space", target)
        found = self._fit("space", masks)
        self._write("space", self._job.outs["space"], space.tensors(masks), settings, found)
        if adapter := self._job.adapter:
            tuned = self._masks("adapter", target)
            tuned.masks.data.copy_(masks.masks.data)
            with_it = self._fit("adapter", tuned)
            if tuned.lora:
                tuned.lora.write(adapter, self._header)
            beside = adapter.with_name(f"{adapter.stem}-masks.gguf")
            self._write("space", beside, space.tensors(tuned), settings, with_it)
            self._say(f"space with the adapter: acceptance by depth on held-out text: {with_it}")
        return found

    def _llama_head(self, method: TrainedMethod) -> Acceptance:
        """Trains and writes a head that llama.cpp runs."""
        kind: Any = {"eagle3": eagle, "dflash": dflash}[method]
        ids = self._frequent(method) if method in _ROWS else torch.zeros(0)
        model: Any = self._module(method, self._matrices, ids, self._reads[method])
        found = self._fit(method, model)
        write_gguf_head(
            self._job.outs[method],
            kind.ARCHITECTURE,
            model.shape,
            kind.tensors(model),
            target=self._header,
            layers=self._reads[method],
            more=kind.metadata(model),
            text=self._job.text,
            found=found,
        )
        return found

    def _write(
        self,
        method: Method,
        path: Path,
        tensors: Mapping[str, NDArray[Any]],
        settings: Mapping[str, Any],
        found: Acceptance,
    ) -> Acceptance:
        job, header = self._job, self._header
        info = HeadsInfo(
            method=method,
            target=identity(header),
            target_name=header.title,
            text=job.text,
            chats=tuple(job.chats),
            made=int(time.time()),
            settings=MappingProxyType({**settings, "acceptance": [round(share, 4) for share in found.shares]}),
        )
        write_heads(path, info, tensors)
        return found


def _exits(layers: int) -> tuple[int, ...]:
    """Candidate exit layers: the paper uses 2 of 32 and 3 of 40 layers; a shallow model needs a larger share."""
    return tuple(sorted({max(1, min(layers - 1, round(layers * share))) for share in (1 / 16, 1 / 8, 1 / 4)}))
