"""Hidden states of windows: those that torch computes as they are drawn are those that llama.cpp reads."""

from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from tests.training.gguf_file import BUNDLED

from slipstream.drafters.training import texts
from slipstream.drafters.training.corpus import WindowSampler
from slipstream.drafters.training.features import LiveWindows, collect
from slipstream.drafters.training.from_gguf import load_gguf
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN

CPU = torch.device("cpu")


def test_live_windows_hold_what_stored_windows_hold(tmp_path: Path) -> None:
    layers = (2, 4)
    with closing(LlamaModel(BUNDLED)) as model:
        options = ContextOptions(max_rows=64, max_leaves=1, threads=1)
        text = texts.made_answers(model, options, 300, tmp_path / "answers.jsonl", 3, lambda _: None)
        stored = collect(
            model,
            options,
            WindowSampler(text, 7),
            points=(LAST_HIDDEN, *layers),
            windows=3,
            window=48,
            folder=tmp_path / "features",
            say=lambda _: None,
        )
        n_vocab = model.n_vocab
    live = LiveWindows(load_gguf(BUNDLED), text, layers, 48, 7)
    ((ids, weights, theirs),) = stored.checked(3, CPU)
    ((own_ids, own_weights, ours),) = live.checked(3, CPU)
    assert np.array_equal(ids, own_ids) and np.array_equal(weights, own_weights)
    for left, right in zip(theirs[1:], ours[1:], strict=True):
        assert torch.nn.functional.cosine_similarity(left, right, dim=-1).min() > 0.99
    drawn = live.batch(2, 48)
    assert np.array_equal(drawn[0], ids[:2]) and [part.shape[0] for part in drawn] == [2] * 6
    assert live.counts(n_vocab).sum() == (text.weights >= 1).sum()
