"""Prompts made by rule, which a model answers to give its own heads text to learn from."""

_TOPICS = """
sleep; tides; photosynthesis;
the water cycle; how a bill becomes law; the causes of inflation; black holes; plate tectonics; vaccines;
the French Revolution; supply and demand; how engines work; the immune system; electric cars; how the internet works;
solar power; the history of printing; coral reefs; how bread rises; jazz; the rules of chess; volcanoes;
how planes fly; compound interest; earthquakes; cheese; the Silk Road; how batteries store energy; migrating birds;
the Roman roads; glaciers; recycling; how cameras work; the stock market; medieval castles; bees; the metric system;
public libraries; how memory works; rockets; deserts; the invention of the telephone; urban gardens; how locks work
"""
_ABOUT = (
    "Explain {}.",
    "Explain {} to a child.",
    "Write a short paragraph about {}.",
    "What are three common mistakes people make when they talk about {}?",
    "Give me a list of five facts about {}.",
    "Write a dialogue between a teacher and a student about {}.",
    "Summarize what an expert would say about {}, in three steps.",
)
_PROGRAMS = """
reverses a string;
counts the words in a file; finds the largest number in a list; checks whether a word is a palindrome;
computes Fibonacci numbers; sorts names by length; removes duplicates from a list; converts Celsius to Fahrenheit;
reads a CSV file and sums a column; finds all prime numbers below 100; merges two sorted lists; counts vowels;
parses a date; computes the mean and the median; checks balanced brackets; groups words by their first letter;
downloads a page and counts its links; renames all files in a folder; keeps the last ten lines of a log
"""
_CODE = (
    "Write a Python function that {}.",
    "Write a JavaScript function that {}.",
    "Write a C function that {}, and explain each line.",
    "Write a shell script that {}.",
    "Write a unit test for a function that {}.",
)
_TASKS = """
a birthday party; a week of lunches; moving to a new flat; a job interview; learning a language; a hiking trip;
a small garden; a school play; a family budget; a day at the sea; a move to another city; a website for a baker
"""
_PLANS = (
    "Make a checklist for {}.",
    "Write an email that asks a friend for help with {}.",
    "Plan {} step by step.",
    "What should I know before I start with {}?",
    "Write a short story about {}.",
    "Write a poem about {}.",
)


def made_prompts() -> list[str]:
    """All of them, in a fixed order."""
    filled = [
        form.format(" ".join(subject.split()))
        for forms, subjects in ((_ABOUT, _TOPICS), (_CODE, _PROGRAMS), (_PLANS, _TASKS))
        for subject in subjects.split(";")
        for form in forms
    ]
    sums = [
        f"A shop sells {a} apples for {b} coins each and {c} pears for {a} coins each. How many coins does it take in?"
        for a in range(3, 9)
        for b in (2, 5, 7)
        for c in (4, 6, 10)
    ]
    return [*filled, *sums]
