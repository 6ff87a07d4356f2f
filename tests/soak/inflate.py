"""The bundled model widened to real shapes: its outputs at their size, and what they cost and take to make.

A command: ``python -m tests.soak.inflate [SHAPE:TYPE…]``; 1b:Q8_0 1b:BF16 3b:Q8_0 7b:Q8_0, which take some minutes and
8 GB of disk and of memory. Prints one line for each, then: what, how many, how many failed.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from contextlib import closing
from pathlib import Path
from time import perf_counter

import numpy as np
from tests.models.inflate.test_inflate import MINI, requantized, see
from tests.models.requantize import requantize

from slipstream.models.gguf.reader import read_header
from slipstream.models.inflate.model import inflated_model, model_growth
from slipstream.models.inflate.shapes import SHAPES
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN, TokenTree

USUAL = ("1b:Q8_0", "1b:BF16", "3b:Q8_0", "7b:Q8_0")
EXACT = ("7b", "8b")  # sixteen times as wide as the bundled model


def compare(folder: Path, name: str, mix: str) -> None:
    """Makes one and compares its outputs with the small model's; AssertionError if they differ."""
    header, path = read_header(MINI), folder / "large.gguf"
    requantize(MINI, folder / "f32.gguf", "f32")
    small = requantized(folder / "f32.gguf", mix)
    began = perf_counter()
    inflated_model(header, SHAPES[name], mix).write(path)
    took = perf_counter() - began
    growth = model_growth(header, SHAPES[name])
    before, after = see(small, range(8)), see(path, growth.layers)
    for point, place in ((LAST_HIDDEN, LAST_HIDDEN), *enumerate(growth.layers)):
        assert not after.hidden[place][:, 256:].any()
        assert np.abs(before.hidden[point] - after.hidden[place][:, :256]).max() < 0.1
    difference = float(np.abs(before.rows - after.rows).max())
    if name in EXACT:
        assert difference == 0
    # elsewhere another rounding of the norms moves a few activations to the next step of their 8 or 16 bits
    assert difference < 0.02 * np.abs(before.rows).max()
    assert before.rows.argmax(axis=1).tolist() == after.rows.argmax(axis=1).tolist()
    assert (after.all_logits.argmax(axis=1) < header.n_vocab).all()
    size = path.stat().st_size / 1e6
    print(f"{name} {mix}: {size:,.0f} MB, made in {took:.1f} s, {costs(path)}, logits moved by {difference:.2g}")


def costs(path: Path) -> str:
    """Milliseconds of a pass of some widths, the fastest of a few each."""
    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, ContextOptions(n_ctx=256))) as target:
        target.prefill(list(range(300, 332)))
        found = []
        for width in (1, 2, 4, 8, 16):
            taken = []
            for _ in range(6):
                began = perf_counter()
                target.evaluate(300, TokenTree.chain(list(range(301, 300 + width))))
                taken.append(perf_counter() - began)
                target.keep(())
                target.rewind(32)
            found.append(f"{width}: {1e3 * min(taken):.0f}")
    return "ms a pass of n rows " + ", ".join(found)


def main(*chosen: str) -> int:
    """Makes all; returns 1 if one's outputs differ."""
    failed, kinds = 0, chosen or USUAL
    for kind in kinds:
        name, _, mix = kind.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            try:
                compare(Path(folder), name, mix)
            except AssertionError:
                failed += 1
                traceback.print_exc()
    print(f"inflate: outputs of {len(kinds)} widened models compared with the bundled one's, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
