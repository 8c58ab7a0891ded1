"""Verdicts of whole hours, whose counts are kept in one table of Parquet files."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logclient.errors import ConfigError, ExitCode, LedgerError
from logclient.evidence import push, storage
from logclient.evidence.selection import Selection
from logclient.verify import job, output

if TYPE_CHECKING:
    import pyarrow as pa

    from logclient.verify.verdict import Verdict

_MINUTE_US, _HOUR_US = 60_000_000, 3_600_000_000
_HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d\d(-\d\d)?\.parquet")


def append(
    folder: storage.Folder,
    ledger: storage.Folder | Sequence[storage.Folder],
    capture: storage.Folder | Sequence[storage.Folder] | None = None,
    *,
    since: float | str | None,
    until: float | str | None,
    every: float = 3600.0,
    out: storage.Folder | None = None,
    each: Callable[[Verdict], None] | None = None,
    **options: Any,
) -> ExitCode:
    """Judge each hour from `since` to `until`, or less, and keep the counts of its producers in a table.

    The table is a folder of Parquet files, one for each hour (UTC), with a row for each producer that may
    have events of that hour. An hour that is judged again replaces its file as a whole, so it counts once.
    Where an hour fails, its old file stays, and so does a broken promise that is only unproven now: evidence
    is gone. Ledgers of this host whose process has ended without a ``close`` line get an ``ended`` line, as
    by ``logclient push``. ``docs/verify.md`` has the columns, and recipes.

    Args:
        folder: the folder or URL of the table. A new folder has mode 0700.
        ledger: as for `run`.
        capture: as for `run`.
        since: the beginning of the first hour, as for `run`. It must be a full hour in UTC.
        until: the end of the last hour, likewise.
        every: seconds in place of an hour: minutes that divide one. `since` and `until` must fit them. A
            table has intervals of one length.
        out: as for `run`; only with a single hour.
        each: called with the verdict of each hour, after its file was written.
        **options: all others of `run` but `producers`.

    Returns:
        The worst exit code of the hours: 1 before 3 before 0.

    Raises:
        LedgerError: as of `run`, or the table cannot be written: the attribute ``verdict`` of the error then
            has the verdict of that hour.
        ConfigError: as of `run`, or a time is missing or no full hour, or there are several hours with `out`,
            or the table has intervals of another length.
        MissingExtra: as of `run`.
        VerifyError: as of `run`.
    """
    import numpy as np

    if os.fspath(folder).startswith("delta:"):
        raise ConfigError("append: it writes a folder of Parquet files: for Delta, use `producers` of run")
    times = Selection.read(since, until)
    step = round(every * 1_000_000) if hasattr(every, "__float__") and 0 < every <= 3600 else 0
    if not step or step % _MINUTE_US or _HOUR_US % step:
        raise ConfigError(f"every: {every} s are not minutes that divide an hour")
    what = "a full hour" if step == _HOUR_US else f"a multiple of {step // _MINUTE_US} minutes"
    for name, us in (("since", times.since_us), ("until", times.until_us)):
        if us is None or us % step:
            raise ConfigError(f"{name}: append needs {what} in UTC, such as 2026-05-01T12:00:00Z")
    assert times.since_us is not None and times.until_us is not None
    hours = range(times.since_us, times.until_us, step)
    unit = "h" if step == _HOUR_US else "m"
    if out is not None and len(hours) > 1:
        raise ConfigError("out: it has room for the verdict of one hour, and append has several")
    place = storage.resolve(folder, "append")
    if storage.is_url(place):
        storage.check_writable(place, "append")
    else:
        with output.errors_named(place, "append"):
            os.makedirs(place, mode=0o700, exist_ok=True)
    with output.errors_named(place, "append"):
        listed = storage.list_names(place, "append")
    kept = {name for name in listed if _HOUR.fullmatch(name)}
    before = next(filter(None, (_kept(place, name) for name in sorted(kept))), None)
    if before is not None and before[0] != step:
        minutes = before[0] / _MINUTE_US
        raise ConfigError(f"every: the table has intervals of {minutes:g} minutes: use another folder")
    for one in storage.expand(ledger, "ledger"):
        if not storage.is_url(one):
            push.note_ends(one, socket.gethostname())
    if hasattr(options.get("arrived"), "read_next_batch"):
        from logclient.verify import tables

        options["arrived"] = tables.kept(options["arrived"])  # of several hours each reads it
    codes = set()
    with _one_session(options):
        for hour in hours:
            rows: list[pa.Table] = []
            name = str(np.datetime64(hour, "us").astype(f"datetime64[{unit}]")).replace(":", "-")
            seconds = hour // 1_000_000
            verdict = job.run(
                ledger,
                capture,
                out=out,
                since=seconds,
                until=(hour + step) // 1_000_000,
                producers=rows.append,
                **options,
            )
            data = _encode(rows[0], hour, hour + step, verdict)
            name = f"{name}.parquet"
            unproven = verdict.exit_code == ExitCode.UNREACHABLE
            try:
                old = _kept(place, name) if unproven and name in kept else None
                if old is None or old[1] != ExitCode.BROKEN:
                    with output.errors_named(place, "append"):
                        output.replace(storage.join(place, name), data, "append")
            except LedgerError as error:
                raise output.UnwrittenVerdict(str(error), verdict) from error
            codes.add(verdict.exit_code)
            if each is not None:
                each(verdict)
    return max(codes, key=(ExitCode.OK, ExitCode.UNREACHABLE, ExitCode.BROKEN).index)


def _kept(place: str, name: str) -> tuple[int, int] | None:
    """Return the length of a file's interval, and its exit code; None: it is damaged, or none of ours."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with storage.open_file(storage.join(place, name), "append") as file:
            rows = parquet.ParquetFile(file).read(["hour", "until", "exit_code"]).slice(0, 1)
        times = (rows[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()) for name in ("hour", "until"))
        [begin], [end] = (column.to_pylist() for column in times)
        return end - begin, int(rows["exit_code"][0].as_py())
    except (LedgerError, OSError, ValueError, TypeError, LookupError, pa.ArrowException):
        return None


@contextmanager
def _one_session(options: dict[str, Any]) -> Iterator[None]:
    """Give all hours one session of Spark, where each would have its own."""
    if options.get("runner") == "local" or any(options.get(x) is not None for x in ("spark", "arrived")):
        yield
        return
    given = {name: options.pop(name, None) for name in ("master", "heap", "packages", "conf")}
    connector = job.connector() if options.get("kafka") is not None else ""
    with job.Session(**given, connector=connector) as session:
        options["spark"] = session.spark
        yield


def _encode(rows: pa.Table, hour: int, until: int, verdict: Verdict) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    time = pa.timestamp("us", "UTC")
    more = {
        "hour": pa.scalar(hour, time),
        "until": pa.scalar(until, time),
        "exit_code": pa.scalar(int(verdict.exit_code), pa.int32()),
        "sentence": pa.scalar(storage.encodable(verdict.sentence)),
        **{
            f"latency_{name}": pa.scalar(getattr(verdict.latency, name, None), pa.float64())
            for name in ("p50", "p99", "max")
        },
        "judged": pa.scalar(verdict.made_us, time),
    }
    for name, value in more.items():
        rows = rows.append_column(name, pa.repeat(value, len(rows)))
    sink = pa.BufferOutputStream()
    first = ["hour", "until"]
    parquet.write_table(rows.select([*first, *(x for x in rows.column_names if x not in first)]), sink)
    return bytes(sink.getvalue())
