"""The measurement of what the index gains counts steps as the loop would, on chats and on code."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.bench import retrieval
from tests.bench.retrieval import RetrievalRow, measure_retrieval, retrieval_text

BUNDLED = Path(__file__).parents[2] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], RetrievalRow]:
    """Chats of one who always gets one of three long answers, and of one who never gets the same twice."""
    rng, folder = random.Random(3), tmp_path_factory.mktemp("chats")

    def words(count: int) -> str:
        return " ".join("".join(rng.choices("abcdefghijklmnop", k=5)) for _ in range(count))

    stock = [words(30) for _ in range(3)]
    answers = {"same": [rng.choice(stock) for _ in range(40)], "new": [words(30) for _ in range(40)]}
    for name, given in answers.items():
        chats = [[{"role": "user", "content": words(3)}, {"role": "assistant", "content": answer}] for answer in given]
        lines = [json.dumps({"messages": chat}) for chat in chats]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "BARS", (0.5, 0.15))
        patch.setattr(retrieval, "_code", lambda name, *_: retrieval.Workload(name, [[1, 2, 3]], [([1], [2, 3])]))
        found = measure_retrieval(BUNDLED, folder, 6, lambda line: None)
    return {(row.workload, row.drafter, row.cost): row for row in found}


def test_answers_that_were_given_before_gain_and_new_ones_do_not(
    rows: dict[tuple[str, str, str], RetrievalRow],
) -> None:
    for cost in retrieval.COSTS:
        same, new = (rows[f"chats: {name}", "retrieval|lookup", cost] for name in ("same", "new"))
        assert same.low > 1.5 and same.tokens_per_step > 3
        assert new.over_lookup == pytest.approx(1.0, abs=0.15)
        assert rows["chats: same", "lookup", cost].over_lookup == 1.0
    assert rows["chats: same", "retrieval", "GPU"].speedup > rows["chats: same", "retrieval", "Q4_0"].speedup


def test_the_table_has_a_line_for_each_drafter_workload_and_cost(
    rows: dict[tuple[str, str, str], RetrievalRow],
) -> None:
    workloads = {workload for workload, *_ in rows}
    assert {"chats: same", "chats: new", "code: the standard library"} <= workloads
    assert len(rows) == len(workloads) * len(retrieval.ORDERS) * len(retrieval.COSTS)
    assert len(retrieval_text(list(rows.values())).splitlines()) == 1 + len(rows)
