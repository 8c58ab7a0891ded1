"""Logjam messages for the verifier. See `logclient.evidence.decode.Wire`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from logclient._ext import logjam
from logclient.logjam.messages import Meta, unit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

codec = logjam
COLUMNS = {
    "request": "u1",
    "app_env_offset": "i4",
    "app_env_length": "i4",
    "topic_offset": "i4",
    "topic_length": "i4",
    "device": "u4",
    "created_ms": "u8",
    "number": "u8",
}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = ""
FRAME_HEAD: int | None = 4  # the length before a frame


def wrap_body(body: bytes) -> bytes:
    """Return a message of this one event.

    The topic decides which field has the id. A body alone has no topic, so its fields tell.
    """
    topic = b"logs"
    if b'"uuid"' in body and not (b'"request_id"' in body and _has_request_id(body)):
        topic = b"events"
    return unit([b"app-env", topic, body, Meta().pack()])


def _has_request_id(body: bytes) -> bool:
    """Return whether the document has the field at its top level, or cannot be read."""
    try:
        return "request_id" in json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return True


def is_of_app_envs(
    data: memoryview,
    begin: npt.NDArray[np.int64],
    length: npt.NDArray[np.int32],
    app_envs: list[bytes],
) -> npt.NDArray[np.bool_]:
    """Tell for each message whether it is of one of these app-envs. Its own begins at `begin` in `data`."""
    import numpy as np

    raw: npt.NDArray[Any] = np.frombuffer(data, np.uint8)
    found = np.zeros(len(begin), bool)
    for app_env in app_envs:
        which = np.flatnonzero(length == len(app_env))
        places = begin[which, None] + np.arange(len(app_env))
        found[which[(raw[places] == np.frombuffer(app_env, np.uint8)).all(axis=1)]] = True
    return found


_NAME_BYTES = 1024  # of an app-env or a topic that are kept
_NO_META = ("no_meta", "old_meta", "bad_meta")


def message_columns(
    data: memoryview,
    begin: npt.NDArray[np.int64],
    own: dict[str, npt.NDArray[Any]],
    status: npt.NDArray[np.uint8],
    names: tuple[str, ...],
) -> list[tuple[Any, npt.NDArray[np.bool_]]]:
    """Return the fields that only Logjam messages have, for a table, and where they are missing.

    They are app-env, topic, whether a reply was requested, device, number and ms since 1970.
    """
    import numpy as np

    lacks = (own["app_env_length"] == 0) | (status == names.index("ping"))
    no_meta = lacks | np.isin(status, [names.index(name) for name in _NO_META])
    return [
        (_texts(data, begin, own, "app_env"), lacks),
        (_texts(data, begin, own, "topic"), lacks),
        (own["request"] != 0, lacks),
        (own["device"].astype(np.int64), no_meta),
        (own["number"].view(np.int64), no_meta),
        (own["created_ms"].view(np.int64), no_meta),
    ]


def _texts(
    data: memoryview, begin: npt.NDArray[np.int64], own: dict[str, npt.NDArray[Any]], name: str
) -> list[str]:
    import numpy as np

    first = begin + own[f"{name}_offset"]
    end = first + np.minimum(own[f"{name}_length"], _NAME_BYTES)
    known: dict[bytes, str] = {}  # there are few different ones
    found = []
    for low, high in zip(first.tolist(), end.tolist(), strict=True):
        raw = bytes(data[low:high])
        text = known.get(raw)
        if text is None:
            text = known[raw] = raw.decode("utf-8", "backslashreplace")
        found.append(text)
    return found
