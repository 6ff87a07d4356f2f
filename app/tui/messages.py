"""What the engine's thread tells the screen."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from slipstream.app.engine.protocol import Counted, Done, Loaded, Prefilling, Stepped
from slipstream.models.errors import SlipstreamError


@dataclass
class LoadProgress(Message):
    """A model is being loaded: ``share`` of it, 0 to 1; None while its file is checked before its first use."""

    share: float | None

    @property
    def words(self) -> str:
        """What is being done, and how far it is."""
        if self.share is None:
            return "checking the file"
        return f"{'measuring this machine' if self.share >= 0.9 else 'loading the model'} {100 * self.share:.0f} %"


@dataclass
class ModelReady(Message):
    """A model is loaded."""

    loaded: Loaded


@dataclass
class LoadFailed(Message):
    """A model could not be loaded."""

    error: SlipstreamError


@dataclass
class PromptCounted(Message):
    """What the chat takes of the context with what is typed so far."""

    counted: Counted


@dataclass
class ReplyPrefilling(Message):
    """The prompt is being read."""

    event: Prefilling


@dataclass
class ReplyStreamed(Message):
    """New text; several steps if they come faster than a screen is drawn.

    Attributes:
        steps: The steps.
        waited_ms: Milliseconds from Enter to the first token of the reply.
    """

    steps: list[Stepped]
    waited_ms: float


@dataclass
class ReplyDone(Message):
    """A reply is over."""

    done: Done


@dataclass
class ReplyFailed(Message):
    """A reply ended with an error.

    Attributes:
        error: What to show.
        begun: Whether some of the reply had come.
        died: Whether the engine has to be started again.
    """

    error: SlipstreamError
    begun: bool
    died: bool


@dataclass
class EngineEnded(Message):
    """The engine's process ended while nothing was asked of it."""

    error: SlipstreamError
