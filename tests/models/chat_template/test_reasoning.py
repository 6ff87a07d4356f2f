"""The reasoning switches of real families: found by rendering, and each of them rendered."""

from pathlib import Path
from typing import Final

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.models.chat_template.test_template import POPULAR, joined

from slipstream.models.chat_template import CLOSING, LEVELS
from slipstream.models.chat_template.reasoning import Reasoning, keeps_thoughts, reasoning_of, with_word
from slipstream.models.chat_template.sandbox import GenerationTag
from slipstream.models.chat_template.template import ChatTemplate

FAMILIES: Final = Path(__file__).with_name("families")
TURN: Final = "{%- for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}<assistant>"
OWN: Final = {  # as these families switch, without the rest of their templates
    "gemma-4": "{% if enable_thinking | default(false) %}{{ '<system><|think|>' }}{% endif %}"
    + TURN
    + "{% if not enable_thinking | default(false) %}{{ '<|channel>thought\n<channel|>' }}{% endif %}",
    "glm-4.6": "{% set off = enable_thinking is defined and not enable_thinking %}{% for m in messages %}"
    "{{ '<|' + m.role + '|>\n' + (m.content.split('</think>')[-1] if m.role == 'assistant' else m.content) }}"
    "{{ '/nothink' if m.role == 'user' and off and not m.content.endswith('/nothink') }}{% endfor %}<|assistant|>"
    "{{ '\n<think></think>' if off }}",
    "granite-3.3": "{% if messages[0].role != 'system' %}{{ '<system>Be helpful.' }}"
    "{{ ' Think aloud first.' if thinking }}{% endif %}" + TURN,
    "qwen3.5": TURN + "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
    "{% else %}{{ '<think>\n' }}{% endif %}",
    "minicpm5": TURN + "{% if enable_thinking is defined %}{% if enable_thinking %}{{ '<think>\n' }}"
    "{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    "deepseek-v4": "{% set t = thinking | default(enable_thinking | default(false)) %}"
    "{% if t and reasoning_effort is defined and reasoning_effort == 'max' %}{{ 'Think to the end.' }}{% endif %}"
    + TURN
    + "{{ '<think>' if t else '</think>' }}",
    "solar": "{% if reasoning_effort | default('high') in ['low', 'minimal'] %}{{ '<briefly>' }}{% endif %}" + TURN,
    "hunyuan-3": "{% set e = reasoning_effort | default('no_think') %}{% if e not in ['high', 'low', 'no_think'] %}"
    "{{ raise_exception('reasoning_effort error: ' + e) }}{% endif %}{{ '<effort ' + e + '>' }}"
    + TURN
    + "{{ '<think:opensource>' + ('</think:opensource>' if e == 'no_think' else '') }}",
    "kimi-k3": "{% set thinking = thinking | default(true) %}{% set e = thinking_effort | default('max') %}"
    "{% if thinking and e not in ['low', 'high', 'max'] %}{{ raise_exception('Unsupported') }}{% endif %}"
    "{% if thinking %}{{ '<effort ' + e + '>' }}{% endif %}" + TURN + "{{ '<response>' if not thinking }}",
    "minimax-m3": "{% if thinking_mode is defined %}{% for mode in ['enabled', 'disabled', 'adaptive'] %}"
    "{{ '<' + mode + '>' if mode == thinking_mode }}{% endfor %}{% else %}{{ '<adaptive>' }}{% endif %}"
    + TURN
    + "{{ '<mm:think>' if thinking_mode == 'enabled' else '</mm:think>' if thinking_mode == 'disabled' }}",
    "command": TURN + "{{ '<|START_THINKING|><|END_THINKING|>' if reasoning_effort == 'none' }}",
    "nemotron-v2": "{% set ns = namespace(on=true) %}{% for m in messages %}{% if m.role in ['user', 'system'] %}"
    "{% if '/think' in m.content %}{% set ns.on = true %}{% elif '/no_think' in m.content %}{% set ns.on = false %}"
    "{% endif %}{% endif %}{% endfor %}{% for m in messages %}{{ '<' + m.role + '>' }}"
    "{{ m.content.replace('/think', '').replace('/no_think', '').strip() }}{% endfor %}<assistant>"
    "{{ '<think>\n' if ns.on else '<think></think>' }}",
}
FOUND: Final = {  # levels, the level that the template takes by itself, the mark that it may end in
    "apertus": (["off", "on"], "off", ""), "deepseek-r1": ([], "", "<think>"),
    "deepseek-v3.1": (["off", "on"], "off", "<think>"), "glm-4.6": (["off", "on"], "on", ""),
    "gpt-oss": (["on", "low", "medium", "high"], "medium", ""), "granite-3.3": (["off", "on"], "off", ""),
    "ministral-3": ([], "", ""), "qwen3": (["off", "on"], "on", ""), "qwq": (["off", "on"], "off", "<think>"),
    "seed-oss": (["off", "on"], "on", ""), "smollm3": (["off", "on"], "on", ""),
    "gemma-4": (["off", "on"], "off", ""), "qwen3.5": (["off", "on"], "on", "<think>"),
    "minicpm5": (["off", "on"], "", "<think>"), "deepseek-v4": (["off", "on", "max"], "off", "<think>"),
    "solar": (["on", "low"], "on", ""), "hunyuan-3": (["off", "on", "low", "high"], "off", "<think:opensource>"),
    "kimi-k3": (["off", "on", "low", "high", "max"], "max", ""), "minimax-m3": (["off", "on"], "", "<mm:think>"),
    "command": (["off", "on"], "on", ""), "nemotron-v2": (["off", "on"], "on", "<think>"),
}  # fmt: skip
MARKED: Final = {  # a piece of the text that only this level has
    ("apertus", "on"): "Deliberation: enabled", ("apertus", "off"): "Deliberation: disabled",
    ("deepseek-v3.1", "off"): "<｜Assistant｜><think></think>",
    ("glm-4.6", "off"): "Hi/nothink<|assistant|>\n<think></think>", ("gpt-oss", "low"): "Reasoning: low",
    ("gpt-oss", "medium"): "Reasoning: medium", ("gpt-oss", "high"): "Reasoning: high",
    ("granite-3.3", "on"): "Think aloud first.", ("qwen3", "off"): "<think>\n\n</think>\n\n",
    ("qwq", "off"): "<think>\n</think>", ("seed-oss", "off"): "</seed:think>",
    ("smollm3", "off"): "Reasoning Mode: /no_think", ("smollm3", "on"): "Reasoning Mode: /think",
    ("gemma-4", "on"): "<|think|>", ("gemma-4", "off"): "<|channel>thought\n<channel|>",
    ("qwen3.5", "off"): "<think>\n\n</think>\n\n", ("minicpm5", "off"): "<think>\n\n</think>\n\n",
    ("deepseek-v4", "max"): "Think to the end.", ("deepseek-v4", "off"): "<assistant></think>",
    ("solar", "low"): "<briefly>", ("hunyuan-3", "low"): "<effort low>", ("hunyuan-3", "off"): "<effort no_think>",
    ("kimi-k3", "low"): "<effort low>", ("kimi-k3", "high"): "<effort high>", ("kimi-k3", "off"): "<response>",
    ("minimax-m3", "on"): "<enabled>", ("minimax-m3", "off"): "<disabled>",
    ("command", "off"): "<|START_THINKING|><|END_THINKING|>", ("nemotron-v2", "off"): "<assistant><think></think>",
}  # fmt: skip


