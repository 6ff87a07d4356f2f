"""The stages of the family's recipe; each reads the files that earlier stages wrote into the output folder."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import torch

from slipstream.drafters.training import corpus, texts
from slipstream.drafters.training.corpus import Source
from slipstream.drafters.training.family import chats, mix, sources, tokenizer
from slipstream.drafters.training.family.decoders import (
    decoder_run,
    distillation_loss,
    held_out_loss,
    load_decoder,
    weighted_loss,
)
from slipstream.drafters.training.family.decontaminate import Benchmarks, Overlaps
from slipstream.drafters.training.family.export import write_gguf
from slipstream.drafters.training.family.prompt_sets import barred_from_training
from slipstream.drafters.training.features import Features, collect
from slipstream.drafters.training.from_gguf import load_gguf
from slipstream.drafters.training.loop import Plan, train
from slipstream.drafters.training.model import Shape, cut, grow
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions

TOKENIZER_FILE = "tokenizer.json"
CORPUS_FILE = "corpus.npz"
LOOPS_FILE = "loops.jsonl"
TARGET_FILE = "target.pt"
DRAFT_FILE = "draft.pt"
TARGET_NAME = "slipstream-mini"
DRAFT_NAME = "slipstream-mini-draft"
OPTIONS = ContextOptions(kv="q8_0", flash=True, max_rows=256, max_leaves=1, same_text=True)
"""How the bundled target runs, in chunks that suit long windows."""
WINDOW = 256  # tokens in a window that heads are trained on

TITLES = MappingProxyType(
    {
        TARGET_NAME: ("Slipstream mini", "A very small chat model that ships with Slipstream."),
        DRAFT_NAME: ("Slipstream mini draft", "Draft model for Slipstream mini."),
    }
)
_TOKENIZER_CHARACTERS = 16_000_000


def make_tokenizer(
    data: Path,
    out: Path,
    size: int,
    seed: int,
    own_text: bool = True,
    start: Path | None = None,
    against: Path | None = None,
) -> None:
    """Reads the sources, holds rows out, trains the tokenizer and stores the encoded corpus.

    Args:
        data: folder of ``*.jsonl.xz``.
        own_text: whether to add the text that was written for the recipe.
        start: a model file whose tokenizer to keep.
        against: folder of benchmarks; text that overlaps them is left out.

    Raises:
        SlipstreamError: If there is too little text for ``size`` ids.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = [*sources.read(data), *(sources.plain_rows() if own_text else ())]
    if against:
        overlaps = Overlaps()
        rows = list(Benchmarks(against).clean(rows, overlaps))
        say(str(overlaps))
    kept, held = sources.split(rows)
    made, left_out = chats.build(kept, seed, barred_from_training(sources.plain_rows()), own_text)
    made_held, _ = chats.build(held, seed)
    if not (out / TOKENIZER_FILE).exists():
        trained = tokenizer.from_gguf(start) if start else tokenizer.train(_tokenizer_texts(made), size)
        if (found := trained.get_vocab_size()) != size:
            raise SlipstreamError(
                f"the text gives a tokenizer of {found:,} tokens, but the models are made for {size:,}.",
                "Put more text into the folder that --data names.",
            )
        trained.save(str(out / TOKENIZER_FILE))
    encoder = tokenizer.ChatEncoder(tokenizer.load(out / TOKENIZER_FILE))
    encoded, encoded_held = mix.encode(made, encoder), mix.encode(made_held, encoder)
    mix.save(out / CORPUS_FILE, encoded, encoded_held)
    for name, source in encoded.items():
        held_ids = len(encoded_held[name].ids) if name in encoded_held else 0
        say(
            f"{name:24} {len(source.offsets) - 1:7} chats {len(source.ids):9} tokens, held out {held_ids:7} tokens,"
            f" left out {left_out[name]:5} chats that ask what is measured"
        )


def _tokenizer_texts(made: dict[str, list[chats.Chat]]) -> Iterator[str]:
    for name, items in made.items():
        left = int(mix.SHARES.get(name, 0.02) * _TOKENIZER_CHARACTERS)
        for chat in items:
            for message in chat:
                yield message["content"]
                yield f"{message['role']}\n"
                left -= len(message["content"])
            if left < 0:
                break


def make_loops(out: Path, start: Path, tokens: int) -> None:
    """Writes a target's greedy answers to prompts of every source; training then makes their repetitions less likely.

    Args:
        start: the target's file.
        tokens: number of tokens of its answers.
    """
    prompts = mix.greedy(mix.prompts_of(_splits(out)[0], seed=4, alike=True))
    with closing(LlamaModel(start)) as model:
        texts.answers(model, OPTIONS, prompts, tokens, out / LOOPS_FILE, say, n_ctx=WINDOW + 128)


def _loops(out: Path) -> dict[str, Source]:
    """The answers that ``make_loops`` wrote, as a source; empty if it has not run."""
    path = out / LOOPS_FILE
    return {"loops": mix.shared(mix.against_repetition(texts.read_answers(path)), "loops")} if path.exists() else {}


