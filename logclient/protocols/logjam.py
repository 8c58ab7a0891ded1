"""Logjam: the client's core, and what its messages are made of.

States of a connection, as a client that asks for replies sees it::

    state     waiting for    encode            reply to the oldest          any other reply
    IDLE      0              -> WAITING        --                           broken
    WAITING   1 .. limit-1   -> WAITING, FULL  202: acked; 400: rejected    broken
    FULL      limit          refused           -> WAITING, IDLE             broken
    BROKEN    as it was      refused           ignored                      ignored

    connected: any -> IDLE          connection_lost: any -> IDLE, the requests are forgotten

A reply says which app-env it is for and nothing else, so replies are matched first in, first out, and
after any doubt the connection is dropped; its requests are sent again on the next one. ``mode=async`` and
``logjam+push`` ask for no reply: an event is ``handed`` once ZeroMQ has taken it.

=========  ======================================  ==================
nibble     topic                                   carrier of the id
=========  ======================================  ==================
0          option ``topic``: ``logs.<app>.<env>``  ``request_id``
1          ``events.<app>.<env>``                  ``uuid``
2          ``frontend.page``                       ``uuid``
3          ``frontend.ajax``                       ``uuid``
4          ``javascript.<app>.<env>``              ``uuid``
5          ``mobile``                              ``uuid``
=========  ======================================  ==================

The nibble is the high one of an event's kind. Where the user has filled the carrier, theirs stays.

All the work is done in ``logclient._ext.logjam``; this class gives it the words of ``protocols.core``, and
the compiled pump drives the same object through ``hot``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from logclient._ext.constants import FRAME_MORE
from logclient._ext.logjam import OK, STATUS_NAMES, Decoder, Hot, Unpacker, expand
from logclient.errors import ConfigError
from logclient.protocols.compiled import CompiledCore
from logclient.protocols.core import CoreEvent, Reply
from logclient.protocols.readable import BODY_KEPT, Bytes, Frame, around

__all__ = [
    "AUTO", "COMPRESSIONS", "TOPICS", "Logjam", "Options", "Probe", "Unpacker", "frames", "split_app_env",
]  # fmt: skip

COMPRESSIONS = ("none", "zlib", "snappy", "lz4")
"""By their numbers on the wire."""

TOPICS = ("logs", "events", "frontend.page", "frontend.ajax", "javascript", "mobile")
"""How topics begin, by the nibble in an event's kind."""

AUTO = ("snappy", "lz4", "zlib")
"""What ``compression=auto`` takes: the first of them that goes without the GIL, which is snappy only where
there is a libsnappy; where none does, the first that is installed."""

_LEVEL = 3  # of zlib
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class Options(NamedTuple):
    """What a Logjam core can be told."""

    app_env: str
    """``<app>-<env>``, as in ``shop-production``."""
    topic: str = ""
    """Of events that are of no other; empty: ``logs.<app>.<env>``."""
    mode: str = "request"
    """``request``: each message is answered; ``async``: none is."""
    push: bool = False
    """The socket is a PUSH: ``async`` only, and nothing ever comes back."""
    inflight: int = 256
    """Requests without a reply at one time."""
    compression: str = "auto"
    """``auto`` (see `AUTO`), ``none``, ``zlib``, ``snappy``, ``lz4``."""
    compress_over: int = 1024
    """Bodies of so many bytes are compressed, where that makes them smaller."""
    identity: str = "id"
    """``id``: splice the id into each event; ``none``: do not."""
    check: bool = True
    """Check that raw bodies are one JSON object in UTF-8."""
    silence: float = 30.0
    """Seconds without a reply before the server counts as dead."""
    batch_bytes: int = 1 << 20
    """Bodies encoded at once, at most; a larger one goes alone."""


