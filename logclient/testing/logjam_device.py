"""The rules of logjam-device, frames in and frames out, with no socket.

The real device aborts on messages of 12 frames and more (11 where they are pushed); this one refuses them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from logclient.errors import ConfigError
from logclient.logjam import zeromq
from logclient.logjam.messages import (
    METHODS,
    NONE,
    SEQUENCE_MAX,
    Meta,
    compress,
    decompress,
    frames,
    is_app_env,
    is_topic,
    read_meta,
    require_library,
)

ACCEPTED, REFUSED, PONG = b"202 Accepted", b"400 Bad Request", b"200 OK"

_FRAMES_MAX = zeromq.FRAMES_MAX - 1  # without the routing id
_NAME_MAX = 4096  # bytes of app-env and of topic; the real device has no limit
_BODY_MAX = 64 << 20  # bytes of an unpacked body in `decode`, the importer's limit


class Message(NamedTuple):
    """A data message that is kept and published."""

    parts: list[bytes]  # as it arrived, with the empty frame of a request
    first: int  # index of the app-env in `parts`
    meta: Meta

    @property
    def topic(self) -> bytes:
        return self.parts[self.first + 1]

    @property
    def body(self) -> bytes:
        return self.parts[self.first + 2]

    def with_body(self, body: bytes) -> Message:
        parts = list(self.parts)
        parts[self.first + 2] = body
        return self._replace(parts=parts)


class Answer(NamedTuple):
    """The result of the frames of one message."""

    reply: list[bytes] | None = None
    message: Message | None = None
    reason: str = ""  # why there is no message, or why the reply is 400
    ping: bool = False


class Device:
    """The rules of logjam-device, frames in and frames out. `Collector` describes the arguments."""

    def __init__(
        self,
        number: int = 1,
        *,
        host: str = "localhost",
        allow_invalid: bool = False,
        recompress: str = "none",
    ) -> None:
        if recompress not in METHODS:
            raise ConfigError(f"recompress: {recompress!r} is none of {', '.join(METHODS)}")
        self.number = number
        self.sequence = 0
        self._host = host.encode()
        self._allow_invalid = allow_invalid
        self._recompress = METHODS[recompress]
        require_library(self._recompress)  # a missing one is an error now, not later

    def receive(self, parts: list[bytes], *, push: bool = False) -> Answer:
        """Return the result of one message, given without its routing id and frames after the sixth.

        What is pushed came to the PULL socket, which has no requests, and may lack the meta frame.
        """
        count = len(parts)
        request = not push and not parts[0]
        if request:
            return self._request(parts)
        if push and count == 3:
            meta, valid = Meta(), True
        elif count == 4:
            meta, valid = read_meta(parts[3])
        else:
            return Answer(reason=f"frames: a message has 4, not {_counted(count)}")
        return self._judge(Message(parts, 0, meta), valid)

    def _request(self, parts: list[bytes]) -> Answer:
        count = len(parts) - 1
        name = parts[1] if count else b"unknown-unknown"
        if len(name) > _NAME_MAX:
            return Answer([b"unknown-unknown", REFUSED], reason="app-env: too long")
        if count != 4:
            return Answer([name, REFUSED], reason=f"frames: a request has 5, not {_counted(len(parts))}")
        meta, valid = read_meta(parts[4])
        if name == b"ping":
            if valid:
                return Answer([name, PONG, self._host], ping=True)
            return Answer([name, REFUSED], reason="meta: not valid", ping=True)
        answer = self._judge(Message(parts, 1, meta), valid)
        accepted = valid and is_app_env(name)
        return answer._replace(reply=[name, ACCEPTED if accepted else REFUSED])

    def _judge(self, message: Message, valid: bool) -> Answer:
        name = message.parts[message.first]
        if len(name) > _NAME_MAX or len(message.topic) > _NAME_MAX:
            return Answer(reason="app-env or topic: too long")
        if not is_app_env(name):
            return Answer(reason="app-env: not printable ASCII with a dash")
        if not is_topic(message.topic):
            return Answer(reason="topic: none of Logjam's")
        if not valid and not self._allow_invalid:
            return Answer(reason="meta: not valid")
        return Answer(message=message, reason="" if valid else "meta: not valid")

    def publication(self, message: Message, now_ms: int) -> list[bytes]:
        """Return the four frames for consumers, with the device's number and sequence, and with a time."""
        name, topic, body = message.parts[message.first : message.first + 3]
        method = message.meta.compression
        if method == NONE and self._recompress:
            method = self._recompress
            body = compress(method, body)
        return [name, topic, body, self._meta(method, message.meta.created_ms or now_ms)]

    def heartbeat(self, endpoint: str, now_ms: int) -> list[bytes]:
        """Return a heartbeat, which takes a sequence like any message."""
        return [b"heartbeat", endpoint.encode(), b"{}", self._meta(NONE, now_ms)]

    def _meta(self, method: int, created_ms: int) -> bytes:
        self.sequence = self.sequence % SEQUENCE_MAX + 1  # the highest is followed by 1
        return Meta(method, self.number, created_ms, self.sequence).pack()


def _counted(count: int) -> str:
    return str(count) if count < _FRAMES_MAX else f"{_FRAMES_MAX} or more"


def carrier(topic: bytes) -> str:
    """Return the member of a body that has the event's id."""
    return "request_id" if topic.startswith(b"logs") else "uuid"


def decode(raw: bytes, limit: int = 0) -> list[Any]:
    """Return the event of one captured unit: a list of one JSON value.

    Its body may have `limit` bytes, and as many as the importer takes in any case.

    Raises:
        ValueError: `raw` is not one whole data message, or its body is not JSON in the framing that it names.
    """
    answer = Device(allow_invalid=True).receive(frames(raw), push=raw[:4] != b"\0\0\0\x80")
    if answer.message is None:
        raise ValueError(f"unit: {answer.reason or 'a ping'}")
    return [
        json.loads(decompress(answer.message.meta.compression, answer.message.body, max(limit, _BODY_MAX)))
    ]


def counter_of(reply: list[bytes]) -> str:
    """Return the name of the counter for a reply of the device."""
    return {ACCEPTED: "acks", REFUSED: "refusals", PONG: "pings"}[reply[1]]
