"""The list of methods: what has to be in it, and what `auto` uses of it."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import pytest

from slipstream import drafters
from slipstream.app.engine.load import load
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.drafters import registry
from slipstream.drafters.base import Drafter, Plain
from slipstream.drafters.resources import Method, Resources


def test_every_file_with_a_method_is_listed() -> None:
    files = Path(next(iter(drafters.__path__))).glob("*.py")
    modules = [import_module(f"slipstream.drafters.{file.stem}") for file in files if file.stem != "__init__"]
    methods = {each.name: each for module in modules for each in vars(module).values() if isinstance(each, Method)}
    assert methods == dict(registry.METHODS)
    assert [name for name, method in methods.items() if not method.auto] == ["none"]


@pytest.mark.slow
@pytest.mark.parametrize("auto", [False, True])
def test_the_autopilot_uses_a_method_only_if_it_allows_that(auto: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Resources]()

    def make(resources: Resources) -> Drafter:
        made.append(resources)
        return Plain()

    method = Method("extra", make, auto=auto)
    monkeypatch.setattr(registry, "METHODS", MappingProxyType({**registry.METHODS, "extra": method}))
    session, loaded = load(replace(choose(Paths.default({})), derived=None, index=None), lambda _: None)
    session.drafters.get("auto")
    assert bool(made) == auto
    assert "extra" in [offer.name for offer in loaded.drafters if offer.usable]  # by name it can be had in any case
    session.close()