def train_target(out: Path, shape: Shape, plan: Plan, compiled: bool = True, start: Path | None = None) -> None:
    """Trains the target on the encoded corpus, or resumes from the checkpoint if there is one, and stores it as GGUF.

    Args:
        start: a model file to start from if there is no checkpoint; it may have fewer layers.
    """
    text, held_out = _splits(out)
    run = decoder_run(shape, plan, text | _loops(out), held_out, compiled)
    if start:
        grow(load_gguf(start), run.model)
    say(f"{sum(p.numel() for p in run.model.parameters())} parameters, {torch.get_num_threads()} threads")
    train(run, out / TARGET_FILE, weighted_loss, say)
    store(out, TARGET_FILE, TARGET_NAME)


def average(out: Path, other: Path, share: float) -> None:
    """Averages the target's weights with those of another run from the same start, and stores it as GGUF again.

    Args:
        other: folder of the other run.
        share: the other run's share in the average.

    Raises:
        SlipstreamError: If a folder has no checkpoint, or one of another shape.
    """
    for folder in (out, other):
        if not (folder / TARGET_FILE).exists():
            raise SlipstreamError(f"there is no {TARGET_FILE} in {folder}.", "Run the stage target there first.")
    ours, theirs = (load_decoder(folder / TARGET_FILE)[0].state_dict() for folder in (out, other))
    if {name: each.shape for name, each in ours.items()} != {name: each.shape for name, each in theirs.items()}:
        raise SlipstreamError(f"the targets in {out} and {other} have other shapes.", "Average legs of one target.")
    state = torch.load(out / TARGET_FILE, weights_only=True)
    state["model"] = {name: torch.lerp(each, theirs[name], share) for name, each in ours.items()}
    torch.save(state, out / TARGET_FILE)
    held_out = held_out_loss(load_decoder(out / TARGET_FILE)[0], _splits(out)[1], 7, 64)
    say(f"{share:g} of the weights in {other}, held-out {held_out:.3f}")
    store(out, TARGET_FILE, TARGET_NAME)


def train_draft(out: Path, shape: Shape, plan: Plan, compiled: bool = True, start: Path | None = None) -> None:
    """Distils the draft model from the target, half of it on the target's own answers, and stores it as GGUF.

    It starts as a copy of layers of the target, or of an earlier draft model.

    Args:
        start: the earlier draft model's file; ignored if its width differs.
    """
    teacher, _ = load_decoder(out / TARGET_FILE)
    text, held_out = _splits(out)
    run = decoder_run(shape, plan, text | {"answers": answers(out, 0)}, held_out, compiled)
    earlier = load_gguf(start) if start else None
    if earlier and earlier.shape.width == shape.width:
        grow(earlier, run.model)
    else:
        cut(teacher, run.model)
    say(f"{sum(p.numel() for p in run.model.parameters())} parameters, {torch.get_num_threads()} threads")
    train(run, out / DRAFT_FILE, distillation_loss(teacher), say)
    store(out, DRAFT_FILE, DRAFT_NAME)


def store(out: Path, checkpoint: str, name: str, kind: str = "q8_0") -> Path:
    """Writes a checkpoint's decoder as GGUF into the output folder and returns the file."""
    path = out / f"{name}-{kind}.gguf"
    write_gguf(load_decoder(out / checkpoint)[0], out / TOKENIZER_FILE, path, *TITLES[name], kind)
    return path


def answers(out: Path, tokens: int, name: str = TARGET_NAME, held_out: bool = False) -> Source:
    """The stored target's answers to prompts of the corpus; generated on the first call.

    Args:
        tokens: minimum number of tokens; 0 for the answers that exist.
        held_out: whether to give greedy answers to prompts of the held-out split, to measure on.
    """
    path = out / f"{name}-{'held-' if held_out else ''}answers.jsonl"
    train, held = _splits(out)
    prompts = mix.prompts_of(held, seed=2) if held_out else mix.prompts_of(train, seed=1, alike=True)
    with closing(LlamaModel(out / f"{name}-q8_0.gguf")) as model:
        prompts = mix.greedy(prompts) if held_out else prompts
        return mix.shared(texts.answers(model, OPTIONS, prompts, tokens, path, say, n_ctx=WINDOW + 128), "answers")


def features(out: Path, points: tuple[int, ...], tokens: int, held_out: bool = False) -> Features:
    """Hidden states of the stored target; computed on the first call.

    Args:
        tokens: tokens of text; half of it is the target's own answers, or all of it with ``held_out``.
    """
    own = answers(out, 0, held_out=held_out)
    text = {"answers": own} if held_out else _splits(out)[0] | {"answers": own}
    windows = min(tokens, len(own.ids)) // WINDOW if held_out else tokens // WINDOW
    with closing(LlamaModel(out / f"{TARGET_NAME}-q8_0.gguf")) as model:
        folder = out / ("held-features" if held_out else "features")
        draws = corpus.Sampler(text, seed=3)
        return collect(model, OPTIONS, draws, points, max(1, windows), WINDOW, folder, say)


def _splits(out: Path) -> tuple[dict[str, Source], dict[str, Source]]:
    return mix.load(out / CORPUS_FILE, "train"), mix.load(out / CORPUS_FILE, "held_out")


def say(line: str) -> None:
    print(line, flush=True)
