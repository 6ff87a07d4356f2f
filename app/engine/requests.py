"""What the application asks of the engine's process, see ``protocol``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

AUTO: Final = "auto"
"""The drafter that chooses among all others, step by step (``slipstream.app.engine.autopilot``)."""

STATES_LIMIT: Final = 4 << 30
"""Bytes that all kept KV caches take together, where their owner says nothing else."""

PAUSE: Final = 0.25
"""Seconds without a key after which what is typed is worth reading, see ``Prepare``."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; see ``slipstream.models.sampling.Sampler``.

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
    """Draws a seed that nobody could guess: 31 bits."""
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
    """Asks for one reply to a chat.

    Attributes:
        request: Number that comes back with every event of this reply.
        messages: The chat, oldest first; ends with the user's message, or with a reply that goes on.
        sampling: How tokens are drawn.
        drafter: Who drafts.
        max_tokens: Most tokens of the reply; 0 means until it ends by itself or the context is full.
        stop: Strings that end the reply; they are not part of it.
        state: File that keeps the KV cache of this chat between processes, or None. Written once the chat is left,
            or nothing was asked for a while, or the engine ends.
        frame_ms: Steps that come faster than this are joined into one event; 0 for an event a step.
    """

    request: int
    messages: list[Message]
    sampling: Sampling = field(default_factory=Sampling)
    drafter: str = "none"
    max_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    state: str | None = None
    frame_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Reads the beginning of a prompt that is still being typed; whatever is asked next ends it.

    ``Counted`` answers at once, if nothing else is under way.

    Attributes:
        messages: The chat, oldest first; ends with what the user has typed so far, which may be nothing.
        drafter: Who will draft the reply.
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
    """Says whether somebody looks at the drafts: steps carry them from now on, or no longer; nothing answers."""

    on: bool


@dataclass(frozen=True, slots=True)
class Quit:
    """Ends the engine's process."""
