"""Downloads in a process of its own, to be killed: loads everything once, then forks for each line of its input.

Writes a line for every report of progress, ``{"pid": n}`` before them, and ``{"dead": status}`` at the end.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from slipstream.models.errors import SlipstreamError
from slipstream.models.hub.address import disable_telemetry
from slipstream.models.hub.downloads import Download
from slipstream.models.hub.repositories import Hub
from slipstream.models.hub.types import RemoteFile, Tuning


def say(row: dict[str, Any]) -> None:
    os.write(1, (json.dumps(row) + "\n").encode())


def download(order: dict[str, Any]) -> None:
    files = [RemoteFile(**file) for file in order["files"]]
    job = Download(Hub(order["endpoint"]), files, Path(order["folder"]), Tuning(**order["tuning"]))
    try:
        job.run(lambda progress: say({"done": progress.done}))
    except SlipstreamError as error:
        say({"error": str(error)})


def main() -> None:
    disable_telemetry()
    from slipstream.models.hub.client import trust

    trust()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            download(json.loads(line))
            os._exit(0)
        say({"pid": pid})
        say({"dead": os.waitpid(pid, 0)[1]})


if __name__ == "__main__":
    main()
