"""Files of prompts, as people and the usual benchmarks write them."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from slipstream.app.bench.prompts import BUILT_IN, BenchPrompt, asked, evenly, prompt_sets
from slipstream.app.protocol.requests import Message
from slipstream.models.errors import SlipstreamError, UsageError


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (
            {"question_id": 81, "category": "writing", "turns": ["Write a post.", "Rewrite."]},
            ["Write a post.", "Rewrite."],
        ),
        ({"question_id": 161, "category": "translation", "turns": ["Translate."], "reference": ["x"]}, ["Translate."]),
        ({"turns": "one turn alone"}, ["one turn alone"]),
        ({"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"}, ["def f():\n"]),
        ({"question": "How many eggs?", "answer": "18"}, ["How many eggs?"]),
        ({"text": "Translate: ho là"}, ["Translate: ho là"]),
        ({"prompt": "", "question": "the one with words"}, ["the one with words"]),
    ],
)
def test_the_layouts_of_the_usual_benchmarks(tmp_path: Path, row: dict[str, object], texts: list[str]) -> None:
    (found,) = prompt_sets([write(tmp_path / "a.jsonl", row)], 0)
    (prompt,) = found.prompts
    assert (prompt.messages, prompt.later) == (asked(*texts).messages, asked(*texts).later)
    assert prompt.category == row.get("category", "")
    assert found.prompts[0].turns == len(texts)


def test_categories_are_sets_of_their_own_where_that_is_asked_for(tmp_path: Path) -> None:
    kinds = ["writing", "qa", "writing", "", "qa", "qa"]
    file = write(tmp_path / "q.jsonl", *({"turns": [str(at)], "category": kind} for at, kind in enumerate(kinds)))
    (whole,) = prompt_sets([file], 0)
    assert len(whole.prompts) == 6
    sets = prompt_sets([file, "chat"], 2, by_category=True)
    name = f"{tmp_path.name}/q"
    assert [kind.name for kind in sets] == [f"{name} writing", f"{name} qa", name, "chat"]
    assert [[prompt.messages[0].content for prompt in kind.prompts] for kind in sets[:3]] == [
        ["0", "2"],
        ["1", "4"],
        ["3"],
    ]


def test_the_next_turn_is_asked_after_the_reply() -> None:
    prompt = asked("One?", "Two?", "Three?")
    second = prompt.after(Message("assistant", "1", [7]))
    assert second.messages == (Message("user", "One?"), Message("assistant", "1", [7]), Message("user", "Two?"))
    assert (prompt.turns, second.turns, second.after(Message("assistant", "2")).turns) == (3, 2, 1)


def test_messages_end_with_the_users_last(tmp_path: Path) -> None:
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Go on"), ("assistant", "No")]
    row = {"messages": [{"role": role, "content": content} for role, content in said]}
    (found,) = prompt_sets([write(tmp_path / "a.jsonl", row)], 0)
    assert found.prompts == (BenchPrompt(tuple(Message(role, content) for role, content in said[:4])),)


def test_lines_of_text_are_prompts_chosen_evenly(tmp_path: Path) -> None:
    file = tmp_path / "my.txt"
    file.write_bytes("\ufeffone\r\n\n  two \nthree".encode())
    assert prompt_sets([str(file)], 0)[0].prompts == (asked("one"), asked("two"), asked("three"))
    prompts = [asked(str(number)) for number in range(10)]
    assert [prompt.messages[0].content for prompt in evenly(prompts, 4)] == ["0", "2", "5", "7"]
    assert evenly(prompts, 1) == (prompts[0],)
    assert evenly(prompts, 0) == evenly(prompts, 10) == evenly(prompts, 99) == tuple(prompts)


@pytest.mark.parametrize(("ending", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_packed_files_are_read_and_damaged_ones_refused(tmp_path: Path, ending: str, pack) -> None:  # type: ignore[no-untyped-def]
    raw = pack(b'{"question": "How many?"}\n' * 50)
    file = tmp_path / f"test.jsonl{ending}"
    file.write_bytes(raw)
    assert len(prompt_sets([str(file)], 0)[0].prompts) == 50
    for damaged in (raw[: len(raw) // 2], b"not packed at all", raw[:12] + b"\xff\xff\xff" + raw[15:]):
        file.write_bytes(damaged)
        with pytest.raises(SlipstreamError, match="damaged or cut short"):
            prompt_sets([str(file)], 0)


def test_sets_are_named_by_folder_and_file_and_told_apart(tmp_path: Path) -> None:
    files = []
    for folder, name in (("gsm8k", "test.jsonl.xz"), ("mt_bench", "question.jsonl"), ("other", "test.txt")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / name
        raw = b"hi\n" if name.endswith("txt") else b'{"text": "hi"}\n'
        file.write_bytes(lzma.compress(raw) if name.endswith("xz") else raw)
        files.append(str(file))
    assert [found.name for found in prompt_sets(files, 0)] == ["gsm8k/test", "mt_bench/question", "other/test"]
    files = []
    for folder in ("a", "b"):
        (tmp_path / folder / "x").mkdir(parents=True)
        files.append(write(tmp_path / folder / "x" / "test.jsonl", {"text": folder}))
    assert [found.name for found in prompt_sets(files, 0)] == files
    with pytest.raises(UsageError, match="given 2 times"):
        prompt_sets([files[0], files[0]], 0)


def test_built_in_sets_are_taken_by_name_beside_files_or_all(tmp_path: Path) -> None:
    file = write(tmp_path / "copy.jsonl", {"text": "hi"})
    mine, copy = prompt_sets([file, "copy"], 0)
    assert (mine.name, copy.name) == (f"{tmp_path.name}/copy", "copy")
    with pytest.raises(UsageError, match="given 2 times"):
        prompt_sets(["copy", "copy"], 0)
    sets = prompt_sets([], 0)
    assert [kind.name for kind in sets] == [*BUILT_IN] == ["chat", "story", "copy"]
    assert all(len(kind.prompts) >= 12 for kind in sets)
    assert all(any(prompt.later for prompt in kind.prompts) for kind in sets)
    assert [len(kind.prompts) for kind in prompt_sets([], 3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.csv", b"x", "no file of prompts"),
        ("a.txt", b"\n \n", "is empty"),
        ("a.txt", b"ok\xff", "not UTF-8"),
        ("a.jsonl", b'{"text": "hi"}\n{"text"\n', "line 2: not JSON"),
        ("a.jsonl", b'["hi"]\n', "line 1: no prompt"),
        ("a.jsonl", b'{"answer": "18"}\n', "line 1: no prompt"),
        ("a.jsonl", b'{"prompt": 18}\n', "prompt holds no text"),
        ("a.jsonl", b'{"turns": [3]}\n', "turns holds no text"),
        ("a.jsonl", b'{"turns": ["hi", " "]}\n', "turns holds no text"),
        ("a.jsonl", b'{"messages": "hi"}\n', "without role and content"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', "without role and content"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": 3}]}\n', "no chat"),
        ("a.jsonl", b'{"messages": [{"role": "assistant", "content": "x"}]}\n', "no chat"),
    ],
)
def test_a_file_that_holds_no_prompts_is_one_clear_error(tmp_path: Path, name: str, raw: bytes, words: str) -> None:
    file = tmp_path / name
    file.write_bytes(raw)
    with pytest.raises(UsageError, match=words):
        prompt_sets([str(file)], 0)


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    for name, words in (("missing.txt", "no such file"), ("folder.txt", "is a directory")):
        with pytest.raises(SlipstreamError, match=words):
            prompt_sets([str(tmp_path / name)], 0)
