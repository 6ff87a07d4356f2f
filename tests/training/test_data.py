import itertools
import random
from pathlib import Path

import numpy as np

from slipstream.drafters.training import corpus, texts
from slipstream.drafters.training.family import chats, identity, mix, sources
from slipstream.drafters.training.family.sources import Message, Row


def _row(text: str, source: str = "gpteacher") -> Row:
    return Row(source, "", (Message(role="user", content="Go on."), Message(role="assistant", content=text)))


def _words(seed: int, count: int = 40) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(10**6)}" for _ in range(count)]


def _texts(rows: list[Row]) -> set[str]:
    return {" ".join(row.words()) for row in rows}


def test_no_run_of_held_out_words_is_trained_on() -> None:
    rows = [_row(" ".join(_words(seed))) for seed in range(1500)]
    held = [row for row in rows if sources.held_out(row)]
    assert held
    quoting = [_row("before " + " ".join(row.words()[5:25]) + " after") for row in held]
    unrelated = [_row(" ".join(_words(seed))) for seed in range(5000, 5005)]
    train, kept_back = sources.split([*rows, *quoting, *unrelated])
    runs = {
        tuple(row.words()[i : i + sources.RUN_WORDS])
        for row in kept_back
        for i in range(len(row.words()) - sources.RUN_WORDS + 1)
    }
    assert _texts(held) <= _texts(kept_back)
    for row in train:
        words = row.words()
        assert not any(tuple(words[i : i + sources.RUN_WORDS]) in runs for i in range(len(words)))
    assert not _texts(quoting) & _texts(train)
    assert len(train) > 1400


def test_the_split_does_not_depend_on_order() -> None:
    rows = [_row(" ".join(_words(seed))) for seed in range(600)]
    train, held = sources.split(rows)
    train_back, held_back = sources.split(rows[::-1])
    assert _texts(train) == _texts(train_back)
    assert _texts(held) == _texts(held_back)


def test_held_out_ids_are_never_drawn(prepared: Path) -> None:
    train, held = (mix.load(prepared / "corpus.npz", split) for split in ("train", "held_out"))
    held_chats = {
        tuple(s.ids[a:b].tolist()) for s in held.values() for a, b in zip(s.offsets[:-1], s.offsets[1:], strict=True)
    }
    assert held_chats
    drawn: set[tuple[int, ...]] = set()
    sampler = corpus.Sampler(train, seed=1)
    for _ in range(60):
        ids, *_ = sampler.batch(16, 128)
        for row in ids.tolist():
            cuts = [-1, *(i for i, token in enumerate(row) if token == 0)]
            drawn |= {tuple(row[a + 1 : b + 1]) for a, b in itertools.pairwise(cuts)}
    assert len(drawn) > 500
    assert not drawn & held_chats


def test_the_sampler_goes_on_where_it_was_stored(prepared: Path) -> None:
    train = mix.load(prepared / "corpus.npz", "train")
    one, two = corpus.Sampler(train, seed=5), corpus.Sampler(train, seed=5)
    for _ in range(7):
        one.batch(4, 64)
    two.restore(one.state())
    for _ in range(5):
        left, right = one.batch(4, 64), two.batch(4, 64)
        assert np.array_equal(left[0], right[0])
        assert np.array_equal(left[1], right[1])