def split_app_env(app_env: str) -> tuple[str, str]:
    """(app, env): env is what follows the last dash.

    The device wants printing ASCII and a dash, the importer looks its stream up by the name, and both
    texts say letters; digits, underscores and (in the app) dashes are taken by all of them.

    Raises:
        ConfigError: with the rule.
    """
    app, dash, env = app_env.rpartition("-")
    if not dash or not app or not env:
        raise ConfigError("app-env: <app>-<env>, as in logjam://host/shop-production")
    if len(app_env) > 255 or not _WORD.issuperset(app_env.replace("-", "_")) or app.startswith("-"):
        raise ConfigError("app-env: up to 255 letters, digits, underscores and dashes, a dash not first")
    return app, env


def _checked_topic(topic: str) -> str:
    start = next((name for name in TOPICS if topic == name or topic.startswith(f"{name}.")), None)
    if start is None:
        # The device answers 202 to a request with any other, and drops it.
        raise ConfigError(
            f"topic: one of {', '.join(TOPICS)}, with words behind it, as in logs.shop.production"
        )
    if len(topic) > 1000 or not all(
        word and _WORD.issuperset(word.replace("-", "_")) for word in topic.split(".")
    ):
        raise ConfigError("topic: words of letters, digits, underscores and dashes with a dot between them")
    return topic


def _best(hot: Callable[[str], Hot]) -> Hot:
    installed = []
    for name in AUTO:
        try:
            made = hot(name)
        except ValueError:
            continue
        if not made.holds_gil:
            return made
        installed.append(made)
    return installed[0]  # zlib always is


class Logjam(CompiledCore):
    """The client's side of one connection at a time. See ``protocols.core.Core``.

    Args:
        options: see `Options`.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range, or a compression that is not installed.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        app, env = split_app_env(options.app_env)
        own = f"{app}.{env}"
        topics = [_checked_topic(options.topic or f"logs.{own}")]
        topics += [f"{name}.{own}" if name in ("events", "javascript") else name for name in TOPICS[1:]]
        if options.identity not in ("id", "own", "none"):
            raise ConfigError(f"identity: id, own or none, not {options.identity!r}")
        if options.mode not in ("request", "async"):
            raise ConfigError(f"mode: request or async, not {options.mode!r}")
        if options.push and options.mode != "async":
            raise ConfigError("mode: logjam+push is async only: nothing comes back on such a socket")
        if options.compression not in ("auto", *COMPRESSIONS):
            raise ConfigError(f"compression: auto, {', '.join(COMPRESSIONS)}, not {options.compression!r}")
        self.options = options

        def hot(compression: str) -> Hot:
            return Hot(
                producer,
                options.app_env.encode(),
                [topic.encode() for topic in topics],
                request=options.mode == "request",
                inflight=options.inflight,
                batch_bytes=options.batch_bytes,
                compression=COMPRESSIONS.index(compression),
                level=_LEVEL,
                compress_over=options.compress_over,
                identity=options.identity != "none",
                check=options.check,
                silence=options.silence,
            )

        try:
            if options.compression != "auto":
                made = hot(options.compression)
            else:
                hot("none")  # what else is wrong
                made = _best(hot)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(made)
        self._token = 0
        self._asked: list[int] = []  # tokens of pings without a reply

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Logjam:
        """From whatever has the options as attributes (a ``logclient.config.Config``).

        Raises:
            ConfigError: the path is no app-env, or an option is outside its range.
        """
        push = config.scheme == "logjam+push"
        same = {name: getattr(config, name) for name in Options._fields if hasattr(config, name)}
        if push and "mode" not in config.given:
            same["mode"] = "async"
        return cls(Options(app_env=config.path[1:], push=push, **same), producer)

    @property
    def requests(self) -> int:
        """Requests and pings without a reply."""
        return int(self._hot.requests)

    @property
    def awaited(self) -> int:
        return self.requests

    def silent(self) -> str:
        waiting = self.requests
        return f"silence: no reply in time, with {waiting} request{'s'[: waiting != 1]} in flight"

    def _reset(self) -> None:
        super()._reset()
        self._asked.clear()  # pings are not sent again

    def sent(self, rest: int = 0) -> None:
        self._hot.sent(rest)

    def call(self, kind: str, payload: Any = None) -> int:
        """``ping``: the payload of its ``Reply`` is the server's name, or None: it said bad request.

        Raises:
            ValueError: another kind, a PUSH socket, or too many without a reply.
        """
        if kind != "ping":
            raise ValueError(f"call: Logjam has no {kind!r}")
        if self.options.push:
            raise ValueError("call: nothing comes back on a PUSH socket")
        self._hot.ping()
        self._token += 1
        self._asked.append(self._token)
        return self._token

    def _replies(self) -> Iterator[CoreEvent]:
        for host in self._hot.pongs():
            name = None if host is None else host.decode("utf-8", "backslashreplace")
            yield Reply(self._asked.pop(0), name)


# -- messages, byte by byte

_META = 24


def _joined(parts: list[bytes]) -> bytes:
    last = len(parts) - 1
    return b"".join(
        (len(part) | (FRAME_MORE if place < last else 0)).to_bytes(4, "little") + part
        for place, part in enumerate(parts)
    )


class Probe:
    """A question that a Logjam server answers, and of which no event can come: its ping.

    Of who is behind a PUSH socket no more is known than that the connection was made.
    """

    silence = "a logjam-device answers to a ping at once"

    def __init__(self, config: Any) -> None:
        self._app_env = config.path[1:].encode()
        self._push = config.scheme == "logjam+push"
        self._data = b""
        self.about: dict[str, Any] = {}

    def ask(self) -> list[bytes]:
        """What to send, nothing where there are no answers; may be asked again after an answer."""
        self._data = b""
        if self._push:
            return []
        # tag, compression 0, version 1, and zeros: the device, when (the server fills it in), the number
        meta = b"\xca\xbd\x00\x01" + bytes(_META - 4)
        return [_joined([b"", b"ping", self._app_env, b"{}", meta])]

    def insist(self) -> list[bytes]:
        """Nothing: on a connection of ZeroMQ's a message is not lost alone."""
        return []

    def receive_data(self, data: bytes) -> bool | None:
        """True: answered as Logjam does; False: as it never does; None: not yet."""
        self._data += data
        expected = _joined([b"ping", b"200 OK", b""])[:-4]
        if self._data[: len(expected)] != expected[: len(self._data)]:
            return False
        rest = self._data[len(expected) :]
        if len(rest) < 4:
            return None
        size = int.from_bytes(rest[:4], "little")
        return None if len(rest) - 4 < size < 1024 else len(rest) - 4 == size


