"""Frames between the interface and the engine's process: length-prefixed JSON over pipes.

A frame is four bytes of length, little-endian, and that many bytes of JSON: ``{"kind": name, ...fields}``. The engine
speaks first, with ``Hello``; a version that differs ends the conversation. Every message is a frozen dataclass: those
to the engine in ``requests``, those from it below; ``slipstream.app.engine.process.frames`` reads and writes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal

from slipstream.app.speed import Speed
from slipstream.drafters.autopilot import AUTO as AUTO
from slipstream.models.errors import ContextFullError

PLAIN: Final = "none"
"""The name of decoding without a drafter."""

STATES_LIMIT: Final = 4 << 30
"""Bytes that all kept KV caches take together, by default."""

PAUSE: Final = 0.25
"""Seconds without a key after which what is typed is worth reading, see ``Prepare``."""

_SPACES: Final = (b" ", b"\t", b"\n", b"\r", b"\v", b"\f")
_WRITTEN_SPACE: Final = "\u2581".encode()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; see ``slipstream.models.sampling.sampler.Sampler``.

    Attributes:
        typical: Threshold of Medusa's typical acceptance, which changes the text; None for the exact rule. See
            ``slipstream.drafters.accept.Typical``.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int = 0
    typical: float | None = None


def new_seed() -> int:
    """Draws an unguessable seed of 31 bits."""
    return int.from_bytes(os.urandom(4)) >> 1


@dataclass(frozen=True, slots=True)
class Load:
    """Loads a target and what drafts for it.

    Attributes:
        model: Path of the target's GGUF.
        draft_model: Path of the draft model's GGUF, or None.
        heads: Paths of files of trained heads; those for another model are passed over.
        derived: Folder for files that are derived from the model, or None to keep none.
        drafter: The drafter that must be usable, by its name; a mismatch is an error.
        n_ctx: Context in tokens, or 0 for the model's own (at most 8,192).
        same_text: Decode so that every drafter gives the same text, bit for bit: Q8_0 KV cache, cells kept in order.
        gpu_layers: Layers on the GPU; -1 for all that fit.
        draft_gpu_layers: Layers of the draft model on the GPU; -1 for all.
        states: Folder of kept KV caches, or None to keep none of system prompts.
        states_limit: Bytes that all kept KV caches may take together; those that were used last stay. 0 keeps none.
        index: Folder of the indexes of text, or None to draft from none.
        chats: Database of the chats that are indexed, or None for none.
        spare_cores: Cores that a small model leaves free, for the screen that shows what it writes.
        threads: Threads of every pass; 0 for as many as help.
        halved: Times that the context is halved: with more of it, memory ran out.
        left_out: File that names the drafters that the autopilot leaves out, by model; None for none.
        failed: Drafters that ended the process before, by name, and the reason; they are left out.
        measured_with: A small model with which is measured how attention is computed best on the processor; None for
            llama.cpp's choice.
        probed: File that remembers which model files were tried in a process of their own, as each is before its first
            use; None to try none.
    """

    model: str
    draft_model: str | None = None
    heads: list[str] = field(default_factory=list)
    derived: str | None = None
    drafter: str = "none"
    n_ctx: int = 0
    same_text: bool = False
    gpu_layers: int = -1
    draft_gpu_layers: int = -1
    spare_cores: int = 0
    threads: int = 0
    halved: int = 0
    index: str | None = None
    chats: str | None = None
    left_out: str | None = None
    states: str | None = None
    states_limit: int = STATES_LIMIT
    probed: str | None = None
    measured_with: str | None = None
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat.

    Attributes:
        role: "system", "user" or "assistant".
        content: Its text.
        tokens: For a reply of this very model: its token ids, so that the KV cache is met again; else empty.
    """

    role: str
    content: str
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Generate:
    """Requests one reply to a chat.

    Attributes:
        request: Number that comes back with every event of this reply.
        messages: The chat, oldest first; ends with the user's message, or with a reply that goes on.
        sampling: How tokens are drawn.
        drafter: The drafter's name.
        max_tokens: Most tokens of the reply; 0 means until it ends by itself or the context is full.
        stop: Strings that end the reply; they are not part of it.
        state: File that keeps the KV cache of this chat between processes, or None. Written once the chat is left,
            or nothing was asked for a while, or the engine ends.
        begun: Tokens of the reply that an earlier process wrote; it goes on after them as if it had not stopped.
        frame_ms: Steps that come faster than this are joined into one event; 0 for an event a step.
        asked: When the user sent it, by ``perf_counter``, whose clock all processes share.
    """

    request: int
    messages: list[Message]
    sampling: Sampling = field(default_factory=Sampling)
    drafter: str = "none"
    max_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    state: str | None = None
    frame_ms: float = 0.0
    begun: list[int] = field(default_factory=list)
    asked: float = field(default_factory=perf_counter)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Reads the beginning of a prompt that is still being typed; whatever is asked next ends it.

    ``Counted`` answers at once, if nothing else is under way.

    Attributes:
        messages: The chat, oldest first; ends with what the user has typed so far, which may be nothing.
        drafter: The drafter of the reply.
        state: See ``Generate.state``.
        request: Number that comes back with ``Counted``.
        read: Whether to read it; else it is only counted.
    """

    messages: list[Message]
    drafter: str = "none"
    state: str | None = None
    request: int = 0
    read: bool = True


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the reply that is being written, prefill included; what was written stays."""

    request: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Has steps carry their drafts from now on, or no longer; it has no answer."""

    on: bool


@dataclass(frozen=True, slots=True)
class Quit:
    """Ends the engine's process."""


