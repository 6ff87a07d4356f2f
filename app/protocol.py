"""Frames between the interface and the engine's process: length-prefixed JSON over pipes.

A frame is four bytes of length, little-endian, and that many bytes of JSON: ``{"kind": name, ...fields}``. The engine
first sends ``Hello``; the client closes an engine of another version. Every message is a frozen dataclass: ``Load`` to
``Quit`` go to the engine, the rest come from it. ``slipstream.app.engine.process.frames`` reads and writes them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import nan
from time import perf_counter
from typing import Any, Final, Literal

from slipstream.app.speed import Speed
from slipstream.drafters.autopilot import AUTO as AUTO
from slipstream.models.chat_template.marks import AUTO_LEVEL
from slipstream.models.errors import ContextFullError, UsageError
from slipstream.models.grammar import GrammarKind
from slipstream.models.outside import decimal_number, quoted

PLAIN: Final = "none"  # the name of decoding without a drafter

MOST_SCALE: Final = 100  # maximum absolute scale of a LoRA adapter

STATES_LIMIT: Final = 4 << 30  # default limit of all kept KV caches, in bytes

NO_MMPROJ: Final = (
    "If it is a model that sees, put its mmproj file beside it (slipstream models pull fetches both), or name it with "
    "--mmproj FILE."
)

PAUSE: Final = 0.25  # seconds without a key before the typed text is prefilled, see ``Prepare``

_SPACES: Final = (b" ", b"\t", b"\n", b"\r", b"\v", b"\f")
_WRITTEN_SPACE: Final = "\u2581".encode()


_NOT_DRAWING: Final = frozenset({"typical", "logit_bias", "reasoning", "reasoning_budget"})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a reply are drawn; see ``slipstream.models.sampling.sampler.Sampler``."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    top_n_sigma: float = 0.0
    dry: float = 0.0
    logit_bias: str = ""  # tokens and their logit biases, see ``slipstream.models.sampling.bias``
    seed: int = 0
    # threshold of Medusa's typical acceptance, which changes the text; None for the exact rule. See
    # ``slipstream.drafters.accept.Typical``
    typical: float | None = None
    reasoning: str = AUTO_LEVEL  # how much the model thinks before it answers: one of ``marks.LEVELS``
    reasoning_budget: int = -1  # maximum tokens of reasoning, which the model's own mark then ends; -1 for no limit

    def drawing(self) -> dict[str, Any]:
        """The arguments of ``Sampler``."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in _NOT_DRAWING}


def new_seed() -> int:
    """Draws an unguessable seed of 31 bits."""
    return int.from_bytes(os.urandom(4)) >> 1


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a model, and its distribution among them."""

    rpc: str = ""  # machines that lend their devices, ``HOST:PORT,…``
    split_mode: str = "layer"  # the unit that is spread over GPUs: "layer", "row" (of matrices) or "none" (one GPU)
    # share of each GPU, with commas between them, in the order of ``slipstream doctor``; empty to fill them evenly
    tensor_split: str = ""
    main_gpu: int = 0  # from 0
    draft: str = ""  # the draft model's device; empty for this machine's first GPU, if the target uses GPUs


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA adapter that changes a model."""

    path: str  # its GGUF
    scale: float = 1.0  # how strongly it changes the model
    settled: bool = False  # whether it comes from the settings, not the command line

    @classmethod
    def read(cls, text: str) -> Lora:
        """Reads ``FILE`` or ``FILE:SCALE``.

        Raises:
            UsageError: If the text after the last colon is not a valid scale.
        """
        path, colon, scale = text.rpartition(":")
        if not colon or "/" in scale or "\\" in scale or scale.endswith(".gguf"):
            path, scale = text, "1"
        try:
            found = decimal_number(scale)
        except ValueError:
            found = nan
        if not path or not -MOST_SCALE <= found <= MOST_SCALE:
            raise UsageError(
                f"lora: {quoted(scale)} is no scale; it must be a number from {-MOST_SCALE} to {MOST_SCALE}.",
                "Write FILE, or FILE:SCALE as in style.gguf:0.5.",
            )
        return cls(os.path.expanduser(path), found)

    @property
    def words(self) -> str:
        """Its name and scale, for people."""
        name = os.path.basename(self.path).removesuffix(".gguf")
        return name if self.scale == 1 else f"{name} \u00d7{self.scale:g}"


