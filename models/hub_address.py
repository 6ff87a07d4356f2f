"""Which hub is asked, whether at all, and which addresses may see the owner's token. Loads nothing."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from slipstream.models.errors import UsageError
from slipstream.models.hub_types import RemoteFile
from slipstream.models.quoting import quoted

USUAL: Final = "https://huggingface.co"
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})
_PORTS: Final = {"http": 80, "https": 443}
_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_-])?"
_REPO: Final = re.compile(rf"{_PART}/{_PART}")
_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


def quieten() -> None:
    """Turns off what huggingface_hub sends of itself; it looks once, at its import."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def told_offline(environment: Mapping[str, str]) -> bool:
    """Whether the environment forbids the network, in the words that huggingface_hub knows."""
    return (environment.get("HF_HUB_OFFLINE") or "").upper() in _TRUE


def endpoint_from(environment: Mapping[str, str]) -> str:
    """The hub's address: a mirror's where ``HF_ENDPOINT`` names one."""
    return environment.get("HF_ENDPOINT") or USUAL


def checked_endpoint(address: str) -> str:
    """An address as it is used.

    Raises:
        UsageError: If it is none.
    """
    address = address.strip().rstrip("/")
    try:
        parts = urlsplit(address)
        good = parts.scheme in _PORTS and parts.hostname and parts.port != 0 and not parts.query and not parts.fragment
        good = good and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"{quoted(address, 80)} is no address of a model hub.", f"Set HF_ENDPOINT to one like {USUAL}, or unset it."
        )
    return address


def origin(address: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address."""
    parts = urlsplit(address)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def may_see_token(address: str, endpoint: str) -> bool:
    """Whether the token may be sent along: to the hub itself only, and unencrypted only within this machine."""
    return origin(address) == origin(endpoint) and (address.startswith("https://") or _loopback(origin(address)[1]))


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def file_address(endpoint: str, file: RemoteFile) -> str:
    """Where a file is fetched from."""
    return f"{endpoint}/{file.repo}/resolve/{quote(file.revision, safe='')}/{quote(file.name)}"


def is_repo(name: object) -> bool:
    """Whether it is a repository's name, ``owner/name``, safe in addresses and as folders."""
    return isinstance(name, str) and bool(_REPO.fullmatch(name)) and ".." not in name


def checked_repo(repo: str) -> str:
    """A repository's name as it came.

    Raises:
        UsageError: If it is none.
    """
    if not is_repo(repo):
        raise UsageError(f"{quoted(repo, 80)} is no repository.", "Write it as owner/name, such as Qwen/Qwen3-4B-GGUF.")
    return repo


def repo_in(text: str, endpoint: str) -> str | None:
    """The repository that a text names: ``owner/name`` or the address of one of its pages; None if it is neither."""
    text = text.strip()
    for base in (endpoint, USUAL, "https://hf.co"):
        if text.startswith(base + "/"):
            text = "/".join(urlsplit(text).path.removeprefix(urlsplit(base).path).strip("/").split("/")[:2])
            break
    return text if is_repo(text) else None


def safe_name(name: str) -> bool:
    """Whether a file's name from the hub stays inside its folder, on every system."""
    parts = name.split("/")
    return (
        len(name) <= 240
        and all(
            part and part not in (".", "..") and not part.endswith((".", " ")) and not _RESERVED.fullmatch(part)
            for part in parts
        )
        and not _FORBIDDEN.search(name)
    )
