"""The errors that the user can see: what failed and why, and what to try next."""

from collections.abc import Iterable
from typing import Final

_NEAR: Final = 0.8  # least similarity of a suggestion: "nope" is no slip of "none" (0.75), "lokup" is one of "lookup"


class SlipstreamError(Exception):
    """An error with a message for the user.

    Functions that read or write files also raise it for disk errors; docstrings list only other reasons.

    Attributes:
        title: What failed and why, in one line.
        hint: The next thing to try, in one line; may be empty.
        code: Exit code of a command that fails with it: 1 for a failure, 2 for wrong usage.
    """

    code = 1

    def __init__(self, title: str, hint: str = "") -> None:
        super().__init__(f"{title} {hint}".strip())
        self.title, self.hint = title, hint


class UsageError(SlipstreamError):
    """A wrong argument or input: repeating the command unchanged fails again."""

    code = 2


class ModelFileError(SlipstreamError):
    """A model file that is missing, damaged, unsupported or not a model at all."""


class NotANumberError(SlipstreamError):
    """A row of logits without a single finite number."""


class EvaluationError(SlipstreamError):
    """llama.cpp could not evaluate a batch: the device failed."""


class ModelChangedError(ModelFileError):
    """A model file that was written to while it was mapped: its weights in memory may have changed."""


class ContextFullError(SlipstreamError):
    """A prompt that does not fit the context."""


class EngineDiedError(SlipstreamError):
    """The engine's process ended unexpectedly."""


class HubError(SlipstreamError):
    """The model hub could not be reached, or refused, or sent an unexpected answer."""


class OfflineError(HubError):
    """Something needs the network while offline mode is on; raised before anything is sent."""


class DownloadError(SlipstreamError):
    """A download that ended without its file; the fetched part is kept unless the message says otherwise."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that suggests the known word that is nearest to a misspelt one; empty if none is near.

    Letters in another order are near, also at the beginning of a word: "eagel" means "eagle3".
    """
    from difflib import get_close_matches  # seldom needed

    typed, names = word.casefold(), list(known)
    swapped = [name for name in names if len(typed) > 2 and sorted(name[: len(typed)]) == sorted(typed)]
    near = swapped or get_close_matches(typed, names, 1, _NEAR)
    return f"Did you mean {near[0]}?" if near else ""


def reason_of(error: Exception) -> str:
    """The system's reason, or all that a library says, as the end of a title, such as "permission denied"."""
    reason = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    return reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]


def unstartable(what: str, error: OSError) -> SlipstreamError:
    """The error for a process that the system cannot start; ``what`` begins its title: "the engine's process"."""
    return SlipstreamError(f"{what} cannot be started: {reason_of(error)}.", "Close other programs and try again.")
