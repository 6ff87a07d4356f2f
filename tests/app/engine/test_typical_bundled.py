"""Typical acceptance on the bundled model: every drafter takes it, texts may change, and nothing else does."""

from collections.abc import Iterator

import pytest

from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done, Loaded
from slipstream.app.protocol.requests import Generate, Message, Sampling
from slipstream.models.errors import UsageError

PROMPTS = ["Tell me about the sea", "Tell me a story about a small fox.", "Write a list of ten animals."]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Loaded]]:
    home = tmp_path_factory.mktemp("home")
    session, loaded = load(choose(Paths.default({"SLIPSTREAM_HOME": str(home)})), lambda _: None)
    yield session, loaded
    session.close()


def reply(session: Session, drafter: str, prompt: str, typical: float | None, temperature: float = 1.5) -> Done:
    sampling = Sampling(temperature=temperature, seed=5, typical=typical)
    request = Generate(1, [Message("user", prompt)], sampling, drafter, max_tokens=40)
    return session.reply(request, lambda _: None, lambda: False)


def test_every_drafter_takes_it_and_plain_decoding_does_not_notice(bundled: tuple[Session, Loaded]) -> None:
    session, loaded = bundled
    changed = 0
    for prompt in PROMPTS:
        plain = reply(session, "none", prompt, None)
        assert reply(session, "none", prompt, 0.09).text == plain.text
        for name in [offer.name for offer in loaded.drafters if offer.usable]:
            done = reply(session, name, prompt, 0.02)
            assert done.speed.tokens > 5 and done.reason in ("stop", "length")
            changed += done.text != plain.text
            assert reply(session, name, prompt, None).text == plain.text  # the next reply is exact again
    assert changed > 0


def test_temperature_0_is_refused_and_the_session_lives_on(bundled: tuple[Session, Loaded]) -> None:
    session, _ = bundled
    with pytest.raises(UsageError, match="temperature 0"):
        reply(session, "lookup", PROMPTS[0], 0.09, 0.0)
    assert reply(session, "lookup", PROMPTS[0], None, 0.0).text