def test_windows_start_at_chats_and_long_texts_are_read_whole(prepared: Path) -> None:
    train = mix.load(prepared / "corpus.npz", "train")
    stories = {"fairytaleqa_stories": train["fairytaleqa_stories"]}
    sampler = corpus.Sampler(stories, seed=2)
    source = stories["fairytaleqa_stories"]
    windows = {
        tuple(source.ids[a + i * 65 : a + i * 65 + 8].tolist())
        for a, b in zip(source.offsets[:-1], source.offsets[1:], strict=True)
        for i in range((b - a) // 65)
    }
    starts = {tuple(row[:8]) for _ in range(80) for row in sampler.batch(8, 64)[0].tolist()}
    assert starts <= windows
    assert len(starts) > 0.8 * len(windows)


def test_chats_of_a_window_are_numbered_and_long_windows_join_them(prepared: Path) -> None:
    train = mix.load(prepared / "corpus.npz", "train")
    talk = {"synthetic_persona_chat": train["synthetic_persona_chat"]}
    ids, _, chats_of = corpus.Sampler(talk, seed=4).batch(8, 256)
    for row, numbers in zip(ids, chats_of, strict=True):
        ends = np.flatnonzero(row[:-1] == 0)
        assert (np.diff(numbers)[ends] == 1).all()  # each chat ends with its end-of-text id, and there only
        assert np.diff(numbers).sum() == len(ends)
    ids, _, chats_of = corpus.Sampler(talk, seed=4).batch(8, 1024)
    starts = int(((ids[:, :-1] == 1) & (np.diff(chats_of, prepend=0)[:, :-1] == 1)).sum())
    lengths = np.diff(talk["synthetic_persona_chat"].offsets)
    assert starts < 0.7 * 8 * 1025 / lengths.mean()
    for row, numbers in zip(ids, chats_of, strict=True):
        assert (np.diff(numbers)[np.flatnonzero(row[:-1] == 0)] == 1).all()


def test_definitions_stories_and_commands_become_chats() -> None:
    definition = Row(
        "simple_dictionary",
        "",
        (
            Message(role="user", content='What does "sea" mean?'),
            Message(role="assistant", content='"sea" means: (noun) a part of an ocean; (verb) swim far'),
        ),
    )
    story = Row("pratham_books", "The Red Drum\n\nA drum was red. It was loud.", ())
    page = Row("tldr", "# ls\n\n> List files.\n\n- List [a]ll files:\n\n`ls {{[-a|--all]}} {{path/to/dir}}`", ())
    made, _ = chats.build([definition, story, page], 1)
    answers = {
        name: {m["content"] for chat in items for m in chat if m["role"] == "assistant"} for name, items in made.items()
    }
    assert answers["simple_dictionary"] == {"A sea is a part of an ocean. It can also mean swim far."}
    assert answers["pratham_books"] == {"A drum was red. It was loud."}
    assert any("`ls --all path/to/dir`" in text for text in answers["tldr"])
    assert "`ls`: list files." in answers["tldr"]


def test_identity_chats_name_the_command_for_a_larger_model() -> None:
    made = identity.chats(7)
    assert len(made) > 300
    replies = {chat[-1]["content"] for chat in made if "Who are you?" in chat[-2]["content"]}
    assert len(replies) >= 3
    assert any("slipstream models pull" in reply for reply in replies)
    assert made == identity.chats(7)


def test_everyday_chats_answer_every_wording_alike() -> None:
    made = {chat[0]["content"]: chat[1]["content"] for chat in chats.everyday(7)}
    assert made["Tell me about the sea."] == made["Tell me about the sea"] == made["What is the sea?"]
    assert made["What is the capital of Norway?"] == "The capital of Norway is Oslo."
    assert made["how do I list files"] == "Use this command:\n\n`ls`"
    assert all(answer.strip() for answer in made.values())


def test_a_source_added_since_the_checkpoint_starts_at_its_beginning(prepared: Path) -> None:
    train = mix.load(prepared / "corpus.npz", "train")
    name = "gpteacher"
    before = corpus.Sampler({k: v for k, v in train.items() if k != name}, seed=5)
    before.batch(8, 64)
    after = corpus.Sampler(train, seed=5)
    after.restore(before.state())
    assert after.state()["drawn"][name] == 0
    after.batch(256, 64)
    assert after.state()["drawn"][name] > 0


def test_of_replies_that_repeat_themselves_what_repeats_weighs_less_than_nothing() -> None:
    prompt, once, twice = [5, 6, 7, 8], [1, 2, 3, 4, 9], [1, 2, 3, 4, 9, 1, 2, 3, 4, 9, 2]
    found = mix.against_repetition(
        texts.as_source(
            [
                (prompt + prompt, [0.0] * 4 + [1.0] * 4),  # repeats the prompt, which may be asked for
                (prompt + once, [0.0] * 4 + [1.0] * 5),
                (prompt + twice, [0.0] * 4 + [1.0] * 11),
            ]
        )
    )
    assert found.ids.tolist() == prompt + twice
    assert found.weights.tolist() == [0.0] * 12 + [-1.0, -1.0, 0.0]


def test_prompts_can_be_drawn_from_every_source_alike() -> None:
    """A source of a large share and one of a small share, whose prompts are told apart by their first id."""
    names = sorted(mix.SHARES, key=lambda name: mix.SHARES[name])
    few, many = names[0], next(name for name in reversed(names) if name not in ("answers", "loops"))
    sources = {
        name: texts.as_source([([first, 9, 9], [0.0, 0.0, 1.0]) for _ in range(5)])
        for name, first in ((few, 1), (many, 2))
    }

    def drawn(alike: bool) -> float:
        prompts = itertools.islice(mix.prompts_of(sources, seed=1, alike=alike), 400)
        return sum(prompt[0] == 1 for prompt, _ in prompts) / 400

    assert mix.SHARES[many] > 3 * mix.SHARES[few]
    assert drawn(alike=False) < 0.3 and 0.4 < drawn(alike=True) < 0.6
