"""Options of the toy protocol."""

from logclient.config.common import Config
from logclient.config.option import option
from logclient.config.readers import integer


class ToyConfig(Config):
    """The configuration of a client of the toy protocol."""

    title = "Toy"

    inflight: int = option(integer(1, 1000), "10", "Most events sent and not yet acknowledged.")
