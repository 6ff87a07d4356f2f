"""Messages to the engine's process: each is a frozen dataclass, see ``slipstream.app.engine.process.frames``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from math import nan
from time import perf_counter
from typing import Any, Final, Literal

from slipstream.drafters.autopilot import AUTO as AUTO
from slipstream.models.chat_template import AUTO_LEVEL
from slipstream.models.errors import UsageError
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
Exact = Literal["auto", "always", "never"]
EXACT: Final[tuple[Exact, ...]] = ("auto", "always", "never")
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

    def shares(self) -> list[float]:
        """Reads ``tensor_split``."""
        try:
            return [decimal_number(part) for part in self.tensor_split.split(",") if part.strip()]
        except ValueError as error:
            title = f"tensor-split is {quoted(self.tensor_split)}: {error}."
            raise UsageError(title, "Write it as in 3,1.") from error


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA adapter that changes a model."""

    path: str  # its GGUF
    scale: float = 1.0  # how strongly it changes the model
    settled: bool = False  # whether it comes from the settings, not the command line

    @classmethod
    def read(cls, text: str) -> Lora:
        """Reads ``FILE`` or ``FILE:SCALE``; raises ``UsageError`` if what follows the last colon is no scale."""
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
        name = os.path.basename(self.path).removesuffix(".gguf")
        return name if self.scale == 1 else f"{name} \u00d7{self.scale:g}"


@dataclass(frozen=True, slots=True)
class ModelExtras:
    """What the store of another program adds to a model's file."""

    adapters: list[str] = field(default_factory=list)  # paths of LoRA adapters, at full strength
    system: str = ""  # the system prompt of chats without one
    template: str = ""  # of Ollama, used if the file has none
    stop: list[str] = field(default_factory=list)  # texts that end a reply
    sampling: dict[str, float] = field(default_factory=dict)  # recommended values, by field of ``Sampling``
    n_ctx: int = 0  # context in tokens, unless the user chooses another; 0 for the model's own
    max_tokens: int = 0  # most tokens of a reply without another limit; 0 for no limit
    seed: int | None = None  # of replies whose seed nothing else sets


@dataclass(frozen=True, slots=True)
class Load:
    """Loads a target and its drafters."""

    model: str  # path of the target's GGUF
    draft_model: str | None = None  # path of the draft model's GGUF, or None
    # paths of files of trained heads; those for another model are skipped
    heads: list[str] = field(default_factory=list)
    derived: str | None = None  # folder of files derived from the model, or None to keep none
    drafter: str = "none"  # the drafter that must be usable, by its name; a mismatch is an error
    n_ctx: int = 0  # context in tokens, or 0 for the model's own (at most ``DEFAULT_CONTEXT``)
    # whether to decode so that the same seed gives the same text, bit for bit (quantized KV cache with flash attention,
    # cells kept in order): "auto" where that is proven and costs next to nothing
    exact: Exact = "auto"
    bundled: bool = False  # whether it ships with Slipstream; "auto" is "always" for it
    proofs: str | None = None  # folder that keeps what was proven of the model's exactness; None to keep nothing
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
    extras: ModelExtras = field(default_factory=ModelExtras)

    @property
    def adapters(self) -> list[Lora]:
        """All adapters of the target: those of its store, then those that were chosen."""
        return [*map(Lora, self.extras.adapters), *self.lora]

    @property
    def wants_exact(self) -> Exact:
        return "always" if self.bundled and self.exact == "auto" else self.exact


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
    """Prefills a prompt that is still being typed; the next request ends it. An idle engine answers ``Counted``."""

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
