"""plog: event documents, messages for Kafka topics, and the commands of a plog server.

::

    with logclient.connect("plog://127.0.0.1:23456", event_type="orders") as client:
        client.event({"order": 7, "state": "paid"})         # an event document
        client.publish(b"any bytes", topic="audit", key="7")
        client.command("ping"), client.command("stat")

An event document is a JSON object with these fields, and ``uuid``, which is the event's id:

=============  ====================================================================================
``type``       the option ``event_type``, or the argument ``type`` of a call
``host``       the name of this machine
``timestamp``  milliseconds since 1970
``data``       a mapping of strings to strings, or a string
=============  ====================================================================================

For a log record, ``data`` has the fields of the ECS document that other protocols ship, without its time.
Each value is a string; other values are written in JSON. A formatter of yours replaces them: a string becomes
``data``, the items of a dict become its fields. A plain text (``send("text")``) becomes ``data``. Mappings
and bytes travel unchanged: ``send({"type": ..., "data": ...})``.

Over TCP (``plog+tcp://``) each event is a line. There are no tags and no commands.
"""

from __future__ import annotations

from logclient.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logclient.plog.client import Client as Client

__all__ = ["Client"]

__getattr__, __dir__ = lazy_names(__name__, {"Client": "client"})
