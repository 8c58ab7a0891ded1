"""Times that the application gives an event: what goes out is RFC 3339, and the same instant."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient._ext.record import Encoder
from logclient.records.times import corrected
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.examples import examples
from tests.support.patience import PATIENCE
from tests.support.record_fields import members_of, record_of

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Kiritimati")
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
NOON = "2026-11-27T17:17:15.000000Z"

ZONED = st.datetimes(
    datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.integers(-1439, 1439).map(
        lambda minutes: timezone(timedelta(minutes=minutes))
    ),
)  # fmt: skip


TEXTS = st.text() | st.from_regex(
    r"[012]\d{3}-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d:[0-6]\d(\.\d{0,10})?(Z|[+-][0-2]\d:?[0-6]\d)?.?",
    fullmatch=True,
)


@contextmanager
def _zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def _sent(event: dict[Any, Any]) -> dict[str, Any]:
    return members_of(Encoder(correct=corrected).encode(event)[0])


def _instant(written: object) -> datetime:
    assert isinstance(written, str) and RFC3339.fullmatch(written), written
    return datetime.fromisoformat(written)


def _is_instant(text: str) -> bool:
    with suppress(ValueError):
        return bool(datetime.fromisoformat(text))
    return False


def _is_now(written: object) -> bool:
    return abs(_instant(written) - datetime.now(UTC)) < timedelta(seconds=60)


class TestInstants:
    @examples(300)
    @given(ZONED, st.sampled_from(ZONES), st.sampled_from(["T", " ", "t"]), st.booleans())
    def test_a_time_with_a_zone_stays_that_time(
        self, moment: datetime, zone: str, between: str, basic: bool
    ) -> None:
        shown = moment.isoformat(between)
        shown = shown[:-3] + shown[-2:] if basic else shown
        with _zone(zone):
            for form in (moment, shown, shown.replace("+00:00", "Z"), shown.replace("+00:00", " UTC")):
                assert _instant(_sent({"@timestamp": form})["@timestamp"]) == moment
            assert _instant(_sent({"at": moment})["at"]) == moment

    @pytest.mark.parametrize("moment", ["2026-11-28T23:59:58Z", "1970-01-01T00:00:00.123456789Z"])
    def test_a_time_of_rfc_3339_stays_as_it_is_and_no_other_text_does(self, moment: str) -> None:
        for at in range(len(moment)):
            for character in map(chr, range(128)):
                text = moment[:at] + character + moment[at + 1 :]
                sent = _sent({"@timestamp": text})["@timestamp"]
                _instant(sent)  # which is valid
                assert sent == text or not RFC3339.fullmatch(text) or not _is_instant(text), text

    @examples(300)
    @given(st.datetimes(datetime(1902, 1, 1), datetime(2037, 12, 31)), st.sampled_from(ZONES))
    def test_a_time_without_a_zone_is_local(self, moment: datetime, zone: str) -> None:
        with _zone(zone):
            expected = moment.astimezone(UTC)
            assert _instant(_sent({"@timestamp": moment})["@timestamp"]) == expected
            first = moment.replace(fold=0).astimezone(UTC)  # text does not say which of two hours it means
            for form in (moment.isoformat(), moment.isoformat(" "), str(moment).replace(".", ",")):
                assert _instant(_sent({"@timestamp": form})["@timestamp"]) == first
            made = members_of(Encoder().encode_record(record_of({"at": moment, "all": [moment]}))[0])
            assert _instant(made["at"]) == _instant(made["all"][0]) == expected
            midnight = datetime(moment.year, moment.month, moment.day).astimezone(UTC)
            for day in (moment.date(), str(moment.date())):
                assert _instant(_sent({"@timestamp": day})["@timestamp"]) == midnight

    @examples(200)
    @given(st.integers(10**9, 9 * 10**9), st.integers(0, 999), st.sampled_from(ZONES))
    def test_numbers_count_from_1970(self, seconds: int, ms: int, zone: str) -> None:
        expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, milliseconds=ms)
        whole = seconds * 1000 + ms
        with _zone(zone):
            for form in (whole, whole * 10**3, whole * 10**6, Decimal(whole) / 1000):
                assert _instant(_sent({"@timestamp": form})["@timestamp"]) == expected
            found = _instant(_sent({"@timestamp": whole / 1000})["@timestamp"])
            assert abs(found - expected) < timedelta(microseconds=20)  # what a float can say

    @pytest.mark.parametrize("zone", ZONES)
    def test_times_of_other_libraries_are_times(self, zone: str) -> None:
        numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
        naive = datetime(2026, 11, 27, 8, 17, 15, 123456)
        with _zone(zone):
            local, in_utc = naive.astimezone(UTC), naive.replace(tzinfo=UTC)
            in_ns = int(in_utc.timestamp()) * 10**9 + 123_456_000

            class Moment:  # as of arrow
                def isoformat(self) -> str:
                    return f"{in_utc.isoformat()}"

            for form, expected in (
                (pandas.Timestamp(naive), local),
                (pandas.Timestamp(naive, tz="Asia/Tokyo"), naive.replace(tzinfo=ZoneInfo("Asia/Tokyo"))),
                (numpy.datetime64(in_ns, "ns"), in_utc),
                (numpy.datetime64(naive), in_utc),
                (numpy.datetime64("2026-11-27"), datetime(2026, 11, 27, tzinfo=UTC)),
                (numpy.int64(in_ns), in_utc),
                (numpy.uint64(in_ns), in_utc),
                (Moment(), in_utc),
                (datetime(2026, 11, 1, 1, 30, fold=1), datetime(2026, 11, 1, 1, 30, fold=1).astimezone(UTC)),
            ):
                assert _instant(_sent({"@timestamp": form})["@timestamp"]) == expected, form
            for form in (pandas.NaT, numpy.datetime64("NaT"), numpy.timedelta64(5, "s"), numpy.bool_(True)):
                assert _is_now(_sent({"@timestamp": form})["@timestamp"]), form
            assert _instant(_sent({"at": pandas.Timestamp(naive)})["at"]) == local

    @pytest.mark.parametrize("given", ["2026-11-27T08:17:15Z", "2026-11-27T08:17:15.123456789+01:00"])
    def test_what_is_right_stays_as_it_is(self, given: str) -> None:
        event = {"@timestamp": given}
        assert corrected(event) == (event, 0)
        assert corrected(event)[0] is event

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000000Z"),
            ("2016-12-31T23:59:60.5Z", "2017-01-01T00:00:00.500000Z"),
            ("2017-01-01T05:29:60+05:30", "2017-01-01T00:00:00.000000Z"),
            ("2026-11-27t08:17:15z", "2026-11-27T08:17:15.000000Z"),
            ("2026-11-27T08:17:15.1234567891234Z", "2026-11-27T08:17:15.123456Z"),
            ("2026-11-27 08:17:15 +0100", "2026-11-27T07:17:15.000000Z"),
            ("2026-11-27T08:17:15+01", "2026-11-27T07:17:15.000000Z"),
            ("2026-11-27 08:17:15 GMT", "2026-11-27T08:17:15.000000Z"),
            (datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=53))), "2025-12-31T23:59:07.000000Z"),
            (-1, "1969-12-31T23:59:59.000000Z"),
            (1.5, "1970-01-01T00:00:01.500000Z"),
        ],
    )
    def test_other_forms_are_read(self, given: Any, expected: str) -> None:
        assert corrected({"@timestamp": given}) == ({"@timestamp": expected}, 0)

    def test_times_of_numpy_are_utc(self) -> None:
        numpy = pytest.importorskip("numpy")
        with _zone("America/New_York"):
            made = _sent({"at": numpy.datetime64("2026-11-27T17:17:15")})
        assert _instant(made["at"]) == datetime.fromisoformat(NOON)

    def test_a_field_has_no_offset_with_seconds(self) -> None:
        moment = datetime(1900, 1, 1, 12, tzinfo=ZoneInfo("Europe/Amsterdam"))
        assert _instant(_sent({"at": moment})["at"]) == moment

    @pytest.mark.parametrize("zone", ZONES)
    @pytest.mark.parametrize("moment", [datetime.min, datetime.max])
    def test_the_ends_of_time_have_a_zone(self, moment: datetime, zone: str) -> None:
        with _zone(zone):
            assert RFC3339.fullmatch(_sent({"at": moment})["at"])
            assert RFC3339.fullmatch(_sent({"@timestamp": moment})["@timestamp"])


class _Raises(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        raise RuntimeError("no offset")


NONSENSE: list[Any] = [
    "yesterday", "13:17:15", "Fri Nov 27 08:17:15 2026", "2026-02-30T00:00:00Z", "2026-11-27T25:00:00Z",
    "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "2026-11-27T08:17:15+24:00", "9999-12-31 23:59:59-05:00",
    "x" * 10_000, True, False, float("inf"), 10**400, 1e300, [1], b"2026-11-27T08:17:15Z",
]  # fmt: skip


class TestNonsense:
    @pytest.mark.parametrize("given", NONSENSE, ids=[repr(value)[:30] for value in NONSENSE])
    def test_it_becomes_now_and_is_kept(self, given: Any) -> None:
        made, moved = corrected({"@timestamp": given, "labels.timestamp": 1})
        assert _is_now(made["@timestamp"])
        assert (made["labels.timestamp"], made["labels.timestamp_2"], moved) == (1, given, 1)

    @pytest.mark.parametrize("given", [None, ""])
    def test_nothing_is_now(self, given: Any) -> None:
        made, moved = corrected({"@timestamp": given})
        assert _is_now(made.pop("@timestamp")) and (made, moved) == ({}, 0)

    def test_a_zone_that_raises_costs_no_event(self) -> None:
        made = _sent({"@timestamp": datetime(2026, 1, 1, tzinfo=_Raises()), "n": 1})
        assert _is_now(made["@timestamp"]) and made["n"] == 1

    @examples(500)
    @given(TEXTS)
    def test_any_text_goes_out_as_a_time(self, given: str) -> None:
        """What the encoder takes without asking is what `corrected` leaves as it is."""
        asked: list[str] = []

        def correct(event: dict[Any, Any], label: str) -> tuple[dict[Any, Any], int]:
            asked.append(given)
            return corrected(event, label)

        made = members_of(Encoder(correct=correct).encode({"@timestamp": given})[0])["@timestamp"]
        _instant(made)
        assert asked or (corrected({"@timestamp": given}) == ({"@timestamp": given}, 0) and made == given)

    @pytest.mark.parametrize("timestamp", [False, True])
    @pytest.mark.parametrize(
        "before", [{}, {1: 2}, {"a": object}, {"a": 1, "a.b": 2}, {"host": "x"}, {"a.b": 1}]
    )
    def test_it_is_right_wherever_it_stands(self, before: dict[Any, Any], timestamp: bool) -> None:
        """Whatever else has the document begun again; and there is one time only."""
        encoder = Encoder(correct=corrected, timestamp=timestamp, nested=True)
        for event in (
            {**before, "@timestamp": 0},
            {"@timestamp": 0, **before},
            {**before, "@timestamp": [1]},
        ):
            body, _, _, moved = encoder.encode(event)
            made = members_of(body)
            assert _instant(made["@timestamp"]) == datetime(1970, 1, 1, tzinfo=UTC) or event[
                "@timestamp"
            ] == [1]
            assert ("timestamp" in made.get("labels", {})) == (event["@timestamp"] == [1]) <= moved
        assert body.count(b'"@timestamp":') == 1


class TestClients:
    """Every form, and every way to log, over the wire."""

    @staticmethod
    def time_of(event: dict[str, Any]) -> datetime:
        if "Timestamp" in event:
            return datetime.fromtimestamp(int(event["Timestamp"]) / 1e9, UTC)
        if "timestamp" in event:
            return datetime.fromtimestamp(event["timestamp"], UTC)
        return _instant(event["@timestamp"])

    @pytest.mark.parametrize("form", ["ecs", "ecs_dotted", "logstash", "json", "gelf", "otel"])
    @pytest.mark.parametrize("revised", [False, True])
    def test_send(self, form: str, revised: bool) -> None:
        options: dict[str, Any] = {"before_send": lambda event: event} if revised else {}
        with (
            _zone("America/New_York"),
            Collector(keep=True) as server,
            logclient.connect(server.url, format=form, **options) as client,
        ):
            for given in ("2026-11-27 12:17:15", datetime(2026, 11, 27, 12, 17, 15), 1795799835, "yesterday"):
                client.send({"message": "m", "@timestamp": given})
            assert client.flush(PATIENCE) == 0
            assert client.stats().moved == 1
            *good, odd = server.events(4, PATIENCE)
        assert [self.time_of(event) for event in good] == [datetime.fromisoformat(NOON)] * 3
        assert abs(self.time_of(odd) - datetime.now(UTC)) < timedelta(seconds=60)
        assert "yesterday" in str(odd)

    def test_before_send_may_set_a_time(self) -> None:
        moments: list[Any] = [datetime(2026, 11, 27, 12, 17, 15), "2026-11-27 12:17:15", 1795799835]

        def stamp(event: dict[str, Any]) -> dict[str, Any]:
            return {**event, "@timestamp": moments.pop()}

        with (
            _zone("America/New_York"),
            Collector(keep=True) as server,
            logclient.connect(server.url, before_send=stamp) as client,
        ):
            for _ in range(3):
                client.send("m")
            assert client.flush(PATIENCE) == 0
            assert [event["@timestamp"] for event in server.events(3, PATIENCE)] == [NOON] * 3

    @pytest.mark.parametrize(
        ("form", "utc", "given"),
        [(None, False, None), ("iso", False, None), ("iso", True, None), ("%H:%M:%S", True, "kept")],
    )
    def test_structlog(self, form: str | None, utc: bool, given: str | None) -> None:
        structlog = pytest.importorskip("structlog")
        from logclient.integrations.structlog import LoggerFactory

        stamper = structlog.processors.TimeStamper(fmt=form or "%Y-%m-%d %H:%M:%S", utc=utc)
        with _zone("America/New_York"), Collector(keep=True) as server:
            factory = LoggerFactory(server.url)
            structlog.wrap_logger(factory("shop"), [stamper]).info("hi")
            assert factory.client.flush(PATIENCE) == 0
            factory.client.close()
            [event] = map(dotted, server.events(1, PATIENCE))
        assert _is_now(event["@timestamp"])
        assert ("labels.timestamp" in event) == (given is not None)

    def test_log_records_have_their_own(self) -> None:
        with (
            _zone("Asia/Kolkata"),
            Collector(keep=True) as server,
            logclient.connect(server.url) as client,
        ):
            handler = logclient.Handler(client=client)
            record = logging.LogRecord("shop", 20, "f", 1, "m", (), None)
            record.__dict__.update({"at": datetime(2026, 11, 27, 22, 47, 15), "@timestamp": "x"})
            handler.handle(record)
            assert client.flush(PATIENCE) == 0
            [event] = map(dotted, server.events(1, PATIENCE))
        assert _instant(event["at"]) == datetime.fromisoformat(NOON)
        assert _instant(event["@timestamp"]).timestamp() == pytest.approx(record.created, abs=1e-5)
