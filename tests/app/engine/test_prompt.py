"""From messages to tokens: what leaves where they do not fit, and what a model thought."""

import threading
from dataclasses import replace

import pytest

from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.protocol.requests import Message
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import ContextFullError

N_CTX = 1024
ROOM = 768
DEEPSEEK = (
    "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' and '</think>' in c %}"
    "{% set c = c.split('</think>')[-1] %}{% endif %}<{{ m.role }}>{{ c }}{% endfor %}<assistant><think>"
)


def letters(text: str, special: bool, written: object = (), *, joins: bool = False) -> list[int]:
    return [ord(char) for char in text]


def builder(template: str = "", longest: int = 0) -> PromptBuilder:
    return PromptBuilder(ChatTemplate(template) if template else ChatTemplate(CHATML), letters, [], longest=longest)


def text_of(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def chat(turns: int, size: int, system: str = "") -> list[Message]:
    said = [Message("system", system)] if system else []
    for turn in range(turns):
        said += [Message("user", f"{turn:03d}".ljust(size, "q")), Message("assistant", f"{turn:03d}".ljust(size, "a"))]
    return [*said, Message("user", "And now?")]


def test_the_oldest_turns_leave_together_so_that_the_next_prompts_begin_as_this_one() -> None:
    beginnings, before = [], 0
    for turns in range(1, 60):
        messages = chat(turns, 30, "Be kind.")
        prompt = builder().build(messages, N_CTX)
        assert len(prompt.tokens) == prompt.size <= ROOM
        assert "Be kind." in text_of(prompt.tokens) and "And now?" in text_of(prompt.tokens)
        assert prompt.dropped >= before and prompt.dropped % 2 == 0
        whole = text_of(builder().build(messages, 1 << 20).tokens)
        assert prompt.trimmed + prompt.size == len(whole)
        assert text_of(prompt.tokens)[: prompt.system] == whole[: prompt.system]
        ahead = builder().beginning(messages, N_CTX)
        assert all(getattr(ahead, name) == getattr(prompt, name) for name in ("size", "dropped", "trimmed", "system"))
        assert prompt.tokens[: len(ahead.tokens)] == ahead.tokens
        beginnings.append(prompt.dropped)
        before = prompt.dropped
    full = [dropped for dropped in beginnings if dropped]
    assert len(full) > 40
    assert 8 < len(set(full)) < len(full) / 2  # the cache is met again, two times of three at least


def test_no_long_turn_leaves_where_a_short_one_does_and_none_is_counted_without_its_word() -> None:
    messages = [
        Message("user", "short".ljust(60)),
        Message("assistant", "yes".ljust(60)),
        Message("user", "The document: ".ljust(500, "d")),
        Message("assistant", "Read."),
        Message("user", "What does it say?"),
    ]
    prompt = builder().build(messages, N_CTX - 100)
    assert prompt.dropped == 2 and "The document" in text_of(prompt.tokens)
    chat_so_far = chat(2, 30)
    empty = builder().beginning([*chat_so_far[:-1], Message("user", "")], N_CTX)
    asked = builder().beginning(chat_so_far, N_CTX)
    assert asked.size - empty.size == len("And now?")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([Message("user", "x" * 2000)], ["this message alone", "1,024", "Shorten it by 1,0"]),
        ([Message("system", "x" * 2000), Message("user", "Hi")], ["the system prompt alone", "1,024"]),
        ([Message("user", "Hi"), Message("assistant", "x" * 1020)], ["the reply and its question", "1,024"]),
    ],
)
def test_what_can_never_fit_is_named_with_what_to_do(messages: list[Message], words: list[str]) -> None:
    with pytest.raises(ContextFullError) as refused:
        builder().build(messages, N_CTX)
    said = f"{refused.value.title} {refused.value.hint}"
    assert all(word in said for word in [*words, "--context"] if word), said
    with pytest.raises(ContextFullError) as longest:
        builder(longest=N_CTX).build(messages, N_CTX)
    assert longest.value.title == refused.value.title
    assert "--context" not in longest.value.hint and "use a model with a longer context" in longest.value.hint
    with pytest.raises(ContextFullError, match="--context"):
        builder(longest=2 * N_CTX).build(messages, N_CTX)


def test_old_thoughts_leave_and_a_template_of_channels_gets_answers_alone() -> None:
    messages = [Message("user", "Hi"), Message("assistant", "Well.</think>Hello.", [1, 2]), Message("user", "So?")]
    prompt = builder(DEEPSEEK).build(messages, N_CTX)
    assert prompt.thinks and text_of(prompt.tokens) == "<user>Hi<assistant>Hello.<user>So?<assistant><think>"
    assert not builder().build(messages, N_CTX).thinks
    reply = "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Hello."
    messages = [Message("user", "Hi"), Message("assistant", reply, [1, 2, 3]), Message("user", "So?")]
    assert "assistant\nHello.<|im_end|>" in text_of(builder().build(messages, N_CTX).tokens)
    goes_on = builder().build(messages[:2], N_CTX)  # the reply itself stays as it is
    assert goes_on.tokens[-3:] == [1, 2, 3]
    messages = [Message("user", "Hi"), Message("assistant", "Close it with </think>."), Message("user", "So?")]
    assert "Close it with </think>." in text_of(builder().build(messages, N_CTX).tokens)
    cut_short = [Message("user", "Hi"), Message("assistant", "<think>\nWell"), Message("user", "So?")]
    assert "<think>\nWell" in text_of(builder().build(cut_short, N_CTX).tokens)


