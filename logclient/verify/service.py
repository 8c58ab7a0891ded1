"""Run several verifications in one Spark session: requests come on stdin, verdicts go to stdout.

    python -m logclient.verify.service [PACKAGES]

Spark takes seconds to start and half a second to compare some 100,000 events, so several verifications should
share a session. A request is a line of JSON with arguments of `job.run`. The answer is a line with ``exit``,
``counts`` and ``seconds``, or with ``error``. The process ends with its stdin. Spark's JVM loads PACKAGES at
its start.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from logclient.errors import ExitCode, LogclientError
from logclient.exits import run_command
from logclient.verify import job
from logclient.verify.stages import SparkStages

__all__ = ["main"]


def main(packages: str | None = None) -> int:
    """Answer requests until stdin ends.

    Args:
        packages: see `Session`.

    Returns:
        An `ExitCode`.
    """

    def work() -> int:
        try:
            with job.Session(packages=packages) as session:
                SparkStages(session).exercise()  # so that the first verdict is as fast as later ones
                for line in sys.stdin:
                    _answer(_verify(json.loads(line)))
        except LogclientError as error:
            _answer({"error": str(error)})
            return ExitCode.UNREACHABLE
        return ExitCode.OK

    return run_command(work)


def _verify(request: dict[str, Any]) -> dict[str, Any]:
    try:
        verdict = job.run(**request)
    except LogclientError as error:
        return {"error": str(error)}
    found = verdict.to_json()
    return {"exit": verdict.exit_code, "counts": found["counts"], "seconds": found["seconds"]}


def _answer(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
