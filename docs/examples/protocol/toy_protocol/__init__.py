"""A protocol of another package: after ``pip install .``, logclient knows the URL ``toy://``."""

from logclient.config.registry import Scheme

SCHEME = Scheme(
    protocol="toy",
    config="toy_protocol.config:ToyConfig",
    core="toy_protocol.core:Toy",
    transport="logclient.transports.tcp:Tcp",
    client="logclient.client:Client",
    port=4242,
)
