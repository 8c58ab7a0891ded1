"""How long tests wait for what must happen: one number for all of them.

A test that waits for a condition gives up after so many seconds; a condition that takes longer for a reason
gets a multiple. The number is no promise of the product and costs nothing while tests pass. A slow or busy
machine gets more: ``LOGCLIENT_PATIENCE=120 make test``.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = float(os.environ.get("LOGCLIENT_PATIENCE") or 30)
"""Seconds."""


def wait_until(condition: Callable[[], Any], what: str = "the condition", seconds: float = PATIENCE) -> Any:
    """Poll until `condition` is true and return its value.

    Raises:
        AssertionError: It is not true in time; `what` is in the text.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        threading.Event().wait(0.001)
    return value


def assert_returns(call: Callable[[], Any], why: str = "the call does not return") -> Any:
    """Run `call` in a thread and return its value.

    The call itself gets no deadline, or a much longer one: so the test fails if it waits for its deadline.

    Raises:
        AssertionError: It does not return in time, or it raises.
    """
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert values, why
    return values[0]