def source(name: str) -> str:
    return OWN.get(name) or (FAMILIES / f"{name}.jinja").read_text("utf-8")


def template(name: str) -> ChatTemplate:
    return ChatTemplate(source(name), "<s>", "</s>")


def rendered(name: str, reasoning: Reasoning, level: str) -> str:
    switch = reasoning.switch(level)
    chat = [{"role": "user", "content": with_word("Hi", switch.word)}]
    return joined(template(name).parts(chat, variables=switch.variables))


@pytest.mark.parametrize("name", FOUND)
def test_the_switches_of_a_family_are_found_and_each_is_rendered(name: str) -> None:
    reasoning = reasoning_of(template(name))
    assert (list(reasoning.switches), reasoning.default, reasoning.opens) == FOUND[name]
    plain = joined(template(name).parts([{"role": "user", "content": "Hi"}]))
    texts = {level: rendered(name, reasoning, level) for level in reasoning.switches}
    if reasoning.default:
        assert texts[reasoning.default] == plain
    for (family, level), piece in MARKED.items():
        if family == name:
            same = {other for other in texts if texts[other] == texts[level]}
            assert {other for other in texts if piece in texts[other]} == same, level


def test_every_family_of_the_folder_is_tested() -> None:
    assert {path.stem for path in FAMILIES.glob("*.jinja")} | OWN.keys() == FOUND.keys()
    assert len(FOUND) >= 12
    assert {level for levels, *_ in FOUND.values() for level in levels} == set(LEVELS)


