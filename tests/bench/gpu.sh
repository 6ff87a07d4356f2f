#!/usr/bin/env bash
# Measures drafting on a GPU: bash tests/bench/gpu.sh PACKS MODEL [options of python -m tests.bench.gpu]
# PACKS is a folder with llama-cpp-python built for this GPU, and what else Python lacks here: wheels, or .tar.xz of
# installed packages. Nothing is downloaded, and nothing is left installed.
set -euo pipefail
packs=$1
shift
began=$SECONDS
cd "$(dirname "$0")/../.."
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
for pack in "$packs"/*; do
    case $pack in
        *.whl) python3 -m zipfile -e "$pack" "$site" ;;
        *.tar.xz) python3 -m tarfile -e "$pack" "$site" ;;
    esac
done
export PYTHONUNBUFFERED=1 PYTHONPATH="$site:$PWD/.dev:$PWD"
# the libraries of CUDA that come with Python packages, such as PyTorch's
libraries=$(python3 - <<'END'
import sys
from pathlib import Path
print(":".join(str(found) for entry in sys.path for found in Path(entry or ".").glob("nvidia/*/lib")))
END
)
export LD_LIBRARY_PATH="$libraries:/usr/local/cuda/lib64:/usr/local/nvidia/lib64:${LD_LIBRARY_PATH:-}"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || echo "no NVIDIA GPU here"
echo "unpacked in $((SECONDS - began)) s"
python3 -m tests.bench.gpu "$@"
