"""Branch coverage of what must let nothing in: verifier, validator, filter, chat store, downloader, supervisor."""

import subprocess
import sys
from pathlib import Path

MEASURED = (
    "drafters/accept.py", "drafters/tree.py", "models/sampling.py", "models/best_tokens.py",
    "models/types.py", "app/safe_text.py", "app/chats/store.py",
    "app/chats/shelf.py", "app/chats/told.py", "app/chats/tree.py", "app/chats/database.py", "app/chats/opening.py",
    "app/chats/backups.py", "app/chats/place.py", "app/chats/recording.py", "app/chats/rescue.py",
    "app/chats/salvage.py", "app/chats/schema.py", "app/chats/write_ahead.py",
    "models/gguf.py", "models/gguf_check.py", "models/gguf_magic.py", "models/gguf_parse.py", "models/gguf_sizes.py",
    "models/gguf_split.py", "models/probe.py", "models/probe_record.py", "models/heads_check.py",
    "models/eagle_check.py", "models/mtp_check.py", "models/vocabulary.py", "models/gguf_tensors.py",
    "models/safetensors.py", "models/download*.py", "app/engine/host.py", "app/engine/child.py",
    "app/engine/patience.py", "app/engine/pulse.py", "app/engine/ends.py", "app/engine/cures.py",
    "app/engine/environment.py", "app/engine/awake.py",
)  # fmt: skip
TESTS = (
    "tests/drafters/test_accept.py", "tests/drafters/test_accept_typical.py", "tests/drafters/test_tree.py",
    "tests/drafters/test_mtp.py", "tests/drafters/test_eagle3.py", "tests/models/test_sampling.py",
    "tests/models/test_sampling_noise.py", "tests/models/test_types.py", "tests/models/test_vocabulary.py",
    "tests/models/test_gguf.py", "tests/models/test_gguf_mutants.py", "tests/models/test_gguf_split.py",
    "tests/models/test_gguf_sizes.py", "tests/models/test_gguf_tensors.py", "tests/models/test_probe.py",
    "tests/models/test_heads.py",
    "tests/models/test_untrusted_heads.py", "tests/models/test_published.py", "tests/models/test_hub.py",
    "tests/app/test_safe_text.py", "tests/app/test_chats_store.py", "tests/app/test_chats_keeping.py",
    "tests/app/test_chats_going_on.py", "tests/app/test_chats_model.py",
    "tests/app/test_chats_recording.py",
    "tests/app/test_chats_damage.py", "tests/app/test_chats_place.py",
    "tests/app/test_chats_opening.py", "tests/app/test_chats_rare.py", "tests/app/test_chats_migrations.py",
    "tests/app/test_chats_elsewhere.py", "tests/app/engine/test_kept_chats.py", "tests/app/engine/test_host.py",
    "tests/app/engine/test_host_faults.py", "tests/app/engine/test_host_ends.py",
    "tests/app/engine/test_host_patience.py", "tests/app/engine/test_host_orphans.py", "tests/models/test_download.py",
    "tests/models/test_download_disk.py", "tests/models/test_download_faults.py", "tests/models/test_download_lock.py",
    "tests/models/test_download_queue.py", "tests/models/test_download_ranges.py",
    "tests/models/test_download_rare.py",
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
