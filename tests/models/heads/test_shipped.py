"""The heads that ship for a model that does not: whole, for one target, named in their card, and small."""

from pathlib import Path

from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.vocabulary import HEADS_ARCHITECTURE
from slipstream.models.heads.file import read_heads
from slipstream.models.heads.matching_heads import TARGET_KEY, TRAINED, method_of

FOLDER = Path(__file__).parents[3] / "models" / "bundled" / "smollm2-135m-instruct"


def test_heads_for_a_real_model_are_whole_and_for_one_target() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    targets, methods = set[object](), set[str]()
    for path in FOLDER.glob("*.gguf"):
        assert f"`{path.name}`" in card
        header = read_header(path)
        if header.architecture == HEADS_ARCHITECTURE:
            info = read_heads(path).info
            methods.add(info.method)
            targets.add(info.target)
        else:
            methods.add(method_of(header))
            targets.add(header.metadata[TARGET_KEY])
    assert methods == set(TRAINED) and len(targets) == 1
    tuned = read_heads(FOLDER / "space-tuned" / "adapter-masks.gguf").info
    assert tuned.method == "space" and {tuned.target} == targets
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.gguf")) < 45_000_000
