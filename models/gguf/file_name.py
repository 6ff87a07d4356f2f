"""The name of a model for people, from the name of its file."""

import re
from pathlib import Path
from types import MappingProxyType
from typing import Final

_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_LABEL: Final = re.compile(
    r"[-._ ](?P<label>(?:ud[-_])?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|bf16|f16|f32|fp16|fp32|mxfp4(?:_moe)?|nvfp4))$",
    re.IGNORECASE,
)
_NAMELESS: Final = re.compile(r"(?:ggml[-_])?model|.*-[0-9a-f]{12,64}", re.IGNORECASE)  # such as those named by a hash
_SHIPPED: Final = Path(__file__).resolve().parents[1] / "bundled"
_OTHER_WORDS: Final = MappingProxyType({"FP16": "F16", "FP32": "F32"})


def split_name(stem: str) -> tuple[str, str]:
    """Splits a file's name (without its ending) into the model's name and the label of its quantization.

    >>> split_name("Qwen3-4B-UD-Q4_K_XL-00001-of-00002")
    ('Qwen3-4B', 'UD-Q4_K_XL')
    """
    stem = _PART.sub("", stem)
    match = _LABEL.search(stem)
    if not match:
        return stem, ""
    label = match["label"].upper().replace("UD_", "UD-")
    return stem[: match.start()], _OTHER_WORDS.get(label, label)


def stem_of(path: Path) -> str:
    """A file's name without its ending, in capitals or not."""
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def shown_name(path: Path, name: str = "") -> str:
    """The name of a model for people: its file's without the quantization.

    Args:
        name: The name in its header. It is used if the file's name says nothing, or says the same in lower case;
            others are often those of a training run.
    """
    stem = split_name(stem_of(path))[0]
    same = re.sub(r"[-_. ]+", " ", name.casefold()) == re.sub(r"[-_. ]+", " ", stem.casefold())
    says_more = path.parent.resolve() == _SHIPPED or _NAMELESS.fullmatch(stem) or (same and stem.islower())
    return name if name and says_more else stem
