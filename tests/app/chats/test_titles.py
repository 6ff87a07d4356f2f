from time import process_time

import pytest

from slipstream.app.chats.messages import LENGTH, title_of


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("What is a fox?", "What is a fox?"),
        ("Hi there! Can you please help me to sort a list?", "Sort a list"),
        ("hello", "Hello"),
        ("  One \n two ", "One two"),
        ("Good morning, what is 3.14 * 2?", "What is 3.14 * 2?"),
        ("**Explain** the `GIL` in Python. And then some more.", "Explain the GIL in Python"),
        ("# A heading\nand its text", "A heading and its text"),
        ("How do __init__ and snake_case work", "How do __init__ and snake_case work"),
        ("Look at [this page](https://example.com/a?b=c) now", "Look at this page now"),
        ("https://www.example.com/a/b?c is down, why", "Example.com is down, why"),
        ("```python\ndef f(x):\n  return x\n```\nWhy does this fail?", "Why does this fail?"),
        ("```python\ndef f(x):\n  return x\n```", "def f(x):"),
        ("你好。请告诉我关于海的故事。", "你好。请告诉我关于海的故事"),
        ("Write a function that sorts a list of dictionaries by two keys", "Write a function that sorts a list…"),
        ("Explain the tides, the moon and everything that moves the sea", "Explain the tides…"),
        ("x" * 100, "X" + "x" * (LENGTH - 2) + "…"),
        ("", ""),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title_of(text) == title
    assert len(title) <= LENGTH


def test_a_message_of_megabytes_is_not_read_whole() -> None:
    begun = process_time()
    assert title_of("Describe the sea to me. " + "wide and blue " * 300_000) == "Describe the sea to me"
    assert process_time() - begun < 0.1