def test_a_long_prompt_is_left_at_once_and_the_next_waits_for_its_end() -> None:
    go, begun, made = threading.Event(), threading.Event(), builder()

    def slow(text: str, special: bool, written: object = (), *, joins: bool = False) -> list[int]:
        begun.set()
        assert go.wait(60)
        return letters(text, special)

    stuck = PromptBuilder(ChatTemplate(CHATML), slow, [])
    long = chat(40, 2000)
    size = sum(len(message.content) for message in long)
    assert stuck.unless(begun.is_set, size, lambda: stuck.build(long, N_CTX)) is None
    threading.Timer(0.1, go.set).start()
    short = stuck.unless(lambda: False, 8, lambda: stuck.build(chat(0, 0), N_CTX))
    assert short == made.build(chat(0, 0), N_CTX)
    assert stuck.unless(lambda: False, size, lambda: stuck.build(long, N_CTX)) == made.build(long, N_CTX)
    stuck.close()


def test_what_a_long_prompt_raises_is_raised() -> None:
    made, long = builder(), [Message("user", "x" * 60_000)]
    with pytest.raises(ContextFullError):
        made.unless(lambda: False, 60_000, lambda: made.build(long, N_CTX))
    made.close()


def test_a_level_of_reasoning_goes_to_the_template() -> None:
    qwen = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
    )
    messages = [Message("user", "Hi")]
    made = builder(qwen)
    assert list(made.reasoning.switches) == ["off", "on"]
    for level, ending, thinks in (
        ("auto", "<think>", "</think>"),
        ("off", "<think></think>", ""),
        ("high", "<think>", "</think>"),
    ):
        prompt = made.build(messages, N_CTX, level)
        assert text_of(prompt.tokens) == f"<user>Hi<assistant>{ending}" and prompt.thinks == thinks
        beginning = made.beginning(messages, N_CTX, level)
        assert text_of(prompt.tokens).startswith(text_of(beginning.tokens))
    long = made.build(chat(30, 40), N_CTX, "off")
    assert long.dropped and text_of(long.tokens).endswith("<think></think>")


def test_a_word_switches_a_template_that_has_no_variable() -> None:
    nemotron = (
        "{% set ns = namespace(on=true) %}{% for m in messages %}{% if '/no_think' in m.content %}"
        "{% set ns.on = false %}{% endif %}<{{ m.role }}>{{ m.content.replace('/no_think', '').strip() }}{% endfor %}"
        "<assistant>{{ '<think>' if ns.on else '<think></think>' }}"
    )
    made, messages = builder(nemotron), [Message("user", "Hi")]
    assert text_of(made.build(messages, N_CTX).tokens) == "<user>Hi<assistant><think>"
    assert text_of(made.build(messages, N_CTX, "off").tokens) == "<user>Hi<assistant><think></think>"
    typed = [Message("user", "Hi /no_think")]
    assert text_of(made.build(typed, N_CTX).tokens) == "<user>Hi<assistant><think></think>"


@pytest.mark.parametrize(
    ("template", "kept"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>", False),
        (
            "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}"
            "{{ m.content }}{% endfor %}<assistant>",
            True,
        ),
    ],
)
@pytest.mark.parametrize("said", ["<think>\nWell.\n</think>\n\nHello.", "[THINK]Well.[/THINK]Hello."])
def test_a_template_without_marks_gets_the_thoughts_apart(template: str, kept: bool, said: str) -> None:
    messages = [Message("user", "Hi"), Message("assistant", said, [1, 2]), Message("user", "So?")]
    thoughts = "[Well.]" if kept else ""
    text = text_of(builder(template).build(messages, N_CTX).tokens)
    assert text == f"<user>Hi<assistant>{thoughts}Hello.<user>So?<assistant>"


@pytest.mark.parametrize("ids", [[1 << 21], [-1], [5, 1 << 30], [0x110000]])
@pytest.mark.parametrize("last", [True, False])
def test_ids_beyond_the_vocabulary_are_not_those_of_a_reply(ids: list[int], last: bool) -> None:
    prompts = PromptBuilder(ChatTemplate(CHATML), letters, [], n_vocab=0x110000 - 1)
    chat = [Message("user", "Hi"), Message("assistant", "Hello", ids), *([] if last else [Message("user", "And?")])]
    clean = [replace(message, tokens=[]) for message in chat]
    assert prompts.build(chat, N_CTX).tokens == prompts.build(clean, N_CTX).tokens
