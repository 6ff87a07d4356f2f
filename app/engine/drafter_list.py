"""The drafters of a loaded model, each made on first use."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from slipstream.app.engine.stopping import FixedRecord
from slipstream.app.protocol.events import DrafterOffer
from slipstream.app.protocol.requests import AUTO
from slipstream.drafters import registry
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.base import Drafter, Plain
from slipstream.drafters.combine import Continued
from slipstream.drafters.guard import Guard
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.resources import Resources
from slipstream.models.llama.target import Target

_ABOUT = "picks the fastest drafter, or none, at each step"


def check_drafter(name: str) -> None:
    if name != AUTO:
        registry.check_name(name)


class Drafters:
    """Makes each drafter on first use, and ``pilot``, the autopilot; a failing drafter fails no reply."""

    def __init__(
        self,
        resources: Resources,
        target: Target,
        plain_ms: float,
        profile: Profile,
        disabled: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """Makes no drafter yet; ``disabled`` returns the drafters that the autopilot must not use."""
        self._guard = resources.guard or Guard()
        self._resources = replace(resources, guard=self._guard)
        self._target, self._plain_ms, self._profile = target, plain_ms, profile
        self._disabled, self._disabled_before = disabled, frozenset[str]()
        self._made: dict[str, Drafter] = {}
        self._records = defaultdict[str, FixedRecord](FixedRecord)
        self._reported: set[str] = set()
        self.pilot: Autopilot | None = None

    def get(self, name: str, on_progress: Callable[[float], None] = lambda _share: None) -> Drafter:
        """Finds or makes a drafter.

        Args:
            on_progress: Called with the share done; the autopilot measures the machine on a model's first use.
        """
        if name != Plain.name:
            self._target.prepare_drafts()
        if name == AUTO:
            self._apply_disabled()
        if name not in self._made:
            make, abilities = partial(self._autopilot, on_progress), self._target.abilities
            of_auto = name == AUTO
            drafter = self._guard.made(name, make, abilities) if of_auto else registry.make(name, self._resources)
            self.put(name, drafter)
        return self._made[name]

    def put(self, name: str, drafter: Drafter) -> None:
        self._made[name] = drafter

    def offers(self) -> list[DrafterOffer]:
        reasons = {name: registry.why_not(name, self._resources) for name in registry.METHODS}
        methods = [DrafterOffer(name, not why, why, registry.METHODS[name].about) for name, why in reasons.items()]
        return [DrafterOffer(AUTO, True, about=_ABOUT), *methods]

    def record(self, name: str) -> FixedRecord:
        return self._records[name]

    def new_failures(self) -> dict[str, str]:
        """Maps each drafter that failed since the last call to the reason, worded as the end of a sentence."""
        fresh = {name: why for name, why in self._guard.failed.items() if name not in self._reported}
        self._reported.update(fresh)
        return fresh

    def close(self) -> None:
        """Saves what the autopilot has learned, and frees all drafters."""
        if self.pilot:
            self._profile.keep(self.pilot)
        for drafter in self._made.values():
            drafter.close()

    def _apply_disabled(self) -> None:
        """Closes the autopilot if other drafters are disabled now; the next one starts from its saved profile."""
        now = self._disabled()
        if now != self._disabled_before and self.pilot:
            self._profile.keep(self.pilot)
            self._made.pop(AUTO).close()
            self.pilot = None
        self._disabled_before = now

    def _autopilot(self, on_progress: Callable[[float], None]) -> Autopilot:
        wanted = [name for name, method in registry.METHODS.items() if method.auto]
        usable = [n for n in wanted if n not in self._disabled_before and not registry.why_not(n, self._resources)]
        made = {name: registry.make(name, self._resources) for name in usable}
        if copies := made.get(PromptLookup.name):
            behind = {name: Continued(made[name], copies, alone=False) for name in made if name != PromptLookup.name}
            made = {name: behind.get(name, drafter) for name, drafter in made.items()}
        working = {name: drafter for name, drafter in made.items() if not drafter.failed}
        self.pilot = self._profile.autopilot(working, self._target, self._plain_ms, on_progress)
        return self.pilot
