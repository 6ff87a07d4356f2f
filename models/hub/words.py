"""The errors of the hub and of downloads: refusals, failures, unexpected answers, and disks that cannot be written."""

import errno
import os
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from slipstream.models.errors import DownloadError, HubError, reason_of
from slipstream.models.hub.address import USUAL
from slipstream.models.outside import LONGEST_REASON, number_in, quoted, shown_path

_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})
_LOGIN: Final = "log in: hf auth login (or set HF_TOKEN)"
_REPO: Final = re.compile(r"/(?:api/models/)?(?P<repo>[^/]+/[^/?]+)")
_RESET: Final = re.compile(r"\bt\s*=\s*([0-9]+)")
_LONGEST_WAIT: Final = 366 * 86_400
_LATER: Final = "Try again in a few minutes."
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_DISK: Final = {  # reason, where the system's own says less, and hint
    errno.EFBIG: ("the disk takes no files that large", "Choose a folder on another disk; FAT32 ends at 4 GiB."),
    errno.ENOENT: ("its folder was removed or renamed meanwhile", "Start the download again."),
    errno.ELOOP: ("another program put a link in its place", "Remove the link, then start the download again."),
    errno.EISDIR: ("", "Rename or remove the folder, then start the download again."),
    errno.ENAMETOOLONG: ("", "Choose a folder with a shorter path."),
}
KEPT: Final = "What was fetched is kept"


def odd_answer(endpoint: str, what: str) -> HubError:
    """The error for an unexpected answer from the hub or from a proxy."""
    hint = "Try again; if it happens again, a proxy or a login page may replace the hub's answers."
    if endpoint != USUAL:
        hint = "HF_ENDPOINT names this hub: check it, or unset it to use huggingface.co."
    return HubError(f"{host_of(endpoint)} answered with {what}.", hint)


def unreachable(error: Exception, address: str) -> HubError:
    host, reason = host_of(address), str(error).lower()
    name = type(error).__name__
    if "certificate" in reason:
        return HubError(
            f"cannot trust {host}: {_short(error)}.",
            "If a proxy decrypts connections here, set SSL_CERT_FILE to its certificate.",
        )
    if name == "ProxyError":
        return HubError(f"the proxy refused to reach {host}: {_short(error)}.", "Check HTTPS_PROXY and NO_PROXY.")
    if "Timeout" in name:
        return HubError(f"{host} did not answer in time.", "Check the network, or try again later.")
    if name == "ConnectError":
        names = [name for name in os.environ if name.upper() in _PROXIES and os.environ[name]]
        doubtful = [f"the proxy that {' or '.join(sorted(names))} names"] if names else []
        doubtful += ["the address in HF_ENDPOINT"] if host != host_of(USUAL) else []
        also = f", and {' and '.join(doubtful)}" if doubtful else ""
        hint = f"Check the network{also}. Installed models work without it."
        return HubError(f"cannot reach {host}: {_short(error)}.", hint)
    return HubError(f"the connection to {host} broke: {_short(error)}.", "Try again.")


def retry_after(headers: Mapping[str, str]) -> int | None:
    """Seconds to wait after a refusal; None if the headers do not give a valid number."""
    value = headers.get("retry-after", "").strip()
    if not value and (match := _RESET.search(headers.get("ratelimit", ""))):
        value = match[1]
    if value[:1].isalpha():
        try:
            until = parsedate_to_datetime(value)
            return max(0, min(_LONGEST_WAIT, round((until - datetime.now(until.tzinfo)).total_seconds())))
        except (ValueError, OverflowError):
            return None
    return number_in(value, _LONGEST_WAIT)


def duration(seconds: int) -> str:
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length or unit == "minute":
            count = -(-seconds // length)
            return f"{count} {unit}{'s' * (count != 1)}"
    raise AssertionError("minutes are the last unit")


def refusal(status: int, headers: Mapping[str, str], address: str, endpoint: str, known: bool) -> HubError:
    host, repo = host_of(address), _repo(address, endpoint)
    code = headers.get("x-error-code", "")
    page, said = f"{endpoint}/{repo}", " ".join(headers.get("x-error-message", "").split())
    says = f"({status}): {quoted(said, LONGEST_REASON)}" if said else f"({status})"
    if code == "GatedRepo":
        if known:
            return HubError(
                f"{repo} is gated, and this account has no access to it yet.",
                f"Accept its licence at {page} (some publishers then take days to approve), then try again.",
            )
        return HubError(f"{repo} is gated: its licence has to be accepted.", f"Accept it at {page}, then {_LOGIN}.")
    if code == "RevisionNotFound":
        return HubError(f"{repo} has no such revision.", f"Leave out the revision, or look at {page}/commits/main.")
    if code == "EntryNotFound":
        return HubError(
            f"{repo} has no file {shown_path(unquote(urlsplit(address).path.rpartition('/')[2]))}.",
            f"Look at {page}/tree/main for what it has.",
        )
    if status in (401, 404) and code in ("RepoNotFound", ""):
        hint = "this account may not see it" if known else f"if it is private, {_LOGIN}"
        if status == 401 and known and not code:
            return HubError(f"{host} does not accept the token.", "Create a new one, then log in again: hf auth login.")
        return HubError(f"{host} has no repository {repo}, or keeps it private.", f"Check the name; {hint}.")
    if status in (401, 403):
        who = "this account" if known else "someone who is not logged in"
        return HubError(f"{host} refuses {repo} to {who} {says}.", f"Look at {page}; if it is yours, {_LOGIN}.")
    if status == 429:
        seconds = retry_after(headers)
        wait = "Try again in a few minutes"
        if seconds is not None:
            wait = f"Try again in {f'{seconds} s' if seconds < 120 else duration(seconds)}"
        more = "" if known else f"; the limit is higher with a token: {_LOGIN.split(':', 1)[1].strip()}"
        return HubError(f"{host} got too many requests (429).", f"{wait}{more}.")
    if status >= 500:
        return HubError(f"{host} failed {says}.", _LATER)
    return HubError(f"{host} refused the request for {repo} {says}.", "Check the name and the address of the hub.")


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 100_000_000 else f"{count / 1e6:.1f} MB"


def disk_error(path: Path, error: OSError) -> DownloadError:
    if error.errno in _FULL:
        return disk_full(path)
    reason, hint = _DISK.get(error.errno or 0, ("", "Check the folder and its permissions, or choose another."))
    return DownloadError(f"cannot write {shown_path(path)}: {reason or reason_of(error)}.", hint)


def disk_full(path: Path) -> DownloadError:
    return DownloadError(
        f"the disk with {shown_path(path.parent)} is full.", f"{KEPT}: free some room there, then resume."
    )


def interfered(part: Path) -> DownloadError:
    return DownloadError(
        f"{shown_path(part)} was removed, replaced or shortened by another program while it was fetched.",
        "Start the download again; only the lost part is fetched again.",
    )


def host_of(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _repo(address: str, endpoint: str) -> str:
    match = _REPO.match(unquote(urlsplit(address).path.removeprefix(urlsplit(endpoint).path)))
    return shown_path(match["repo"]) if match else "what was asked for"


def _short(error: Exception) -> str:
    words = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip()) or type(error).__name__
    return shown_path(" ".join(words.split())[:LONGEST_REASON].rstrip("."))
