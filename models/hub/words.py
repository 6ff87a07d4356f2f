"""The errors for a hub that refuses a request, fails, or sends an unexpected answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import unquote, urlsplit

from slipstream.models.errors import HubError, OfflineError
from slipstream.models.hub.address import USUAL
from slipstream.models.outside import number_in, shown_path

_LOGIN: Final = "log in: hf auth login (or set HF_TOKEN)"
_REPO: Final = re.compile(r"/(?:api/models/)?(?P<repo>[^/]+/[^/?]+)")
_RESET: Final = re.compile(r"\bt\s*=\s*([0-9]+)")
_LONGEST_WAIT: Final = 366 * 86_400
_LATER: Final = "Try again in a few minutes."


def offline(endpoint: str) -> OfflineError:
    return OfflineError(
        f"{_host(endpoint)} was not contacted: offline mode is on.",
        "Installed models work without the network. To go online, turn offline mode off or unset HF_HUB_OFFLINE.",
    )


def odd_answer(endpoint: str, what: str) -> HubError:
    """The error for an unexpected answer from the hub or from a proxy."""
    hint = "Try again; if it happens again, a proxy or a login page may replace the hub's answers."
    if endpoint != USUAL:
        hint = "HF_ENDPOINT names this hub: check it, or unset it to use huggingface.co."
    return HubError(f"{_host(endpoint)} answered with {what}.", hint)


def unreachable(error: Exception, address: str) -> HubError:
    host, reason = _host(address), str(error).lower()
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
        hint = "Check the network. Installed models work without it."
        if host != _host(USUAL):
            hint = "Check the network, and the address in HF_ENDPOINT. Installed models work without it."
        return HubError(f"cannot reach {host}: {_short(error)}.", hint)
    return HubError(f"the connection to {host} broke: {_short(error)}.", "Try again.")


def too_slow(address: str) -> HubError:
    return HubError(f"{_host(address)} answers too slowly.", "Check the network, or try again later.")


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
    """The error for an HTTP status.

    Args:
        status: The status, 300 or more.
        known: Whether an access token was sent.
    """
    host, repo = _host(address), _repo(address, endpoint)
    code = headers.get("x-error-code", "")
    page = f"{endpoint}/{repo}"
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
        return HubError(f"{repo} has no file {_file(address)}.", f"Look at {page}/tree/main for what it has.")
    if status in (401, 404) and code in ("RepoNotFound", ""):
        hint = "this account may not see it" if known else f"if it is private, {_LOGIN}"
        if status == 401 and known and not code:
            return HubError(f"{host} does not accept the token.", "Create a new one, then log in again: hf auth login.")
        return HubError(f"{host} has no repository {repo}, or keeps it private.", f"Check the name; {hint}.")
    if status in (401, 403):
        who = "this account" if known else "someone who is not logged in"
        return HubError(f"{host} refuses {repo} to {who} ({status}).", f"Look at {page}; if it is yours, {_LOGIN}.")
    if status == 429:
        seconds = retry_after(headers)
        wait = "Try again in a few minutes"
        if seconds is not None:
            wait = f"Try again in {f'{seconds} s' if seconds < 120 else duration(seconds)}"
        more = "" if known else f"; the limit is higher with a token: {_LOGIN.split(':', 1)[1].strip()}"
        return HubError(f"{host} got too many requests (429).", f"{wait}{more}.")
    if status >= 500:
        return HubError(f"{host} failed ({status}).", _LATER)
    return HubError(f"{host} refused the request for {repo} ({status}).", "Check the name and the address of the hub.")


def _host(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _repo(address: str, endpoint: str) -> str:
    match = _REPO.match(unquote(urlsplit(address).path.removeprefix(urlsplit(endpoint).path)))
    return shown_path(match["repo"]) if match else "what was asked for"


def _file(address: str) -> str:
    return shown_path(unquote(urlsplit(address).path.rpartition("/")[2]))


def _short(error: Exception) -> str:
    words = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip()) or type(error).__name__
    return shown_path(words[:120].rstrip("."))
