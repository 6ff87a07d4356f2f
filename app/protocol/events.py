"""Messages from the engine's process: each is a frozen dataclass, see ``slipstream.app.engine.process.frames``.

The engine first sends ``Hello``; the client closes an engine of another version.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from slipstream.app.protocol.requests import EndThoughts, Generate, Load, Lora, Prepare, Quit, Stop, Watch
from slipstream.app.speed import Speed
from slipstream.models.chat_template import AUTO_LEVEL
from slipstream.models.errors import ContextFullError, UsageError

_SPACES: Final = (b" ", b"\t", b"\n", b"\r", b"\v", b"\f")
_WRITTEN_SPACE: Final = "\u2581".encode()
VERSION: Final = 7
TREE_ROOT: Final = -1  # parent of a tree's first nodes: the text so far
Origin = Literal["plain", "accepted", "recovered", "bonus"]
"""The origin of a piece of a reply: accepted from a drafter, or drawn by the target in one of three ways."""
Promise = Literal["same_text", "same_odds", "changed"]
"""What is kept of the target's text: the text itself for the same seed, the odds of each token, or neither
(typical acceptance)."""
PROMISES: Final[Mapping[str, str]] = {
    "same_text": "same text",
    "same_odds": "same odds",
    "changed": "text changed by typical acceptance",
}
Request = Load | Generate | Prepare | Stop | EndThoughts | Watch | Quit


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
    promise_why: str = ""  # why the same text is not promised, as the end of a sentence; empty if it is


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
    parents: list[int]  # per node, the index of its parent, smaller than its own; or ``TREE_ROOT``
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
    """The new text of a step in the reasoning or at its end; what may begin a mark is held back until it is certain."""

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
    check: float = 0.0  # cost of a pass that checks two tokens, in plain passes; 0 if there are none


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
    promise: Promise = "same_odds"  # of this reply
    # per drafter that the autopilot chose: steps, expected and actual tokens, and milliseconds
    auto: dict[str, dict[str, float]] = field(default_factory=dict)
    dropped_tokens: int = 0  # tokens of the ``dropped_messages``
    # drafters that failed since the last reply, by name, and the reason as the end of a sentence
    failed: dict[str, str] = field(default_factory=dict)
    # a drafter chosen by name that is silent after wrong drafts, and the reason as the end of a sentence
    silent: dict[str, str] = field(default_factory=dict)
    # what happened to the model's files or its drafter since the load, and the remedy; each is reported once
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
    """What makes room for a text, as part of a hint; ``longest`` is the model's longest context, 0 if unknown."""
    if longest and n_ctx >= longest:
        return "use a model with a longer context"
    return "load the model with a larger context (--context)"


def check_size(text: str, token_bytes: int, n_ctx: int, longest: int = 0) -> None:
    """Rejects a message that cannot fit the context, before it is stored, sent or tokenized; see ``least_tokens``."""
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
    return f"It has {', '.join(levels)}." if levels else "Its chat template has no switch for reasoning."


Frame = Hello | Beat | Loading | Loaded | Counted | Prefilling | Stepped | Done | Failed | Request


def failure_words(failed: Mapping[str, str]) -> list[str]:
    """A sentence for each failed drafter, without its full stop."""
    return [f"drafter {name} is left out of this chat: {why}" for name, why in failed.items()]
