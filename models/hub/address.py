"""Checks hub addresses, names of repositories and files, and where the token may go; imports no network library."""

import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from slipstream.models.errors import HubError, UsageError
from slipstream.models.hub.types import RemoteFile
from slipstream.models.outside import quoted, whole_number

USUAL: Final = "https://huggingface.co"
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_PROXY_KINDS: Final = ("http", "https", "socks5", "socks5h")
_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_-])?"
_REPO: Final = re.compile(rf"{_PART}/{_PART}")
_LONGEST: Final = 8192
_LONGEST_NAME: Final = 240
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\\]')
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)


def disable_telemetry() -> None:
    """Turns off huggingface_hub's telemetry; it must run before the library is imported."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):  # the library fails to load unless it is a number
        if not (value := os.environ.get(name, "").strip()):
            os.environ.pop(name, None)
        else:
            try:
                whole_number(value, 0)
            except ValueError as error:
                raise HubError(f"{name}: {error}.", "Set it to seconds, or unset it.") from error


def offline_by_environment(environment: Mapping[str, str]) -> bool:
    """Whether ``HF_HUB_OFFLINE`` turns offline mode on, by huggingface_hub's rule."""
    return (environment.get("HF_HUB_OFFLINE") or "").upper() in _TRUE


def checked_endpoint(address: str) -> str:
    """Returns the hub's address without a final slash; the default one if it is blank."""
    address = address.strip().rstrip("/") or USUAL
    if not is_web_address(address) or "?" in address or "#" in address:
        raise HubError(
            f"HF_ENDPOINT: {quoted(address, 80)} is no address of a model hub.",
            f"Set it to one like {USUAL}, or unset it.",
        )
    return address


def check_proxies(environment: Mapping[str, str]) -> None:
    """Checks the variables of proxies as the HTTP library reads them: names in lower case win."""
    for name in _PROXIES:
        used = name.lower() if name.lower() in environment else name
        value = environment.get(used, "")
        if not value:
            continue
        address = value if "://" in value else f"http://{value}"
        try:
            parts = urlsplit(address)
            kind, host, _ = parts.scheme, parts.hostname or "", parts.port
        except ValueError:
            kind = host = ""
        if kind not in _PROXY_KINDS or not _HOST.fullmatch(host) or not address.isprintable() or " " in address:
            raise HubError(
                f"{used}: {quoted(value, 80)} is no address of a proxy.",
                f"Set it to one like http://proxy.example:3128, or unset it; kinds: {', '.join(_PROXY_KINDS)}.",
            )


def is_web_address(text: str) -> bool:
    """Whether a text is a valid http or https address without credentials."""
    if not text.isprintable() or " " in text or len(text) > _LONGEST:
        return False
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme in _PORTS and bool(_HOST.fullmatch(host or "")) and port != 0 and "@" not in parts.netloc


def origin(address: str) -> tuple[str, str, int]:
    parts = urlsplit(address)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def may_see_token(address: str, endpoint: str) -> bool:
    """Whether the token may be sent to an address: only to the hub, and without TLS only on this machine."""
    return origin(address) == origin(endpoint) and (address.startswith("https://") or _loopback(origin(address)[1]))


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def file_address(endpoint: str, file: RemoteFile) -> str:
    return f"{endpoint}/{file.repo}/resolve/{quote(file.revision, safe='')}/{quote(file.name)}"


def is_repo(name: object) -> bool:
    """Whether a value is a repository's name, ``owner/name``, that is safe in addresses and as folders."""
    return isinstance(name, str) and bool(_REPO.fullmatch(name)) and ".." not in name


def checked_repo(repo: str) -> str:
    if not is_repo(repo):
        raise UsageError(f"{quoted(repo, 80)} is no repository.", "Write it as owner/name, such as Qwen/Qwen3-4B-GGUF.")
    return repo


def repo_in(text: str, endpoint: str) -> str | None:
    """The repository that a text names as ``owner/name`` or by the address of one of its pages; else None."""
    text = text.strip()
    for base in (endpoint, USUAL, "https://hf.co"):
        if text.startswith(base + "/"):
            text = "/".join(urlsplit(text).path.removeprefix(urlsplit(base).path).strip("/").split("/")[:2])
            break
    return text if is_repo(text) else None


def safe_name(name: object) -> bool:
    """Whether a file of this name can be stored inside its folder on every system."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable() or _FORBIDDEN.search(name):
        return False
    return all(
        part
        and not part.startswith(".")  # reserved for Slipstream's own files
        and not part.endswith((".", " "))
        and not _RESERVED.fullmatch(part)
        and len(part.encode()) <= _LONGEST_NAME
        for part in name.split("/")
    )