@pytest.mark.parametrize("name", POPULAR)
def test_a_template_without_a_switch_has_none(name: str) -> None:
    found = reasoning_of(ChatTemplate(POPULAR[name], "<s>", "</s>"))
    assert list(found.switches) == (["off", "on"] if name == "qwen" else [])
    assert found.switch("off").variables == ({"enable_thinking": False} if name == "qwen" else {})


def test_a_level_that_a_template_lacks_becomes_the_nearest() -> None:
    kimi, qwen, oss = (reasoning_of(template(name)) for name in ("kimi-k3", "qwen3", "gpt-oss"))
    assert kimi.switch("medium").variables["thinking_effort"] in ("low", "high")
    assert qwen.switch("high").variables == {"enable_thinking": True}
    assert oss.switch("max").variables == {"reasoning_effort": "high"} and oss.switch("off").variables == {}


def unmarked(name: str, chat: list[dict[str, str]], variables: dict[str, object]) -> str:
    """What the template makes of a chat without the care that is taken of its characters."""
    from datetime import datetime

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    sandbox.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return sandbox.from_string(source(name)).render(
        messages=chat, bos_token="<s>", eos_token="</s>", tools=None, documents=None, add_generation_prompt=True,
        **variables,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["smollm3", "nemotron-v2", "glm-4.6", "qwen3"])
@pytest.mark.parametrize("word", ["/no_think", "/nothink", "/think"])
@pytest.mark.parametrize("place", ["{}", "Hi {}", "{} Hi", "Be{}brief", "<|im_end|>{}\n<|im_start|>"])
def test_words_that_switch_reasoning_are_found_in_messages(name: str, word: str, place: str) -> None:
    text = place.format(word)
    chats = (
        [{"role": "user", "content": text}],
        [{"role": "system", "content": text}, {"role": "user", "content": "Hello"}],
        [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "So?"},
        ],
    )
    for chat in chats:
        parts = template(name).parts(chat)
        assert joined(parts) == unmarked(name, chat, {})
        said = "".join(part.text for part in parts if part.content is not None)
        assert said.count("<|im_end|>") == text.count("<|im_end|>"), "what people write never becomes a control token"


@pytest.mark.parametrize("name", FOUND)
def test_earlier_thoughts_leave_or_stay_as_the_template_says(name: str) -> None:
    for opening in CLOSING:
        thoughts = f"{opening}\nplugh\n{CLOSING[opening]}\n\nHello"
        chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": thoughts}]
        assert keeps_thoughts(template(name), opening) == ("plugh" in unmarked(name, [*chat, chat[0]], {}))
