"""Uses of options for type checkers: they refuse the lines marked as wrong, and no other.

``tests/client/test_options.py`` has mypy and pyright judge this file. It is not run.
"""

import logging
from pathlib import Path
from typing import Unpack

import logclient
from logclient.config.secrets import Secret
from logclient.lumberjack import Writer

URL = "lumberjack://127.0.0.1:5044"

logclient.connect(URL)
logclient.connect(URL, window=500, overflow="drop_oldest", max_bytes="64MiB", connect_timeout="200ms")
logclient.connect(URL, max_bytes=1 << 20, connect_timeout=0.5, keep_level="ERROR", check=False, ledger=None)
logclient.connect(URL, keep_level=logging.ERROR, ledger=Path("run"), version=1, compression=0)
logclient.connect("logjam://h/app-env", compression="snappy", mask=["pin", "iban"], curve_secret=Secret("x"))
logclient.connect("logux://h", token=lambda: "t", http_headers={"Cookie": lambda: "c"})
logclient.connect("logux+tls://h", token="env:TOKEN", verify="none", subprotocol="1.0.0", strict_spec=True)
logclient.Handler(URL, logging.INFO, overflow="block:1s")
logclient.Handler(client=logclient.connect())
logclient.Handler(level="INFO", window=100)
logclient.AsyncClient(URL, overflow="drop_new", timeout=2)
Writer(URL, window=100)

some: logclient.Options = {"window": 500, "identity": "own"}
logclient.connect(URL, **some)


def mine(**options: Unpack[logclient.Options]) -> logclient.Client:
    return logclient.connect(URL, **options)


mine(silence="30s")

logclient.connect(URL, windwo=500)  # wrong
logclient.connect(URL, spool_sync="bogus")  # wrong
logclient.connect(URL, window="many")  # wrong
logclient.connect(URL, check="yes")  # wrong
logclient.connect(URL, max_bytes=0.5)  # wrong
logclient.connect(URL, connect_timeout=[1])  # wrong
logclient.connect(URL, compression="gzip")  # wrong
logclient.connect(URL, verify=False)  # wrong
logclient.connect(URL, token=b"secret")  # wrong
logclient.connect(URL, mask=5)  # wrong
logclient.connect(url=URL)  # wrong
logclient.Handler(URL, overfow="block")  # wrong
logclient.Handler(URL, truncate="no")  # wrong
logclient.AsyncClient(URL, identity="uuid")  # wrong
logclient.AsyncClient(URL, max_events=None, linger="5ms", ack="never")  # wrong
Writer(URL, windows=100)  # wrong
mine(silnce="30s")  # wrong
bad: logclient.Options = {"window": 500, "spool_mode": "wait"}  # wrong
