"""Branch coverage of what must let nothing in: verifier, validator, filter, chat store, downloader, supervisor."""

import subprocess
import sys
from pathlib import Path

MEASURED = (
    "drafters/accept.py", "drafters/tree.py", "models/sampling/sampler.py", "models/sampling/top_k.py",
    "models/types.py", "app/platform/safe_text.py", "app/chats/store.py", "app/chats/chat_list.py", "app/chats/messages.py",
    "app/chats/records.py", "app/chats/database.py", "app/chats/open_database.py", "app/chats/backups.py",
    "app/chats/locking.py", "app/chats/recording.py", "app/chats/rescue.py", "app/chats/salvage.py",
    "app/chats/schema.py", "app/chats/open_files.py", "app/chats/rows.py", "models/gguf/reader.py", "models/gguf/check.py",
    "models/gguf/parse.py", "models/gguf/probe.py", "models/heads/check.py", "models/gguf/vocabulary.py",
    "models/gguf/tensors.py", "models/heads/published.py", "app/engine/process/client.py",
    "app/engine/process/process.py", "app/engine/process/watchdog.py", "app/engine/process/recovery.py",
    "models/hub/downloads.py", "models/hub/transfer.py", "models/hub/source.py", "models/hub/part_file.py",
    "models/hub/journal.py", "models/hub/lock.py", "models/hub/job.py", "models/hub/progress.py",
)  # fmt: skip
TESTS = (
    "tests/drafters/test_accept.py", "tests/drafters/test_accept_typical.py", "tests/drafters/test_tree.py",
    "tests/drafters/test_mtp.py", "tests/drafters/test_eagle3.py", "tests/models/sampling/test_sampling.py",
    "tests/models/sampling/test_sampling_noise.py", "tests/models/test_types.py", "tests/models/gguf/test_vocabulary.py",
    "tests/models/gguf/test_gguf.py", "tests/models/gguf/test_gguf_mutants.py", "tests/models/gguf/test_gguf_split.py",
    "tests/models/gguf/test_gguf_sizes.py", "tests/models/gguf/test_gguf_tensors.py", "tests/models/gguf/test_probe.py",
    "tests/models/heads/test_heads.py",
    "tests/models/heads/test_untrusted_heads.py", "tests/models/heads/test_published.py", "tests/models/hub/test_hub.py",
    "tests/app/platform/test_safe_text.py", "tests/app/chats/test_store.py", "tests/app/chats/test_keeping.py",
    "tests/app/chats/test_going_on.py", "tests/app/chats/test_model.py",
    "tests/app/chats/test_recording.py",
    "tests/app/chats/test_damage.py", "tests/app/chats/test_place.py", "tests/app/chats/test_files_go_away.py",
    "tests/app/chats/test_opening.py", "tests/app/chats/test_rare.py", "tests/app/chats/test_migrations.py",
    "tests/app/chats/test_elsewhere.py", "tests/app/engine/test_kept_chats.py", "tests/app/engine/process/test_client.py",
    "tests/app/engine/process/test_client_faults.py", "tests/app/engine/process/test_client_ends.py",
    "tests/app/engine/process/test_client_patience.py", "tests/app/engine/process/test_client_orphans.py", "tests/models/hub/test_download.py",
    "tests/models/hub/test_download_disk.py", "tests/models/hub/test_download_faults.py", "tests/models/hub/test_download_lock.py",
    "tests/models/hub/test_download_queue.py", "tests/models/hub/test_download_ranges.py",
    "tests/models/hub/test_download_rare.py",
)  # fmt: skip


def main() -> int:
    """Runs their tests and prints the report; returns the exit code of the first that fails, or 0."""
    root = Path(__file__).parents[1]
    python = [sys.executable, "-m", "coverage"]
    measured = ",".join(f"*/{name}" for name in MEASURED)
    code = subprocess.run([*python, "run", "--branch", f"--include={measured}", "-m", "pytest", "-q", *TESTS], cwd=root)
    return code.returncode or subprocess.run([*python, "report", "-m", "--omit=tests/*"], cwd=root).returncode


if __name__ == "__main__":
    sys.exit(main())
