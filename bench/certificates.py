"""A certificate for the sinks, and the OpenSSL with which they and the loop in C decrypt and encrypt."""

from __future__ import annotations

import ctypes.util
import importlib
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"


class Certificate(NamedTuple):
    """The files of a server: its certificate with the key, and the authority that has signed it."""

    server: str
    ca: str


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="logclient-bench-")  # removed at exit


@cache
def certificate() -> Certificate:
    """Make the one certificate of this process, for 127.0.0.1 (ECDSA with P-256)."""
    import trustme

    folder, authority = Path(_folder().name), trustme.CA()
    made = Certificate(str(folder / "server.pem"), str(folder / "ca.pem"))
    authority.cert_pem.write_to_path(made.ca)
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(made.server)
    return made


def ssl_library() -> str:
    """Return the path of the libssl that Python's ssl has loaded; without one, that of the system."""
    importlib.import_module("ssl")  # then the library is among the mapped files

    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        mapped = []
    files = [line.split(maxsplit=5)[-1] for line in mapped]
    return min((f for f in files if Path(f).name.startswith("libssl")), default="") or (
        ctypes.util.find_library("ssl") or "libssl.so.3"
    )


def server_arguments(made: Certificate | None) -> list[str]:
    """Return the arguments with which a sink shows this certificate."""
    return ["--libssl", ssl_library(), "--tls", made.server] if made else []
