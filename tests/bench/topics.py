"""Part ``topics``: one text of prose, a quoted document and code; how soon the autopilot notices each change."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.replay import Replayed, replay_with
from tests.bench.topic_figures import TopicFigures, topic_figures

from slipstream.app.bench.turns import ReplyPlan, session_of, usable_drafters
from slipstream.app.engine.session import Session
from slipstream.app.protocol.requests import AUTO, Load, Message
from slipstream.drafters.base import Plain
from slipstream.models.errors import UsageError
from slipstream.models.types import Token


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the text."""

    name: str  # what it is: "prose", "quote" or "code"
    tokens: list[Token]  # its tokens


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What part ``topics`` found."""

    model: str
    rounds: int  # how often the text was replayed with each drafter
    segments: list[TopicFigures]  # a row for each stretch of the text
    unusable: dict[str, str]  # drafters that cannot serve the model, and why


def replay_topics(request: Load, plan: ReplyPlan, rounds: int, tell: Callable[[str], None]) -> TopicReport:
    """Replays the text with the autopilot and with every drafter, each round with the model loaded afresh.

    Afresh, because some drafters remember what they wrote. The order changes from round to round.

    Args:
        plan: Which drafters; of each stretch as many tokens as a reply has at most.
        rounds: How often.
        tell: Hears how far it is.

    Raises:
        UsageError: If the autopilot was left out.
        SlipstreamError: If the model cannot be loaded, or its context does not hold the text.
    """
    played: dict[str, list[list[Replayed]]] = {}
    for turn in range(rounds):
        with session_of(request) as (session, loaded):
            usable, unusable = usable_drafters(session, loaded, plan.names)
            if AUTO not in usable:
                raise UsageError("part topics watches the autopilot, which was not asked for.", "Name auto too.")
            prompt, segments = topic_text(session, plan.tokens)
            text = [token for segment in segments for token in segment.tokens]
            order = [Plain.name, *usable]
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                tell(f"topics: {name} (round {turn + 1} of {rounds})")
                steps = replay_with(session, name, prompt, text)
                played.setdefault(name, []).append(steps)
    sizes = [(segment.name, len(segment.tokens)) for segment in segments]
    return TopicReport(loaded.name, rounds, topic_figures(sizes, played), unusable)


def topic_text(session: Session, most: int) -> tuple[list[Token], Sequence[Segment]]:
    """Reads the text that ships with slipstream.

    Args:
        session: The model, whose tokens these are.
        most: Most tokens of each stretch.

    Returns:
        The prompt, which holds the document that is quoted later, and the stretches of the reply.
    """
    read = json.loads(Path(__file__).with_name("topics.json").read_text(encoding="utf-8"))
    prompt = session.prompt([Message("user", read["question"])])
    return prompt, [
        Segment(each["name"], session.model.prompts.tokens_of(each["text"])[:most]) for each in read["segments"]
    ]
