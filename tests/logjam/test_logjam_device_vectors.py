"""Recorded Logjam, the device's side: what ours answers, drops and publishes is what the real one did.

Without a socket, and again over real ones. Masked: the sequence of what is published always, its
created-ms where the message had none, host names; compressed bodies are opened before they are compared.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from logclient.logjam.collector import Collector
from logclient.logjam.device import Device
from logclient.logjam.messages import decompress, read_meta
from tests import support
from tests.support import recordings

zmq = pytest.importorskip("zmq")

DEVICE = 7  # the recorded one's number
NOW = 1_795_155_232_892

Frames = list[bytes]


def options(arguments: list[str]) -> dict[str, Any]:
    """Those of our collector for the arguments of a recorded device.

    Raises:
        ValueError: It has no such option.
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


def playable(case: dict[str, Any]) -> bool:
    try:
        options(case["device_args"])
    except ValueError:
        return False
    return True


RECORDED = recordings.cases(recordings.LOGJAM)
CASES = list(filter(playable, RECORDED))
IDS = ["-".join([str(i), case["name"], *case["device_args"]]) for i, case in enumerate(CASES)]
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)


def deliberate(case: dict[str, Any]) -> bool:
    """Refused, where the real device aborts: messages of too many frames."""
    return not case["device_alive"]


def unhex(parts: list[str]) -> Frames:
    return [bytes.fromhex(part) for part in parts]


def sent(case: dict[str, Any]) -> Frames:
    """The frames as the device gets them."""
    frames = unhex(case["frames_in_hex"])
    return [b"", *frames] if case["socket"] == "REQ" else frames


def without_time(case: dict[str, Any]) -> bool:
    """The message said no time, or in a meta frame that cannot be read."""
    meta, _ = read_meta(sent(case)[-1] if case["frames_in_hex"] else b"")
    return meta.created_ms == 0


def normalised(case: dict[str, Any], published: Frames) -> tuple[Any, ...]:
    """What may be compared of a publication."""
    *rest, body, frame = published
    meta, valid = read_meta(frame)
    if "-x" in case["device_args"] and meta.compression in (1, 2, 3):
        body = decompress(meta.compression, body, 1 << 20)
    if rest[0] == b"heartbeat":
        rest[1] = b"tcp://host:port"
    created = 0 if without_time(case) else meta.created_ms
    return (*rest, body, valid, meta._replace(sequence=0, created_ms=created))


def answered(replies: list[Frames]) -> list[Frames]:
    """Replies without the host name of a ping's."""
    return [[*reply[:2], *(b"host" for _ in reply[2:])] for reply in replies]


def recorded(case: dict[str, Any]) -> tuple[list[Frames], list[tuple[Any, ...]]]:
    replies = answered([unhex(reply) for reply in case["reply_frames_hex"]])
    return replies, [normalised(case, unhex(parts)) for parts in case["published_frames_hex"]]


def heartbeat(case: dict[str, Any]) -> bool:
    return not case["frames_in_hex"]


@each_case
def test_device(case: dict[str, Any]) -> None:
    device = Device(DEVICE, host="host", **options(case["device_args"]))
    replies: list[Frames] = []
    published: list[Frames] = []
    if heartbeat(case):
        published.append(device.heartbeat("tcp://host:port", NOW))
    else:
        answer = device.receive(sent(case), push=case["socket"] == "PUSH")
        replies += [answer.reply] if answer.reply is not None else []
        if answer.message is not None:
            published.append(device.publication(answer.message, NOW))
    if case["socket"] == "REQ":  # what REQ gets, it throws away: there is no empty frame before it
        replies = []
    got = (answered(replies), [normalised(case, parts) for parts in published])
    if deliberate(case):
        assert got == ([], [])
        return
    assert got == recorded(case)
    for parts in published:
        meta, _ = read_meta(parts[-1])
        assert (meta.device, meta.sequence) == (DEVICE, 1)
        assert meta.created_ms == (NOW if without_time(case) else meta.created_ms)


# --- over sockets ------------------------------------------------------------------------------

BARRIER = [
    b"barrier-test", b"logs", b"{}", struct.pack(">HBBIQQ", 0xCABD, 0, 1, 0, NOW, 0)
]  # fmt: skip


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[tuple[str, ...], tuple[Collector, Any, Any]]]:
    """For each set of options a device, a DEALER, and a SUB that is known to be subscribed."""
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
def test_over_sockets(
    case: dict[str, Any], devices: dict[tuple[str, ...], tuple[Collector, Any, Any]]
) -> None:
    """Barriers end each case: a message on the same socket, which comes out behind it."""
    collector, dealer, sub = devices[tuple(case["device_args"])]
    other = None
    if case["socket"] in ("PUSH", "REQ"):
        other = sub.context.socket(zmq.PUSH if case["socket"] == "PUSH" else zmq.REQ)
        port = collector.push_port if case["socket"] == "PUSH" else collector.port
        other.connect(f"tcp://127.0.0.1:{port}")
    sender = other or dealer
    if not heartbeat(case):
        sender.send_multipart(unhex(case["frames_in_hex"]))
    if case["socket"] == "PUSH":
        sender.send_multipart(BARRIER)
    if case["socket"] != "PUSH" and not heartbeat(case):
        published: list[Frames] = []
        while case["socket"] == "REQ" and not published:  # it came by another socket than the barrier
            published += [parts for parts in [receive(sub)] if parts[0] != b"heartbeat"]
        dealer.send_multipart([b"", *BARRIER])
    else:
        published = []
    replies: list[Frames] = []
    while not heartbeat(case) and case["socket"] != "PUSH":
        replies.append(receive(dealer))
        if replies[-1][0] == BARRIER[0]:
            assert replies.pop() == [BARRIER[0], b"202 Accepted"]
            break
    while True:
        parts = receive(sub)
        if parts[0] == BARRIER[0]:
            break
        if heartbeat(case) == (parts[0] == b"heartbeat"):
            published.append(parts)
            if heartbeat(case):
                break
    if other is not None:
        if case["socket"] == "REQ":
            assert not other.poll(20)  # there is a reply, which REQ throws away
        other.close(linger=0)
    got = (answered(replies), [normalised(case, parts) for parts in published])
    assert got == (([], []) if deliberate(case) else recorded(case))


KINDS: recordings.Kinds = {
    "DEALER": lambda case: case["socket"] == "DEALER",
    "PUSH": lambda case: case["socket"] == "PUSH",
    "REQ": lambda case: case["socket"] == "REQ",
    "a heartbeat": heartbeat,
    "a request": lambda case: case["reply_frames_hex"],
    "a message that is dropped": lambda case: not case["published_frames_hex"],
    "a device that takes invalid messages": lambda case: "-A" in case["device_args"],
    "a device that compresses by zlib": lambda case: "zlib" in case["device_args"],
    "a device that compresses by snappy": lambda case: "snappy" in case["device_args"],
    "a device that compresses by lz4": lambda case: "lz4" in case["device_args"],
    "a device that aborts": deliberate,
}


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    differing = sum(map(deliberate, CASES))
    with capsys.disabled():
        print()
        print(
            recordings.summary(
                "Logjam, device", len(CASES) - differing, deliberate=differing,
                elsewhere=len(RECORDED) - len(CASES), lacks=recordings.lacking(CASES, KINDS),
            )
        )  # fmt: skip