# -- what travelled, for people


def frames(data: Bytes, *, max_unpacked: int = 64 << 20) -> Iterator[Frame]:
    """The messages of one direction, each with its frames in it, bodies unpacked.

    What is wrong with a message is what the decoder of captures says of it; replies are known by their form.

    Args:
        max_unpacked: a body that unpacks further is not opened.
    """
    view = memoryview(data)
    decoder = Decoder(max_unpacked=max_unpacked)
    at = 0
    while at < len(view):
        spans, end = _spans(view, at)
        unit = bytes(view[at:end])
        if end < 0:
            wrong = f"cut inside a message: {len(view) - at:,} bytes of it"
            yield _marked(Frame(at, 0, len(view) - at, "", {}), wrong, view)
            return
        yield from _message(unit, at, spans, decoder, max_unpacked, view)
        at = end


def _spans(view: memoryview, at: int) -> tuple[list[tuple[int, int]], int]:
    """((where its bytes begin, how many) of each frame, where the message ends or -1)."""
    spans = []
    while len(view) - at >= 4:
        head = int.from_bytes(view[at : at + 4], "little")
        size = head & (FRAME_MORE - 1)
        if len(view) - at - 4 < size:
            break
        spans.append((at + 4, size))
        at += 4 + size
        if not head & FRAME_MORE:
            return spans, at
    return spans, -1


def _marked(frame: Frame, wrong: str, view: memoryview) -> Frame:
    data, begin = around(view, frame.offset)
    return frame._replace(wrong=wrong, around=data, around_at=begin)


