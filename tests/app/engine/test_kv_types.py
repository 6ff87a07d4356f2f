"""Every type of KV cache with every kind of attention on every kind of model: it writes, or it says why it cannot."""

from collections.abc import Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from tests.models.kinds import CHAINS, TREES, write_kind

from slipstream.app.engine import plan
from slipstream.app.engine.load import load
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.models.errors import UsageError
from slipstream.models.types import PACKED, KvType

KINDS: Final = (*TREES, *CHAINS)
KV_TYPES: Final[tuple[KvType, ...]] = ("f16", "q8_0", "q4_0")
WIDTHS: Final = (16, 32)  # of a head; a packed cache has blocks of 32 numbers
NARROW: Final = "lfm2"  # a kind whose heads are 8 wide, whatever is asked for

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
