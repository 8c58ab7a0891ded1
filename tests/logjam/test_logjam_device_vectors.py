"""Recorded Logjam, the device's side: ours replies, drops and publishes as the real one did.

Without a socket, and again over real ones. Not compared are sequences of publications, created-ms where the
message had none, and host names; compressed bodies are opened before they are compared.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from logclient.logjam.messages import decompress, read_meta
from logclient.testing.logjam import Collector
from logclient.testing.logjam_device import Device
from tests import support
from tests.support import recordings

zmq = pytest.importorskip("zmq")

DEVICE = 7  # the recorded one's number
NOW = 1_795_155_232_892

Frames = list[bytes]


def options(arguments: list[str]) -> dict[str, Any]:
    """Translate the arguments of a recorded device into options of our collector.

    Raises:
        ValueError: There is no such option.
    """
    found: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument == "-A":
            found["allow_invalid"] = True
        elif argument == "-x":
            found["recompress"] = next(rest)
        else:
            raise ValueError(f"our device has nothing for {argument!r}")
    return found


def is_playable(case: dict[str, Any]) -> bool:
    try:
        options(case["device_args"])
    except ValueError:
        return False
    return True


RECORDED = recordings.cases(recordings.LOGJAM)
CASES = list(filter(is_playable, RECORDED))
IDS = ["-".join([str(i), case["name"], *case["device_args"]]) for i, case in enumerate(CASES)]
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)


def aborts_the_real_device(case: dict[str, Any]) -> bool:
    """Return whether the real device aborts, over too many frames; ours refuses them."""
    return not case["device_alive"]


def unhex(parts: list[str]) -> Frames:
    return [bytes.fromhex(part) for part in parts]


def sent(case: dict[str, Any]) -> Frames:
    """Return the frames as the device receives them."""
    frames = unhex(case["frames_in_hex"])
    return [b"", *frames] if case["socket"] == "REQ" else frames


def has_no_time(case: dict[str, Any]) -> bool:
    """Return whether the message has no time, or none that can be read."""
    meta, _ = read_meta(sent(case)[-1] if case["frames_in_hex"] else b"")
    return meta.created_ms == 0


def normalised(case: dict[str, Any], published: Frames) -> tuple[Any, ...]:
    """Return what can be compared of a publication."""
    *rest, body, frame = published
    meta, valid = read_meta(frame)
    if "-x" in case["device_args"] and meta.compression in (1, 2, 3):
        body = decompress(meta.compression, body, 1 << 20)
    if rest[0] == b"heartbeat":
        rest[1] = b"tcp://host:port"
    created = 0 if has_no_time(case) else meta.created_ms
    return (*rest, body, valid, meta._replace(sequence=0, created_ms=created))


def without_host_names(replies: list[Frames]) -> list[Frames]:
    """Return replies without the host name of a pong."""
    return [[*reply[:2], *(b"host" for _ in reply[2:])] for reply in replies]


def recorded(case: dict[str, Any]) -> tuple[list[Frames], list[tuple[Any, ...]]]:
    replies = without_host_names([unhex(reply) for reply in case["reply_frames_hex"]])
    return replies, [normalised(case, unhex(parts)) for parts in case["published_frames_hex"]]


def is_heartbeat(case: dict[str, Any]) -> bool:
    return not case["frames_in_hex"]


@each_case
def test_device_answers_and_publishes_as_recorded(case: dict[str, Any]) -> None:
    device = Device(DEVICE, host="host", **options(case["device_args"]))
    replies: list[Frames] = []
    published: list[Frames] = []
    if is_heartbeat(case):
        published.append(device.heartbeat("tcp://host:port", NOW))
    else:
        answer = device.receive(sent(case), push=case["socket"] == "PUSH")
        replies += [answer.reply] if answer.reply is not None else []
        if answer.message is not None:
            published.append(device.publication(answer.message, NOW))
    if case["socket"] == "REQ":  # REQ drops the replies, as they have no leading empty frame
        replies = []
    got = (without_host_names(replies), [normalised(case, parts) for parts in published])
    if aborts_the_real_device(case):
        assert got == ([], [])
        return
    assert got == recorded(case)
    for parts in published:
        meta, _ = read_meta(parts[-1])
        assert (meta.device, meta.sequence) == (DEVICE, 1)
        assert meta.created_ms == (NOW if has_no_time(case) else meta.created_ms)


# --- over sockets ------------------------------------------------------------------------------

BARRIER = [
    b"barrier-test", b"logs", b"{}", struct.pack(">HBBIQQ", 0xCABD, 0, 1, 0, NOW, 0)
]  # fmt: skip


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[tuple[str, ...], tuple[Collector, Any, Any]]]:
    """Start a device, a DEALER and a subscribed SUB for each set of options."""
    support.need("snappy")
    support.need("lz4.block")
    running = {}
    context = zmq.Context()
    try:
        for arguments in {tuple(case["device_args"]) for case in CASES}:
            collector = Collector(device=DEVICE, heartbeat=0.2, **options([*arguments]))
            collector.start()
            dealer, sub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
            sub.subscribe(b"")
            sub.connect(collector.publish_url)
            dealer.connect(f"tcp://127.0.0.1:{collector.port}")
            assert collector.wait_for(lambda counts: counts.subscriptions > 0)
            running[arguments] = (collector, dealer, sub)
        yield running
    finally:
        context.destroy(linger=0)
        for collector, _, _ in running.values():
            collector.stop()


def receive(sock: Any) -> Frames:
    assert sock.poll(20_000), "nothing came"
    return sock.recv_multipart()


@each_case
def test_device_over_sockets_behaves_as_recorded(
    case: dict[str, Any], devices: dict[tuple[str, ...], tuple[Collector, Any, Any]]
) -> None:
    """A barrier ends each case: a further message on the same socket, which comes out behind it."""
    collector, dealer, sub = devices[tuple(case["device_args"])]
    other = None
    if case["socket"] in ("PUSH", "REQ"):
        other = sub.context.socket(zmq.PUSH if case["socket"] == "PUSH" else zmq.REQ)
        port = collector.push_port if case["socket"] == "PUSH" else collector.port
        other.connect(f"tcp://127.0.0.1:{port}")
    sender = other or dealer
    if not is_heartbeat(case):
        sender.send_multipart(unhex(case["frames_in_hex"]))
    if case["socket"] == "PUSH":
        sender.send_multipart(BARRIER)
    if case["socket"] != "PUSH" and not is_heartbeat(case):
        published: list[Frames] = []
        while case["socket"] == "REQ" and not published:  # the barrier goes over another socket
            published += [parts for parts in [receive(sub)] if parts[0] != b"heartbeat"]
        dealer.send_multipart([b"", *BARRIER])
    else:
        published = []
    replies: list[Frames] = []
    while not is_heartbeat(case) and case["socket"] != "PUSH":
        replies.append(receive(dealer))
        if replies[-1][0] == BARRIER[0]:
            assert replies.pop() == [BARRIER[0], b"202 Accepted"]
            break
    while True:
        parts = receive(sub)
        if parts[0] == BARRIER[0]:
            break
        if is_heartbeat(case) == (parts[0] == b"heartbeat"):
            published.append(parts)
            if is_heartbeat(case):
                break
    if other is not None:
        if case["socket"] == "REQ":
            assert not other.poll(20)  # REQ drops the reply
        other.close(linger=0)
    got = (without_host_names(replies), [normalised(case, parts) for parts in published])
    assert got == (([], []) if aborts_the_real_device(case) else recorded(case))


KINDS: recordings.Kinds = {
    "DEALER": lambda case: case["socket"] == "DEALER",
    "PUSH": lambda case: case["socket"] == "PUSH",
    "REQ": lambda case: case["socket"] == "REQ",
    "a heartbeat": is_heartbeat,
    "a request": lambda case: case["reply_frames_hex"],
    "a message that is dropped": lambda case: not case["published_frames_hex"],
    "a device that takes invalid messages": lambda case: "-A" in case["device_args"],
    "a device that compresses by zlib": lambda case: "zlib" in case["device_args"],
    "a device that compresses by snappy": lambda case: "snappy" in case["device_args"],
    "a device that compresses by lz4": lambda case: "lz4" in case["device_args"],
    "a device that aborts": aborts_the_real_device,
}


def test_recordings_cover_every_kind_of_message(capsys: pytest.CaptureFixture[str]) -> None:
    differing = sum(map(aborts_the_real_device, CASES))
    recordings.assert_replayed("Logjam, device", RECORDED, CASES, KINDS, deliberate=differing)
    with capsys.disabled():
        print()
        print(recordings.summary("Logjam, device", RECORDED, CASES, KINDS, deliberate=differing))
