"""Configuration of clients: a URL and keywords become validated options.

``scheme://host[:port][,host[:port]...][/path][?option=value[&option=value...]]``

`parse` reads them, and the environment, into a `Config`. Each error is one line that names the field and the
rule. It shows a value only where that cannot be part of a password.

An option is declared once, as an attribute of a `Config` class: those of every protocol in `common`, the
others in the class of their protocol, which the registry names. ``python -m tools.options`` writes the page
and the types that are made from them.
"""

from logclient.config.common import Config, Endpoint
from logclient.config.hosts import dns_name, host_port
from logclient.config.option import Option, all_options, declared_options
from logclient.config.parsing import parse
from logclient.config.readers import is_key, parse_duration, parse_size
from logclient.config.secrets import Secret

__all__ = [
    "Config",
    "Endpoint",
    "Option",
    "Secret",
    "all_options",
    "declared_options",
    "dns_name",
    "host_port",
    "is_key",
    "parse",
    "parse_duration",
    "parse_size",
]
