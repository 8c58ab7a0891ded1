"""A row of the benchmarks' record, and the acknowledgements of their sinks."""

from bench import harness


def row(name="some", value=1.0, others=0.1, cpu="AMD EPYC"):
    """Return a row with one claim: that the value is at most 2."""
    facts = harness.machine() | {"cpu": cpu, "load": (0.5, 0.75), "seconds": 3.0, "others": others}
    samples = {"a": {"cpu": [value] * 3, "wall": [value] * 3}}
    return harness.Row(
        name, "a title", "us", harness.lines(samples), [harness.claim("x", value, "<=", 2.0)], ["n"], facts
    )


def acked(connection):
    """Return the number in the next acknowledgement of Lumberjack."""
    data = b""
    while len(data) < 6:
        data += connection.recv(6 - len(data))
    assert data[:2] == b"2A"
    return int.from_bytes(data[2:], "big")
