"""A protocol of another package. Install it, and open its client::

pip install .
python -c 'import logclient; logclient.connect("toy://127.0.0.1:4242").send({"n": 1})'
"""

from logclient.config.registry import Scheme

SCHEME = Scheme(
    protocol="toy",
    config="toy_protocol.config:ToyConfig",
    core="toy_protocol.core:Toy",
    transport="logclient.transports.tcp:Tcp",
    client="logclient.client:Client",
    port=4242,
)
