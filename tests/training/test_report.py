from pathlib import Path

from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.drafters.training.family import prompt_sets, report


def test_every_development_prompt_is_answered_and_repetitions_are_counted() -> None:
    said, repeated = report.answers(Path(choose(Paths.default()).model))
    heads = [line for line in said.splitlines() if line.startswith("**")]
    assert heads == [f"**{prompt}** ({kind})" for kind, prompt in prompt_sets.development()]
    assert said.count("\n> ") >= 40
    assert 0 < repeated < 0.9
