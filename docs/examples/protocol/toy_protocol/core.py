"""Toy protocol: each event is a line with its sequence and body; the server answers the sequence."""

from logclient._ext.constants import ACKED, INFLIGHT, STOP_PROTOCOL
from logclient._ext.hash import xxh64
from logclient._ext.pump import PythonCodec
from logclient.delivery.contract import Core


class Codec:
    """The state of one connection after another."""

    def __init__(self, inflight):
        self.inflight = inflight

    def connected(self, now):
        self.waiting, self.buffer, self.error = [], b"", None

    def connection_lost(self):
        self.waiting = []

    def credit(self, now):
        """Return how many events, and bytes of them, may be sent now."""
        return self.inflight - len(self.waiting), 1 << 20

    def encode(self, batch, events, now, wire, out):
        """Append at most `events` events of the batch to `wire`; return how many."""
        taken = batch.pending(events)
        for event in taken:
            batch.mark(event.seq, INFLIGHT, 0, xxh64(event.body))
            self.waiting.append(event.seq)
            wire += b"%d %s\n" % (event.seq, event.body)
        return len(taken)

    def receive(self, data, now, out):
        """Read answers into outcomes: (first, last, status, reason). A number but 0 ends the connection."""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            if not self.waiting or line != b"%d" % self.waiting[0]:
                self.error = "an answer to nothing"
                return STOP_PROTOCOL
            seq = self.waiting.pop(0)
            out.items.append((seq, seq, ACKED, 0))
            out.progress += 1
        return 0

    def deadline(self):
        """Return the time at which `timeout` is to be called; 0: never."""
        return 0.0


class Toy(Core):
    """What logclient makes for each client of the protocol."""

    def __init__(self, config, producer):
        super().__init__(PythonCodec(Codec(config.inflight)))