VERSION: Final = 4

Origin = Literal["plain", "accepted", "recovered", "bonus"]
"""Where a piece of a reply comes from: accepted from a drafter, or drawn by the target in one of three ways."""


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
        promise: "same text" or "same distribution".
        drafters: All drafters.
        plain_tok_per_s: Measured speed of plain decoding.
        remark: What was changed because the process had ended before, for people; empty if nothing was.
        failed: Drafters that failed while the model was loaded, by name, and the reason as the end of a sentence.
        token_bytes: See ``LlamaModel.token_bytes``.
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
    failed: dict[str, str] = field(default_factory=dict)
    token_bytes: int = 0


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
    """A stretch of new text and its origin.

    Attributes:
        text: The text.
        origin: Where it comes from.
        source: The drafter's name where the origin is "accepted", else empty.
    """

    text: str
    origin: Origin
    source: str = ""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One step as it is drawn: what was drafted, and what became of it.

    Attributes:
        step: Its number in the reply, from 1.
        texts: Per node that might have been accepted, the text of its token; empty for a token that ends a reply.
        parents: Per node, the index of its parent, smaller than its own; -1 below the text so far.
        probs: Per node, the drafter's probability of it given its parent, 0 to 1.
        sources: Per node, its drafter.
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
    """What a step carries beside its text after ``Watch``.

    Attributes:
        trees: Drafts, oldest first; of many quick steps only some.
        by_drafter: As in ``Done``, of the reply so far.
        drafter_depths: As in ``Done``, of the reply so far.
    """

    trees: list[DraftTree]
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Divided:
    """The new text of a step that reasons, or that ends the reasoning.

    Attributes:
        reasoning: What is new of the reasoning, without the marks around it.
        answer: What is new of the answer; what may still become a mark is in neither until the reply is over.
        under_way: Whether more reasoning follows.
    """

    reasoning: str
    answer: list[Piece]
    under_way: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What the autopilot chose for a step, and the terms of the choice.

    Attributes:
        drafter: The one that drafts; "none" for a plain step.
        nodes: Tokens that the pass checks beside the next one.
        cost: Cost of the pass in plain passes, 1 or more.
        expected: Tokens expected of the step.
        plain_ms: Milliseconds of a plain step.
        trial: Whether the drafter is tried out.
    """

    drafter: str
    nodes: int
    cost: float
    expected: float
    plain_ms: float
    trial: bool = False


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step of the loop, or several joined.

    Attributes:
        request: Which reply.
        pieces: The new text, in order; empty while a character is incomplete.
        tokens: The new token ids.
        drafter: The drafter ("none" for a plain step).
        drafted: Depth of the draft.
        accepted: Tokens accepted.
        ms: Milliseconds of the step.
        speed: The figures so far.
        expected: Tokens that the autopilot expected of it; 0 where it did not choose.
        choice: What the autopilot chose; None where it did not choose, or where it has just been said.
        watched: The drafts, after ``Watch``.
        divided: What of the new text is reasoning; None where all of it is the answer's.
        ttft_ms: As in ``Done``.
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
    choice: Choice | None = None
    watched: Watched | None = None
    divided: Divided | None = None
    ttft_ms: float = 0.0

    @property
    def parts(self) -> Divided:
        """``divided``, also where all of the text is the answer's."""
        return self.divided or Divided("", self.pieces, False)


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
        ttft_ms: Milliseconds from ``Generate.asked`` to the first token.
        speed: The final figures.
        by_depth: Per depth from 1: [steps that reached it, accepted there].
        by_drafter: Per drafter: its figures in this reply: steps, drafted, accepted.
        drafter_depths: Per drafter: ``by_depth`` of its drafts alone.
        phases: Milliseconds a step: draft, evaluate, accept, commit, and the rest that is done between steps.
        exact: Whether the text is the target's own; typical acceptance changes it.
        auto: Per drafter that the autopilot chose: steps, tokens expected and real, and milliseconds.
        dropped_tokens: Tokens that left with the oldest messages.
        failed: Drafters that failed since the last reply, by name, and the reason as the end of a sentence.
        remarks: What happened to the model's files while it is loaded, and what to do about it; each is told once.
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
    failed: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)


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


def least_tokens(text: str, token_bytes: int) -> int:
    """Fewest tokens that a text can make; 0 where ``token_bytes``, see ``LlamaModel.token_bytes``, is unknown."""
    raw = text.encode("utf-8", "replace")
    spaces = sum(map(raw.count, _SPACES)) + len(_WRITTEN_SPACE) * raw.count(_WRITTEN_SPACE)
    return -(-(len(raw) - spaces) // token_bytes) if token_bytes else 0


def check_size(text: str, token_bytes: int, n_ctx: int) -> None:
    """Refuses a message by its size, before it is kept, sent or turned into tokens.

    Raises:
        ContextFullError: If it cannot fit the context.
    """
    least = least_tokens(text, token_bytes)
    if least >= n_ctx:
        raise ContextFullError(
            f"this message cannot fit: it makes at least {least:,} tokens, but the context holds {n_ctx:,}.",
            "Shorten it, send it in parts, or load the model with a larger context (--context).",
        )


Told = Hello | Beat | Loading | Loaded | Counted | Prefilling | Stepped | Done | Failed
Frame = Load | Generate | Prepare | Stop | Watch | Quit | Told


def failure_words(failed: Mapping[str, str]) -> list[str]:
    """A sentence for each failed drafter, without its full stop."""
    return [f"drafter {name} is left out of this chat: {why}" for name, why in failed.items()]
