"""Recorded bytes of a live logjam-device, against our client and our decoder.

The decoder's status of each recorded message must predict what the device did: reply, drop, republish or die.
Where a client may send a message, our encoder makes the same frames (compressed bodies are compared opened);
every other message it refuses or cannot express.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from logclient._ext.inflight import InflightBatches
from logclient._ext.logjam import STATUS_NAMES, Codec, Decoder
from logclient._ext.queue import EventQueue
from logclient.errors import ConfigError
from logclient.logjam.core import Logjam
from tests import support
from tests.oracle import logjam as oracle
from tests.support import recordings
from tests.support.configs import config_for

pytestmark = pytest.mark.unit

PRODUCER = bytes(10)

# The device checks these; it never opens a body.
NOT_TAKEN = {"torn", "bad_frames", "no_meta", "old_meta", "bad_meta", "bad_app_env"}
BAD_METAS = {"old_meta", "bad_meta"}
BAD_BODIES = {"bad_compression", "bad_zlib", "bad_snappy", "bad_lz4", "too_large", "not_json"}


RECORDED = recordings.cases(recordings.LOGJAM)
# The others are a device's heartbeats: tests/logjam/test_logjam_device_vectors.py.
CASES = [case for case in RECORDED if case["frames_in_hex"]]
IDS = [f"{i}-{case['name']}-{' '.join(case['device_args']) or 'default'}" for i, case in enumerate(CASES)]
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)


def message_of(case: dict[str, Any]) -> list[bytes]:
    """Return the frames as they travelled: a REQ socket writes an empty frame first."""
    parts = [bytes.fromhex(part) for part in case["frames_in_hex"]]
    return [b"", *parts] if case["socket"] == "REQ" else parts


def judge(parts: list[bytes]) -> tuple[str, int]:
    """Return (status of the decoder, whether it is a request)."""
    support.need("snappy")
    support.need("lz4.block")
    unit = oracle.join(parts)
    rows = Decoder().decode(unit, array("q", [0]), array("q", [len(unit)]))
    assert len(rows) == 1
    return STATUS_NAMES[rows.status[0]], rows.request[0]


@each_case
def test_decoder_predicts_the_device(case: dict[str, Any]) -> None:
    parts = message_of(case)
    word, request = judge(parts)
    push = case["socket"] == "PUSH"
    if not case["device_alive"]:
        assert word == "bad_frames"
        return
    taken = word not in NOT_TAKEN
    if "-A" in case["device_args"]:
        taken = taken or word in BAD_METAS
    if push:
        taken = (taken or word == "no_meta") and not request
    published = taken and word not in ("bad_topic", "ping")
    assert published == bool(case["published_frames_hex"]), word
    replies = [[bytes.fromhex(part) for part in reply] for reply in case["reply_frames_hex"]]
    if push or parts[0] != b"" or case["socket"] == "REQ":
        assert replies == []
    elif len(parts) > 1 and parts[1] == b"ping":
        assert replies[0][1] == (b"200 OK" if word == "ping" else b"400 Bad Request")
    else:
        want = b"202 Accepted" if taken else b"400 Bad Request"
        assert [reply[1] for reply in replies] == [want]


def encoded(
    body: bytes, app_env: bytes, topic: bytes, meta: bytes, request: bool
) -> tuple[list[list[bytes]], str]:
    """Return (the messages that our client makes of such an event, the status of the event)."""
    _, compression, _, _, created_ms, number = oracle.META.unpack(meta)
    topics = [topic, b"events", b"frontend.page", b"frontend.ajax", b"javascript", b"mobile"]
    codec = Codec(
        PRODUCER, app_env, topics,
        request=request, compression=compression, compress_over=0, identity=False, number=number,
    )  # fmt: skip
    codec.connected(1.0)
    queue = EventQueue()
    assert queue.push(body, 2, 1, created_ms * 1000) == 1
    batch = InflightBatches(queue).take(1, 1 << 20)
    assert batch is not None
    codec.encode(batch.capsule, 1, 1.0)
    return oracle.split(codec.take_bytes()), batch.statuses()[1]


def classify(parts: list[bytes], push: bool) -> str:
    """Compare our client with a message: ``equal``, or why our client does not send it."""
    word, _ = judge(parts)
    request = parts[0] == b""
    if word in NOT_TAKEN - {"bad_app_env"} or word == "ping" or (push and request):
        return "has no such form"  # our client makes its frames and meta itself
    app_env, topic, body, meta = parts[request:]
    try:
        Logjam(
            config_for(
                "logjam",
                f"/{app_env.decode('latin-1')}",
                topic=topic.decode("latin-1") or "?",
                compression="none",
            ),
            PRODUCER,
        )
    except ConfigError as error:
        return str(error).partition(":")[0] + " refused"
    compression, device, created_ms, number = oracle.META.unpack(meta)[1:2] + oracle.META.unpack(meta)[3:]
    if compression > 3 or device or number == 0 or created_ms == 0:
        return "has no such meta"  # our events have a time, and our numbers begin at 1
    try:
        content = oracle.unpack(compression, body)
    except ValueError:
        return "has no such framing"  # our compressors make no other
    messages, status = encoded(content, app_env, topic, meta, request)
    if not messages:
        assert status == "failed"
        return "body refused"
    (got,) = messages
    assert status == "inflight"
    at = request + 2
    assert oracle.unpack(got[at + 1][2], got[at]) == content
    assert got[:at] + got[at + 1 :] == parts[:at] + parts[at + 1 :]
    return "equal"


@each_case
def test_client_writes_the_same_or_cannot_send_it(case: dict[str, Any]) -> None:
    parts = message_of(case)
    done = classify(parts, case["socket"] == "PUSH")
    word, _ = judge(parts)
    if done == "equal":
        assert word in ("ok", "foreign", "no_id")
        assert case["published_frames_hex"] or case["socket"] == "REQ"
    elif not case["published_frames_hex"] or word in BAD_BODIES:
        return  # such a message should not be sent
    else:
        # the device accepts more than its documentation allows, or than a client needs
        assert done in ("app-env refused", "topic refused", "has no such meta", "has no such form")


def compressed_by(method: int) -> Callable[[dict[str, Any]], bool]:
    return lambda case: judge(message_of(case))[0] not in NOT_TAKEN and message_of(case)[-1][2] == method


def has_status(*some: str) -> Callable[[dict[str, Any]], bool]:
    """Return a predicate: the decoder gives one of these statuses."""
    return lambda case: judge(message_of(case))[0] in some


KINDS: recordings.Kinds = {
    "a message as a client writes it": lambda case: classify(message_of(case), False) == "equal",
    "a request": lambda case: message_of(case)[0] == b"",
    "a ping of Logjam": has_status("ping"),
    "a message without meta": has_status("no_meta"),
    "a message whose meta is wrong": has_status("bad_meta"),
    "a message of too many frames": has_status("bad_frames"),
    "a body compressed by zlib": compressed_by(1),
    "a body compressed by snappy": compressed_by(2),
    "a body compressed by lz4": compressed_by(3),
    "a body that cannot be read": has_status(*BAD_BODIES),
}


def test_recordings_cover_every_kind_of_message(capsys: pytest.CaptureFixture[str]) -> None:
    found = Counter(classify(message_of(case), case["socket"] == "PUSH") for case in CASES)
    recordings.assert_replayed("Logjam, client", CASES, CASES, KINDS, missing=["a ping of Logjam"])
    with capsys.disabled():
        print()
        print(recordings.summary("Logjam, client", CASES, CASES, KINDS))
        print("of them", ", ".join(f"{n} {done}" for done, n in sorted(found.items())))
    assert found["equal"] > 0 or not any(judge(message_of(case))[0] == "ok" for case in CASES)