@dataclass(frozen=True, slots=True)
class Load:
    """Loads a target and its drafters."""

    model: str  # path of the target's GGUF
    draft_model: str | None = None  # path of the draft model's GGUF, or None
    # paths of files of trained heads; those for another model are skipped
    heads: list[str] = field(default_factory=list)
    derived: str | None = None  # folder of files derived from the model, or None to keep none
    drafter: str = "none"  # the drafter that must be usable, by its name; a mismatch is an error
    n_ctx: int = 0  # context in tokens, or 0 for the model's own (at most 8,192)
    # decode so that every drafter gives the same text, bit for bit: Q8_0 KV cache, cells kept in order
    same_text: bool = False
    gpu_layers: int = -1  # layers on the GPU; -1 for all that fit
    # number of first layers whose experts stay in main memory while the rest is on GPUs; -1 for as few as fit
    cpu_experts: int = -1
    draft_gpu_layers: int = -1  # layers of the draft model on the GPU; -1 for all
    devices: Devices = field(default_factory=Devices)
    spare_cores: int = 0  # cores that a small model leaves free for the interface
    threads: int = 0  # threads of every pass; 0 for as many as help
    halved: int = 0  # how often to halve the context: once for each time that memory ran out
    index: str | None = None  # folder of the text indexes, or None for none
    chats: str | None = None  # database of the chats that are indexed, or None for none
    left_out: str | None = None  # file of the drafters that the user disabled, by model; None for none
    states: str | None = None  # folder of the KV caches of system prompts, or None to keep none
    # limit of all kept KV caches in bytes; the least recently used are deleted first. 0 keeps none
    states_limit: int = STATES_LIMIT
    # file that lists the model files that passed a probe: before its first use, each is loaded in a separate process;
    # None to probe none
    probed: str | None = None
    # small model on which the implementations of attention are timed on the CPU; None for llama.cpp's choice
    measured_with: str | None = None
    # drafters that crashed an earlier process, by name, and the reason; they are not used
    failed: dict[str, str] = field(default_factory=dict)
    kv_type: str = "auto"  # type of the KV cache: f16, q8_0, q4_0, or auto for F16 where it fits, else Q8_0
    lora: list[Lora] = field(default_factory=list)  # adapters of the target
    mmproj_unsure: list[str] = field(default_factory=list)  # image encoders that may fit, if none certainly does
    mmproj: str | None = None  # path of the image encoder; None for a model without images


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str  # "system", "user" or "assistant"
    content: str
    # for a reply of the same model: its token ids, so that the KV cache is reused; else empty
    tokens: list[int] = field(default_factory=list)
    # for a user's message: the files of its images (``app.chats.images.MARK``) by SHA-256
    images: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generate:
    """Requests one reply to a chat."""

    request: int  # number that every event of this reply carries
    messages: list[Message]  # the chat, oldest first; ends with the user's message, or with a reply to continue
    sampling: Sampling = field(default_factory=Sampling)  # how tokens are drawn
    drafter: str = "none"
    max_tokens: int = 0  # maximum tokens of the reply; 0 for no limit except the context
    stop: list[str] = field(default_factory=list)  # strings that end the reply; they are not part of it
    # file that keeps the KV cache of this chat between processes, or None. Written when another chat is opened, when
    # the engine is idle for a while, and when it ends
    state: str | None = None
    frame_ms: float = 0.0  # merges steps that follow faster into one event; 0 for an event per step
    # tokens of the reply that an earlier process wrote; the reply continues after them with the same text
    begun: list[int] = field(default_factory=list)
    grammar: str = ""  # a JSON schema or a grammar that the answer must follow; empty for none
    grammar_kind: GrammarKind = "json"
    # if a chat does not fit the context, "drop" leaves out the oldest messages, "stop" refuses the request
    overflow: Literal["drop", "stop"] = "drop"
    # time of sending by ``perf_counter``, a clock that all processes share
    asked: float = field(default_factory=perf_counter)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prefills a prompt that is still being typed; the next request ends it.

    If the engine is idle, it answers at once with ``Counted``.
    """

    messages: list[Message]  # the chat, oldest first; ends with what the user has typed so far, which may be nothing
    drafter: str = "none"
    state: str | None = None  # see ``Generate.state``
    request: int = 0  # number that ``Counted`` carries
    read: bool = True  # whether to prefill it; otherwise its tokens are only counted
    reasoning: str = AUTO_LEVEL  # see ``Sampling``


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the current reply, prefill included; the text so far is kept."""

    request: int


