"""Branch coverage of what must let nothing in: verifier, validators, filter, chat store, downloader, supervisor.

Child processes count too. Fails below ``FLOOR``, in percent of lines and branches together. Where ``MEASURE_BRANCHES`` is
set, as in ``.ci/run``, ``.dev/check.py`` runs the slow tests too: these tests measured, then all others.
"""

FLOOR = 94  # 94.6 measured
MEASURED = (
    "drafters/accept.py", "drafters/tree.py", "models/sampling/*", "models/types.py", "models/files.py", "models/gguf/*",
    "models/hub/*", "models/heads/check.py", "models/heads/published.py", "models/chat_template/*",
    "app/platform/safe_text.py", "app/chats/*", "app/engine/process/*", "app/cli/launcher.py",
)  # fmt: skip
TESTS = (
    "tests/drafters/test_accept.py", "tests/drafters/test_accept_typical.py", "tests/drafters/test_tree.py",
    "tests/drafters/test_mtp.py", "tests/drafters/test_eagle3.py", "tests/models/sampling", "tests/models/test_types.py",
    "tests/models/gguf", "tests/models/hub", "tests/models/heads", "tests/models/chat_template", "tests/app/platform",
    "tests/app/chats", "tests/app/engine/process", "tests/app/engine/test_kept_chats.py", "tests/app/cli/test_launcher.py",
    "tests/app/engine/test_throttle.py", "tests/app/engine/test_draft_trace.py", "tests/models/test_child.py",
    "tests/models/test_outside.py", "tests/models/library/test_import.py", "tests/app/tui/chat/test_presets.py",
    "tests/app/tui/chat/test_attach.py",
)  # fmt: skip
REPORT = [
    "coverage", "report", "--show-missing", "--include=" + ",".join(f"*/{name}" for name in MEASURED), "--omit=tests/*",
    f"--fail-under={FLOOR}",
]  # fmt: skip


def measured(pytest: list[str]) -> list[list[str]]:
    """The commands that run these tests with coverage, and the report."""
    return [["coverage", "erase"], ["coverage", "run", "-m", *pytest, *TESTS], ["coverage", "combine", "--quiet"], REPORT]


def others(pytest: list[str]) -> list[str]:
    return [*pytest, *(f"--ignore={name}" for name in TESTS)]
