"""Finds out what is known of the drafters of a model: trained files, gains, costs, and what its owner wants."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean

from slipstream.app.bench.kept import kept_results
from slipstream.app.drafters.files import heads_files
from slipstream.app.drafters.heads_file import heads_file
from slipstream.app.drafters.indexed import is_on
from slipstream.app.drafters.left_out import left_out
from slipstream.app.drafters.standing import Standing
from slipstream.app.engine.flight_log import COSTS
from slipstream.app.models.history import ModelHistory
from slipstream.app.models.learnt import learnt_gains
from slipstream.app.paths import Paths
from slipstream.drafters.memory import Memory
from slipstream.drafters.none import Plain
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.vocabulary import folder_of
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import identity


def standing(model: Path, paths: Paths) -> Standing:
    """Finds out; reads several files.

    Args:
        model: The model's file.
        paths: Where things are kept.

    Raises:
        SlipstreamError: If the model cannot be read any more.
    """
    header = read_header(model)
    own, trouble = identity(header), list[str]()
    off = frozenset[str]()
    try:
        off = left_out(paths.drafters, header.fingerprint)
    except SlipstreamError as error:
        trouble.append(f"{error.title} {error.hint}")
    documents, tokens = 0, 0
    try:
        documents, tokens = _indexed(paths.index, header)
    except SlipstreamError as error:
        trouble.append(f"{error.title} {error.hint}")
    folders = (paths.bundled, paths.heads)
    return Standing(
        heads=tuple(
            file for folder in folders for path in heads_files(folder) if (file := heads_file(path, own, header))
        ),
        in_chats=ModelHistory(paths.chats).gains(header.fingerprint),
        learnt=learnt_gains(paths.derived, header.fingerprint),
        benched=_benched(paths.benches, header.name),
        costs=_costs(paths.derived, header.fingerprint),
        left_out=off,
        documents=documents,
        tokens=tokens,
        index_on=is_on(paths.index),
        trains=find_spec("torch") is not None,
        trouble=" ".join(trouble),
    )


def _indexed(root: Path, header: Header) -> tuple[int, int]:
    """Documents and tokens that are indexed for the model's vocabulary."""
    if header.tokenizer_model in (None, "none", "no_vocab"):
        return 0, 0
    found = TextIndex.existing(folder_of(root, header))
    if found is None:
        return 0, 0
    try:
        size = found.size()
    finally:
        found.close()
    return size.documents, size.tokens


def _benched(folder: Path, model: str) -> dict[str, float]:
    """The newest benchmark's speed-ups by drafter: of several kinds of text and temperatures, their geometric mean."""
    report = next((kept.report for kept in kept_results(folder) if kept.report and kept.report.model == model), None)
    found = defaultdict[str, list[float]](list)
    for row in report.rows if report else []:
        if row.drafter != Plain.name and row.speedup.value > 0:
            found[row.drafter].append(row.speedup.value)
    return {drafter: geometric_mean(values) for drafter, values in found.items()}


def _costs(derived: Path, fingerprint: str) -> dict[int, float]:
    with suppress(ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):  # damaged, or another version's
        short = json.loads(Memory(derived, fingerprint).read(COSTS) or b"{}")["short"]
        return {int(rows): float(ms) / float(short["1"]) for rows, ms in short.items()}
    return {}