@dataclass(frozen=True, slots=True)
class EndThoughts:
    """Ends the reasoning of the current reply with the model's own mark; the answer follows."""

    request: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Switches the drafts in ``Stepped`` on or off; it has no answer."""

    on: bool


@dataclass(frozen=True, slots=True)
class Quit:
    """Ends the engine's process."""


VERSION: Final = 6

Origin = Literal["plain", "accepted", "recovered", "bonus"]
"""The origin of a piece of a reply: accepted from a drafter, or drawn by the target in one of three ways."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame."""

    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat, every second while a request is served; time in which the machine is suspended is not counted."""

    quiet: float  # seconds since the last progress: a step, a chunk, a node of a graph, a tensor
    still: float  # seconds since the process last used the CPU or the disk


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of a load, 0 to 1; measurements begin at 0.9. None while a file is checked before its first use."""

    share: float | None


@dataclass(frozen=True, slots=True)
class DrafterOffer:
    """A drafter and whether it works with this target."""

    name: str
    usable: bool
    why_not: str = ""  # the reason if not, else empty
    about: str = ""  # what it does, in a line


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target is ready."""

    name: str
    architecture: str  # its kind, such as "llama"
    n_ctx: int  # context in tokens
    fingerprint: str  # identifies the file; kept token ids are valid for it alone
    device: str  # the devices that it runs on, in words
    promise: str  # "same text" or "same distribution"
    drafters: list[DrafterOffer]
    plain_tok_per_s: float  # measured speed of plain decoding
    # what was changed after a crash, or because another machine is missing, in words; empty if nothing was
    remark: str = ""
    # drafters that failed while the model was loaded, by name, and the reason as the end of a sentence
    failed: dict[str, str] = field(default_factory=dict)
    token_bytes: int = 0  # see ``LlamaModel.token_bytes``
    reasoning: list[str] = field(default_factory=list)  # levels of reasoning that its chat template has
    reasoning_default: str = ""  # the template's default level; empty if it is none of them
    # fields of ``Sampling`` as the model's makers recommend them, by name
    sampling: dict[str, float] = field(default_factory=dict)
    sampling_source: str = ""  # their source: "its file" or "the catalogue"; empty without any
    machines: list[str] = field(default_factory=list)  # the other machines that hold some of its layers
    lora: list[Lora] = field(default_factory=list)  # its adapters
    n_ctx_trained: int = 0  # the longest context without RoPE scaling; 0 if unknown
    n_ctx_longest: int = 0  # the longest possible context; 0 if unknown
    rope: str = ""  # the scaling that this context uses beyond the trained one, in words; empty for none

    @property
    def title(self) -> str:
        """Its name and those of its adapters, for people."""
        return " + ".join((self.name, *(each.words for each in self.lora)))

    images: bool = False  # whether prompts may hold images


@dataclass(frozen=True, slots=True)
class Counted:
    """The size of a prompt before it is sent; the answer to the ``Prepare`` of this number."""

    request: int
    tokens: int  # tokens of the prompt if it were sent now; n_ctx or more is too long
    dropped_messages: int = 0  # number of oldest messages that would be left out
    dropped_tokens: int = 0  # their tokens


@dataclass(frozen=True, slots=True)
class Prefilling:
    """Progress of prefill: ``done`` of ``total`` tokens."""

    request: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of new text and its origin."""

    text: str
    origin: Origin
    source: str = ""  # the drafter's name where the origin is "accepted", else empty


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One step for the draft panel: the draft and its outcome."""

    step: int  # its number in the reply, from 1
    # per candidate node, the text of its token; empty for a token that ends a reply
    texts: list[str]
    parents: list[int]  # per node, the index of its parent, smaller than its own; -1 below the text so far
    probs: list[float]  # per node, the drafter's probability of it given its parent, 0 to 1
    sources: list[str]  # per node, its drafter
    path: list[int]  # the accepted nodes, root to leaf
    last: Piece  # the token after them, drawn by the target
    probes: int  # number of nodes evaluated only for the drafter; they are not among the others
    ms: float  # milliseconds of the step


@dataclass(frozen=True, slots=True)
class Watched:
    """The drafts that a step carries after ``Watch``."""

    trees: list[DraftTree]  # oldest first; quick steps are sampled
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)  # as in ``Done``, of the reply so far
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)  # as in ``Done``, of the reply so far


@dataclass(frozen=True, slots=True)
class Divided:
    """The new text of a step in the reasoning, or at its end.

    Text that may be the start of a mark is held back until that is certain.
    """

    reasoning: str  # new reasoning, without the marks around it
    answer: list[Piece]  # new text of the answer
    under_way: bool  # whether more reasoning follows


@dataclass(frozen=True, slots=True)
class Choice:
    """The autopilot's choice for a step, and the figures behind it."""

    drafter: str  # "none" for a plain step
    nodes: int  # drafted tokens that the pass verifies
    cost: float  # cost of the pass in plain passes, 1 or more
    expected: float  # expected number of tokens of the step
    plain_ms: float  # milliseconds of a plain step
    trial: bool = False  # whether the drafter is being explored


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step of the loop, or several merged."""

    request: int
    pieces: list[Piece]  # the new text, in order; empty while a character is incomplete
    tokens: list[int]  # the new token ids
    drafter: str  # the drafter ("none" for a plain step)
    drafted: int  # depth of the draft, without what lies beyond the end of the reply
    accepted: int  # tokens accepted
    ms: float  # milliseconds of the step
    speed: Speed
    expected: float = 0.0  # tokens that the autopilot expected of it; 0 without the autopilot
    choice: Choice | None = None  # None without the autopilot, or if a choice was sent a moment ago
    watched: Watched | None = None  # the drafts, after ``Watch``
    divided: Divided | None = None  # the new text by reasoning and answer; None if all of it is the answer
    ttft_ms: float = 0.0  # as in ``Done``

    @property
    def parts(self) -> Divided:
        """``divided``, also if all of the text is the answer."""
        return self.divided or Divided("", self.pieces, False)


@dataclass(frozen=True, slots=True)
class Done:
    """A reply is over."""

    request: int
    # "stop" (end token or stop string), "length" (max_tokens), "context" (the context is full) or "cancelled"
    reason: Literal["stop", "length", "context", "cancelled"]
    text: str  # the whole reply
    # its token ids without the end token, to be kept for the next turn; empty if they do not decode to exactly this
    # text (a stop string was cut off, a character is incomplete)
    tokens: list[int]
    prompt_tokens: int  # tokens of the prompt
    prefilled_tokens: int  # tokens of the prompt that were not in the KV cache
    dropped_messages: int  # number of oldest messages left out because the chat did not fit the context
    ttft_ms: float  # milliseconds from ``Generate.asked`` to the first token
    speed: Speed  # the final figures
    by_depth: list[list[int]] = field(default_factory=list)  # per depth from 1: [steps that reached it, accepted there]
    # per drafter: steps, drafted and accepted in this reply
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    # per drafter: ``by_depth`` of its drafts alone
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)
    # milliseconds a step: draft, evaluate, accept, commit, and the rest between steps
    phases: dict[str, float] = field(default_factory=dict)
    exact: bool = True  # whether the text is the target's own; typical acceptance changes it
    # per drafter that the autopilot chose: steps, expected and actual tokens, and milliseconds
    auto: dict[str, dict[str, float]] = field(default_factory=dict)
    dropped_tokens: int = 0  # tokens of the ``dropped_messages``
    # drafters that failed since the last reply, by name, and the reason as the end of a sentence
    failed: dict[str, str] = field(default_factory=dict)
    # what happened to the model's files since the load, and the remedy; each is reported once
    remarks: dict[str, str] = field(default_factory=dict)
    complete: bool = True  # whether the answer completes its grammar; True without one
    # tokens of the reasoning when ``EndThoughts`` ended it, else -1; as ``reasoning_budget`` it has the same effect
    thoughts_closed: int = -1


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed; the engine continues."""

    title: str  # what failed and why
    hint: str = ""  # what to try next
    code: int = 1  # exit code for a command: 1 or 2
    request: int = 0  # number of the reply, or 0 for a load
    full: bool = False  # whether the chat does not fit the context


