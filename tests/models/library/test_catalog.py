"""The catalogue: what ships, the owner's own entries, and mistakes in them."""

from pathlib import Path

import pytest

from slipstream.models.library.catalog import Catalog, CatalogFile, catalog, is_model


def own(tmp_path: Path, text: str) -> Catalog:
    file = tmp_path / "catalog.toml"
    file.write_text(text)
    return catalog(file)


def test_what_ships_is_whole_and_as_it_was_published() -> None:
    shipped = catalog()
    assert len(shipped.pairs) > 40 and not shipped.problem
    assert len({pair.id for pair in shipped.pairs}) == len(shipped.pairs)
    for pair in shipped.pairs:
        assert pair.family and pair.note and not pair.own
        assert pair.evidence in ("documentation", "catalogue", "reported", "suggested")
        assert pair.method in ("draft", "mtp", "eagle3", "dflash", "dspark", "lookup")
        assert pair.drafter or pair.first or pair.method in ("mtp", "lookup")
        assert not pair.target.file or pair.target.repo
    (pair,) = [pair for pair in catalog().of(["Qwen3 8B"]) if pair.method == "draft"]
    assert pair.target.repo == "Qwen/Qwen3-8B-GGUF" and pair.target.quant == "Q4_K_M"
    assert pair.target.size == 5_027_783_488 and len(pair.target.sha256) == 64
    assert pair.drafter and pair.drafter.params == 600_000_000


def test_an_entry_means_a_file_of_its_hash_and_has_the_size_of_its_name() -> None:
    assert CatalogFile("Qwen3-32B", file="Qwen_Qwen3-32B-Q4_K_M.gguf").about == pytest.approx(19.8e9, rel=0.05)
    assert CatalogFile("gemma-3-270m-it", file="gemma-3-270m-it-Q8_0.gguf").params == 270_000_000
    assert CatalogFile("Qwen3-4B", size=7).about == 7
    assert CatalogFile("gemma-4-E2B-it").params == 0 and CatalogFile("Laguna-S-2.1", file="x-Q8_0.gguf").about == 0
    assert is_model(CatalogFile("Qwen3-8B", sha256="a" * 64), ["my model"], "a" * 64)
    assert not is_model(CatalogFile("Qwen3-8B", sha256="a" * 64), ["my model"], "b" * 64)
    assert not is_model(CatalogFile("Qwen3-8B"), ["my model"], None)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("Qwen3-8B", True), ("qwen3-8b", True), ("Qwen_Qwen3-8B-Q5_K_M", True), ("unsloth/Qwen3-8B-GGUF", True),
        ("Qwen3 8B Instruct", True), ("Qwen3-8B-Base", False), ("DeepSeek-R1-0528-Qwen3-8B", False),
        ("Qwen3-0.8B", False), ("Qwen3.5-8B", False), ("", False),
    ],
)  # fmt: skip
def test_an_entry_means_a_model_of_its_name_from_any_publisher(name: str, same: bool) -> None:
    assert is_model(CatalogFile("Qwen3-8B"), [name]) == same


def test_the_owners_entries_come_first_and_may_say_how_a_family_is_sampled(tmp_path: Path) -> None:
    text = '[[pair]]\nmethod = "draft"\nlicence = "MIT"\ntarget = {model = "Big"}\ndrafter = {model = "Small"}\n'
    found = own(tmp_path, text)
    assert found.pairs[0].own and found.pairs[0].id == "big+small" and found.pairs[0].licence == "MIT"
    assert len(found.pairs) == len(catalog().pairs) + 1 and not found.problem
    assert catalog(tmp_path / "none.toml") == catalog()
    found = own(tmp_path, '[[sampling]]\nfamily = "gemma-3"\ntemperature = 0.5\n')
    assert not found.problem and found.sampling(["gemma-3-4b-it"]) == {"temperature": 0.5}


GOOD = '[[pair]]\nmethod = "draft"\ntarget = { model = "A" }\ndrafter = { model = "B" }\n\n'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD + "[[pair]\n", 6, "no TOML file"),
        (GOOD + '[[pair]]\nmethod = "draft"\ntarget = { model = "A", size = 3 }\n', 8, "no 'size'; known are"),
        (GOOD + '[[pair]]\nmethod = "mtp"\nspeed = 3\ntarget = { model = "A" }\n', 8, "no 'speed'"),
        (GOOD + '[[pair]]\nmethod = 3\ntarget = { model = "A" }\n', 7, "method is not a text"),
        (GOOD + '[[pair]]\n\ntarget = { model = "A" }\n', 6, "needs a method"),
        (GOOD + '[[pair]]\nmethod = "mtp"\n', 6, "needs a target"),
        (GOOD + '[[pair]]\nmethod = "draft"\ntarget = { model = "A" }\n', 7, "needs a drafter"),
        (GOOD + '[[pair]]\nmethod = "mtp"\ntarget = "A"\n', 8, "target is not a table"),
        (GOOD + '[[pair]]\nmethod = "mtp"\ntarget = { repo = "a/b" }\n', 8, "target needs a model"),
        (GOOD + '[[pair]]\nmethod = "mtp"\ntarget = { model = "A", repo = "b" }\n', 8, "not owner/name"),
        (GOOD + '[[pair]]\nmethod = "mtp"\ntarget.model = "A"\ntarget.sha256 = "x"\n', 9, "64 hexadecimal"),
        (GOOD + '[[pair]]\nmethod = "mtp"\ntarget.model = "A"\ntarget.bytes = true\n', 9, "number of bytes"),
        ("pair = 3\n", 1, "written as [[pair]]"),
        ("\nspeed = 3\n" + GOOD, 2, "no 'speed' in a catalogue"),
    ],
)
def test_a_mistake_in_the_owners_file_is_told_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    found = own(tmp_path, text)
    assert f"line {line}" in found.problem and words in found.problem and "catalog.toml" in found.problem
    assert found.pairs[-1] == catalog().pairs[-1]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[[sampling]]\ntemperature = 1\n", 1, "needs a family"),
        ('[[sampling]]\nfamily = "x"\ntemperature = "hot"\n', 3, "temperature is not a number"),
        ('[[sampling]]\nfamily = "x"\nwarmth = 1\n', 3, "there is no 'warmth'"),
        ("sampling = 1\n", 1, "samplings are written as [[sampling]]"),
    ],
)
def test_a_mistake_in_how_a_family_is_sampled_is_told(tmp_path: Path, text: str, line: int, words: str) -> None:
    found = own(tmp_path, text)
    assert f"line {line}: " in found.problem and words in found.problem
