"""What a model is said to need, against what llama.cpp takes: every architecture in tests/models/sparse.py.

A command: ``python -m tests.soak.fit [CONTEXTS…]``; 512, 2,048 and 8,192 tokens, each with a KV cache of f16 and q8_0.
The models have real shapes and empty weights. Prints one line: what, how many, how many failed, the 95 % bound, and the
largest difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.models.memory import fit_child
from tests.models.sparse import MODELS, write_sparse

from slipstream.models.gguf.reader import read_header
from slipstream.models.memory.fit import need
from slipstream.models.types import KvType

WITHIN = 0.05
KINDS: tuple[KvType, ...] = ("f16", "q8_0")


def main(*contexts: int) -> int:
    """Compares; returns 1 if a need is wrong by more than a twentieth."""
    cases = [(n_ctx, kv) for n_ctx in contexts or (512, 2048, 8192) for kv in KINDS]
    failed, worst = 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        for model, make in MODELS.items():
            header = read_header(write_sparse(Path(name) / f"{model}.gguf", make()))
            command = [sys.executable, str(fit_child.__file__), json.dumps([[str(header.path), cases]])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for (n_ctx, kv), taken in zip(cases, json.loads(done.stdout)[0], strict=True):
                off = need(header, n_ctx, kv).total / sum(taken.values()) - 1
                worst = max(worst, off, key=abs)
                if abs(off) > WITHIN:
                    failed += 1
                    print(f"{model}, {n_ctx} tokens, {kv}: {off:+.1%}")
            header.path.unlink()
    count = len(MODELS) * len(cases)
    bound = f", 95 % bound {3 / count:.1%}" if not failed else ""
    print(
        f"fit: {len(MODELS)} models in {len(cases)} contexts, {failed} of {count} needs were wrong by more than"
        f" {WITHIN:.0%}{bound}; {worst:+.1%} at most"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
