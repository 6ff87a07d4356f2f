"""The drafts behind the steps of a scripted reply."""

from __future__ import annotations

from slipstream.app.protocol.events import DraftTree, Stepped, Watched
from slipstream.app.speed import Speed

DEPTHS = [[8, 6], [4, 2]]  # at each depth: steps that reached it, accepted there


def watched(stepped: Stepped, drafter: str) -> Watched:
    """What was drafted for a step: a wrong word that looked likelier, then its own words, and one too many."""
    *path, last = stepped.pieces
    speed = stepped.speed
    texts = [f" {piece.text.strip()}" for piece in path]
    drafted = drafter != "none"
    tree = DraftTree(
        step=speed.steps,
        texts=[" wrong", *texts, " more"] if drafted else [],
        parents=[-1, -1, *range(1, len(texts) + 1)] if drafted else [],
        probs=[0.5, *[0.25] * len(texts), 0.125] if drafted else [],
        sources=[drafter] * (len(texts) + 2) if drafted else [],
        path=list(range(1, len(texts) + 1)),
        last=last,
        probes=0,
        ms=stepped.ms,
    )
    return Watched([tree], counts(speed, drafter), {drafter: DEPTHS} if drafted else {})


def counts(speed: Speed, drafter: str) -> dict[str, dict[str, int]]:
    """What a reply's drafts add up to."""
    return {drafter: {"steps": speed.steps, "drafted": speed.drafted, "accepted": speed.accepted}}