def least_tokens(text: str, token_bytes: int) -> int:
    """A lower bound of a text's tokens; 0 if ``token_bytes`` is 0, see ``LlamaModel.token_bytes``."""
    raw = text.encode("utf-8", "replace")
    spaces = sum(map(raw.count, _SPACES)) + len(_WRITTEN_SPACE) * raw.count(_WRITTEN_SPACE)
    return -(-(len(raw) - spaces) // token_bytes) if token_bytes else 0


def longer_context(n_ctx: int, longest: int) -> str:
    """What makes room for a text that does not fit, as part of a hint.

    Args:
        n_ctx: Size of the context in tokens.
        longest: The longest context that the model can have; 0 if unknown.
    """
    if longest and n_ctx >= longest:
        return "use a model with a longer context"
    return "load the model with a larger context (--context)"


def check_size(text: str, token_bytes: int, n_ctx: int, longest: int = 0) -> None:
    """Rejects a message that is too large, before it is stored, sent or tokenized.

    Args:
        text: The message.
        token_bytes: See ``LlamaModel.token_bytes``.
        n_ctx: Size of the context in tokens.
        longest: The longest context that the model can have; 0 if unknown.

    Raises:
        ContextFullError: If it cannot fit the context.
    """
    least = least_tokens(text, token_bytes)
    if least >= n_ctx:
        raise ContextFullError(
            f"this message cannot fit: it makes at least {least:,} tokens, but the context holds {n_ctx:,}.",
            f"Shorten it, send it in parts, or {longer_context(n_ctx, longest)}.",
        )


def check_reasoning(level: str, loaded: Loaded) -> None:
    """Raises ``UsageError`` if a model lacks a level of reasoning; the error lists the levels it has."""
    if level != AUTO_LEVEL and level not in loaded.reasoning:
        raise UsageError(f"{loaded.name} has no reasoning level {level}.", reasoning_levels(loaded.reasoning))


def reasoning_levels(levels: Collection[str]) -> str:
    """A sentence that lists the levels of a model."""
    return f"It has {', '.join(levels)}." if levels else "Its chat template has no switch for reasoning."


EngineEvent = Hello | Beat | Loading | Loaded | Counted | Prefilling | Stepped | Done | Failed
Frame = Load | Generate | Prepare | Stop | EndThoughts | Watch | Quit | EngineEvent


def failure_words(failed: Mapping[str, str]) -> list[str]:
    """A sentence for each failed drafter, without its full stop."""
    return [f"drafter {name} is left out of this chat: {why}" for name, why in failed.items()]