def _message(
    unit: bytes,
    at: int,
    spans: list[tuple[int, int]],
    decoder: Decoder,
    max_unpacked: int,
    view: memoryview,
) -> Iterator[Frame]:
    parts = [bytes(view[begin : begin + min(size, BODY_KEPT)]) for begin, size in spans]
    count = f"{len(spans)} frame{'s'[: len(spans) != 1]}"
    if _is_reply(parts):
        fields: dict[str, Any] = {"type": "reply", "app_env": _text(parts[0]), "status": _text(parts[1])}
        if len(parts) == 3:
            fields["host"] = _text(parts[2])
        yield Frame(at, 0, len(unit), f"reply {' '.join(fields[k] for k in list(fields)[1:])}", fields)
        return
    row = decoder.decode(unit, array("q", [0]), array("q", [len(unit)]))
    status = row.status[0]
    name = STATUS_NAMES[status]
    known = row.app_env_length[0] or row.topic_length[0]
    kind = "ping" if name == "ping" else "request" if row.request[0] else "message"
    fields = {"type": kind, "frames": len(spans)}
    title = f"{kind} of {count}"
    if known:
        first = row.request[0]
        app_env, topic = (
            (parts[first + 1], parts[first]) if kind == "ping" else (parts[first], parts[first + 1])
        )
        fields |= {"app_env": _text(app_env), "topic": _text(topic)}
        title += f", {_text(app_env)}, {_text(topic)}"
    if known and name not in ("no_meta", "old_meta", "bad_meta"):
        compression = row.compression[0]
        fields |= {
            "compression": COMPRESSIONS[compression] if compression < len(COMPRESSIONS) else compression,
            "device": row.device[0],
            "created_ms": row.created_ms[0],
            "sequence": row.number[0],
        }
        title += (
            f", {fields['compression']}, device {row.device[0]}, created {row.created_ms[0]}, "
            f"sequence {row.number[0]}"
        )
    wrong = ""
    if status > OK + 3 and name not in ("ping", "heartbeat"):
        wrong = _WRONG[name]
    frame = Frame(at, 0, len(unit), title, fields)
    yield _marked(frame, wrong, view) if wrong else frame
    body_at = 2 + row.request[0]
    for place, (begin, size) in enumerate(spans):
        if known and not wrong and place != body_at:
            continue  # all that is in it was said
        body, length, words = parts[place], size, f"frame {place + 1}, {size:,} byte{'s'[: size != 1]}"
        if known and place == body_at and row.compression[0] and not wrong:
            # as it is where it does not open: that was said above
            opened = expand(unit, max_unpacked)
            begin_at = begin - at
            length = len(opened) - len(unit) + size
            body = opened[begin_at : begin_at + min(length, BODY_KEPT)]
            words += f", {length:,} unpacked"
        inner = Frame(begin - 4, 1, 4 + size, words, {"type": "frame", "length": size}, body, length)
        if known and place == body_at and status == OK + 3:
            inner = _marked(inner, "not one JSON object in UTF-8", view)
        yield inner


def _is_reply(parts: list[bytes]) -> bool:
    if len(parts) == 2:
        return parts[1] in (b"202 Accepted", b"400 Bad Request")
    return len(parts) == 3 and parts[:2] == [b"ping", b"200 OK"]


def _text(data: bytes) -> str:
    return data[:256].decode("utf-8", "backslashreplace")


_WRONG = {
    "torn": "its frames do not add up",
    "bad_frames": "a message has four frames, a request an empty one before them",
    "no_meta": "three frames: the meta is missing",
    "old_meta": "a meta of 22 bytes, as the producer text has it: servers want 24 bytes",
    "bad_meta": "no meta: 24 bytes that begin with cabd, compression and version 1",
    "bad_app_env": "an app-env that the device refuses: ASCII with a dash in it",
    "bad_topic": "a topic that the device drops without a word",
    "bad_compression": "a compression that nobody knows",
    "bad_zlib": "its body is no whole zlib stream (gzip and raw deflate are none): importers hang on it",
    "bad_snappy": "its body is no snappy block",
    "bad_lz4": "its body is no LZ4 block behind a big-endian length: importers abort on it",
    "too_large": "its body unpacks to more than 64 MiB: importers hang or abort on it",
    "no_library": "its body cannot be opened here: python-snappy or lz4 is not installed",
}
