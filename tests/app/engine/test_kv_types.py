"""Every type of KV cache with every kind of attention on every kind of model: it writes, or it says why it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from tests.models.kinds import CHAINS, TREES, write_kind
from tests.models.memory import fit_child
from tests.models.memory.needs import need

from slipstream.app.engine import plan
from slipstream.app.engine.load import load
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.models.errors import UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.types import PACKED, KvType

KINDS: Final = (*TREES, *CHAINS)
KV_TYPES: Final[tuple[KvType, ...]] = ("f16", "q8_0", "q4_0")
WIDTHS: Final = (16, 32)  # of a head; a packed cache has blocks of 32 numbers
NARROW: Final = "lfm2"  # a kind whose heads are 8 wide, whatever is asked for
CONTEXT: Final = 4096
WITHIN: Final = 0.05
CASES: Final = [(CONTEXT, kv, scores) for kv, scores in product(KV_TYPES, (False, True))]

Written = Mapping[tuple[str, int], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("kinds")
    return {(k, w): write_kind(folder / f"{k}-{w}.gguf", k, head=w) for k, w in product(KINDS, WIDTHS)}


@pytest.mark.parametrize("scores", [False, True], ids=["flash", "scores"])
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_or_says_why_not(
    written: Written, monkeypatch: pytest.MonkeyPatch, kind: str, width: int, kv_type: KvType, scores: bool
) -> None:
    monkeypatch.setattr(plan, "_writes_scores", lambda *_: scores)
    request = Load(str(written[kind, width]), kv_type=kv_type, n_ctx=512)
    if kv_type in PACKED and (width % 32 or kind == NARROW):
        with pytest.raises(UsageError, match=f"KV cache of {kv_type}: .* multiple of 32") as refused:
            load(request, lambda _: None)
        assert "--kv-type" in refused.value.hint
        return
    session, _ = load(request, lambda _: None)
    with closing(session):
        asked = [
            Generate(1, [Message("user", "to be or not to be")], Sampling(0.0), name, max_tokens=16)
            for name in ("none", "lookup")
        ]
        replies = [session.reply(each, lambda _: None, lambda: False) for each in asked]
        assert replies[0].speed.tokens and replies[0].text == replies[1].text


@pytest.fixture(scope="module")
def logged(written: Written) -> dict[tuple[str, int, KvType, bool], int]:
    """What llama.cpp logs of its buffers, for every model and case that it can have; in one process."""
    asked = {
        key: [case for case in CASES if not (case[1] in PACKED and (key[1] % 32 or key[0] == NARROW))]
        for key in written
    }
    question = json.dumps([[str(written[key]), cases] for key, cases in asked.items()])
    done = subprocess.run(
        [sys.executable, str(fit_child.__file__), question], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return {
        (*key, kv, scores): sum(taken.values())
        for (key, cases), answers in zip(asked.items(), json.loads(done.stdout), strict=True)
        for (_, kv, scores), taken in zip(cases, answers, strict=True)
    }


def test_the_memory_is_what_was_counted(written: Written, logged: dict[tuple[str, int, KvType, bool], int]) -> None:
    assert len(logged) == 2 * (len(KINDS) * len(WIDTHS) + 2 * (len(KINDS) - 1))
    wrong = {}
    for (kind, width, kv, scores), taken in logged.items():
        flash = not scores or kv in PACKED
        counted = need(read_header(written[kind, width]), CONTEXT, kv, flash=flash).total
        if counted != pytest.approx(taken, rel=0.1):
            wrong[kind, width, kv, scores] = (counted, taken)
    assert not wrong
