"""What the interface and the engine's process say to each other: length-prefixed JSON over pipes.

A frame is four bytes of length, little-endian, and that many bytes of JSON: ``{"kind": name, ...fields}``. The engine
speaks first, with ``Hello``; a version that differs ends the conversation. Every message is a frozen dataclass: those
to the engine in ``requests``, those from it below; ``slipstream.app.engine.frames`` reads and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from slipstream.app.engine.requests import Generate, Load, Prepare, Quit, Stop, Watch

VERSION: Final = 2

Origin = Literal["plain", "accepted", "recovered", "bonus"]
"""Who wrote a piece of a reply: accepted from a drafter, or the target itself in one of three ways."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame."""

    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life, every second while something is asked; the seconds are those that the machine was awake.

    Attributes:
        quiet: Seconds since the work last came further: a step, a chunk, a node of a graph, a tensor.
        still: Seconds since the process last did anything that can be measured, such as to compute or to read a file.
    """

    quiet: float
    still: float


@dataclass(frozen=True, slots=True)
class Loading:
    """How far a load is, 0 to 1, from 0.9 on measuring the machine; None while a file is checked, before first use."""

    share: float | None


@dataclass(frozen=True, slots=True)
class DrafterOffer:
    """A drafter and whether it serves this target.

    Attributes:
        name: Its name.
        usable: Whether it can be asked for.
        why_not: The reason if not, else empty.
        about: What it does, in a line.
    """

    name: str
    usable: bool
    why_not: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target is ready.

    Attributes:
        name: The model's own name.
        architecture: Its kind, such as "llama".
        n_ctx: Context in tokens.
        fingerprint: Identifies the file; token ids kept for it are good for it alone.
        device: Where it runs.
        promise: "same text" or "same distribution" (DESIGN section 4).
        drafters: All drafters.
        plain_tok_per_s: Measured speed of plain decoding.
        remark: What was changed because the process had ended before, for people; empty if nothing was.
    """

    name: str
    architecture: str
    n_ctx: int
    fingerprint: str
    device: str
    promise: str
    drafters: list[DrafterOffer]
    plain_tok_per_s: float
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """How much of the context a prompt takes, before it is sent; the answer to the ``Prepare`` of this number.

    Attributes:
        request: The number.
        tokens: Tokens of the prompt as it would be read now; n_ctx or more is too long to be sent.
        dropped_messages: Oldest messages that would be left out.
        dropped_tokens: Tokens that would leave with them.
    """

    request: int
    tokens: int
    dropped_messages: int = 0
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prefilling:
    """How far the prompt is read: ``done`` of ``total`` tokens."""

    request: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of new text and who wrote it.

    Attributes:
        text: The text.
        origin: Who wrote it.
        source: The drafter's name where the origin is "accepted", else empty.
    """

    text: str
    origin: Origin
    source: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures on the strip, over the reply so far.

    Attributes:
        tok_per_s: Emitted tokens a second, prefill left out.
        acceptance: Accepted tokens over the depths of the drafts; None before the first draft.
        tokens_per_step: Tokens a step.
        speedup: Speed over that of plain decoding, both over the latest steps without the slowest fifth; None until
            plain decoding was measured.
        drafted: Tokens drafted (depths of the drafts).
        accepted: Drafted tokens that the target accepted.
        steps: Steps so far.
        tokens: Tokens so far.
        thought: Tokens of the thinking part, see ``slipstream.app.engine.thinking``.
        thought_ms: Milliseconds that they took.
    """

    tok_per_s: float = 0.0
    acceptance: float | None = None
    tokens_per_step: float = 0.0
    speedup: float | None = None
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    tokens: int = 0
    thought: int = 0
    thought_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One step as it is drawn: what was drafted, and what became of it.

    Attributes:
        step: Its number in the reply, from 1.
        texts: Per node that might have been accepted, the text of its token; empty for a token that ends a reply.
        parents: Per node, the index of its parent, smaller than its own; -1 below the text so far.
        probs: Per node, the drafter's probability of it given its parent, 0 to 1.
        sources: Per node, who drafted it.
        path: The accepted nodes, root to leaf.
        last: The token after them, which the target wrote itself.
        probes: Number of nodes that were evaluated for the drafter's sake alone; they are not among the others.
        ms: Milliseconds of the step.
    """

    step: int
    texts: list[str]
    parents: list[int]
    probs: list[float]
    sources: list[str]
    path: list[int]
    last: Piece
    probes: int
    ms: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What a step tells beside its text while somebody looks, see ``Watch``.

    Attributes:
        trees: Drafts, oldest first; of many quick steps only some.
        by_drafter: As in ``Done``, of the reply so far.
        drafter_depths: As in ``Done``, of the reply so far.
    """

    trees: list[DraftTree]
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step of the loop, or several joined.

    Attributes:
        request: Which reply.
        pieces: The new text, in order; empty while a character is incomplete.
        tokens: The new token ids.
        drafter: Who drafted ("none" for a plain step).
        drafted: Depth of the draft.
        accepted: Tokens accepted.
        ms: Milliseconds of the step.
        speed: The figures so far.
        expected: Tokens that the autopilot expected of it; 0 where it did not choose.
        why: Why the autopilot chose so, in one line; empty where it has just been said.
        watched: The drafts, while somebody looks at them.
    """

    request: int
    pieces: list[Piece]
    tokens: list[int]
    drafter: str
    drafted: int
    accepted: int
    ms: float
    speed: Speed
    expected: float = 0.0
    why: str = ""
    watched: Watched | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """A reply is over.

    Attributes:
        request: Which reply.
        reason: "stop" (it ended by itself or at a stop string), "length" (max_tokens), "context" (the context is full)
            or "cancelled".
        text: The whole reply.
        tokens: Its token ids without the end token, to be kept for the next turn; empty where they do not stand for
            just this text (a stop string was cut off, a character is incomplete).
        prompt_tokens: Tokens of the prompt.
        prefilled_tokens: Those that had to be read, the rest was in the KV cache.
        dropped_messages: Oldest messages that did not fit the context and were left out.
        ttft_ms: Milliseconds from the request to the first token.
        speed: The final figures.
        by_depth: Per depth from 1: [steps that reached it, accepted there].
        by_drafter: Per drafter: its figures in this reply: steps, drafted, accepted.
        drafter_depths: Per drafter: ``by_depth`` of its drafts alone.
        phases: Milliseconds a step: draft, evaluate, accept, commit, and the rest that is done between steps.
        exact: Whether the text is the target's own; typical acceptance changes it.
        auto: Per drafter that the autopilot chose: steps, tokens expected and real, milliseconds, and those that plain
            decoding would have taken.
        dropped_tokens: Tokens that left with the oldest messages.
    """

    request: int
    reason: Literal["stop", "length", "context", "cancelled"]
    text: str
    tokens: list[int]
    prompt_tokens: int
    prefilled_tokens: int
    dropped_messages: int
    ttft_ms: float
    speed: Speed
    by_depth: list[list[int]] = field(default_factory=list)
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    exact: bool = True
    auto: dict[str, dict[str, float]] = field(default_factory=dict)
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed; the engine lives on.

    Attributes:
        title: What failed and why.
        hint: What to try next.
        code: Exit code for a command: 1 or 2.
        request: Which reply, or 0 for a load.
    """

    title: str
    hint: str = ""
    code: int = 1
    request: int = 0


Told = Hello | Beat | Loading | Loaded | Counted | Prefilling | Stepped | Done | Failed
Frame = Load | Generate | Prepare | Stop | Watch | Quit | Told
