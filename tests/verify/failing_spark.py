"""Stand-ins for a Spark session whose jobs fail, because a test cannot make Spark fail in a chosen way."""

from __future__ import annotations

from typing import Any

import pytest


class StandInSession:
    """A stand-in for `spark.Session` that starts nothing, with its jobs, of which there are none."""

    stops = True

    def __init__(self, *_: Any, **__: Any) -> None:
        self.context = self.spark = self.connect = None

    def stop(self, **_: Any) -> None:
        """Stop nothing."""


def fail_on_spark(monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> None:
    """Put stand-ins in place of Spark, whose first job raises `failure`; None: no job may be started."""
    from logclient.verify import job, runners

    class StandInRunner(runners.LocalRunner):
        """A stand-in for `runners.SparkRunner`."""

        def __init__(self, *_: Any) -> None:
            assert failure is not None

        def judge(self, *_: Any) -> Any:
            raise failure

    monkeypatch.setattr(job, "Session", StandInSession)
    monkeypatch.setattr(runners, "SparkRunner", StandInRunner)
