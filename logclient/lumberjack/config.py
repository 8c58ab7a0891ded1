"""Options of Lumberjack."""

from __future__ import annotations

from typing import Any, ClassVar

from logclient.config.documents import DocumentConfig, proxy_option
from logclient.config.option import option
from logclient.config.readers import boolean, choice, integer, metadata
from logclient.errors import ConfigError


class LumberjackConfig(DocumentConfig):
    """The configuration of a Lumberjack client."""

    title = "Lumberjack"
    window_bytes: ClassVar[int] = 1 << 20
    """Largest size of the events in a window, uncompressed and without ids; a longer event is sent alone."""

    window: int = option(
        integer(1, 10_000), "2048", "Largest number of events in a window. Servers refuse more than 10000."
    )
    inflight: int = option(
        integer(1, 64),
        "2",
        "Largest number of windows that are sent and not yet acknowledged. By default it follows "
        "the round trip; see lumberjack.md. A value fixes it.",
        shown="2 to 16",
    )
    compression: int = option(integer(0, 9), "3", "Level of zlib; 0 sends uncompressed frames.")
    version: int = option(
        integer(1, 2), "2", "Protocol version: 2 sends JSON frames, 1 sends pairs of strings."
    )
    frames: str = option(
        choice("json", "data"),
        "json",
        "json, or data (pairs of strings). It follows from the version; only with strict_spec can it be "
        "chosen, and json is then the default.",
        shown="json (version=1: data)",
    )
    timestamp: bool = option(
        boolean, "true", "Give mappings and texts without an @timestamp the time of their call."
    )
    balance: bool = option(
        boolean,
        "false",
        "true: connect to all servers of the URL at the same time, and send each window where the fewest "
        "bytes are in flight; see lumberjack.md. false: to one of them, and to the next one when it fails.",
    )
    proxy: str = proxy_option("none")
    trust: str = option(
        choice("none", "metadata"),
        "none",
        "metadata: send the application's @metadata, except its _id; none: leave it out. Raw bytes are not "
        "changed.",
    )
    metadata: dict[str, str] = option(
        metadata,
        "",
        "Entries of @metadata in every event, by name, such as beat=shop,version=8, of which Logstash makes "
        "the name of an index. The application's own entries (trust=metadata) win; raw bytes keep their "
        "@metadata. See receivers.md.",
        shown="none",
    )

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Choose the kind of frames, which follows from the version."""
        if values["balance"] and values["spool"] is not None:
            raise ConfigError("balance: not with a spool")
        strict = values["strict_spec"]
        if strict:
            if values["version"] == 2 and "version" in given:
                raise ConfigError("version: the protocol's text has 1 alone (strict_spec)")
            values["version"] = 1
        frames = "data" if values["version"] == 1 and not strict else "json"
        if "frames" not in given:
            values["frames"] = frames
        if values["frames"] != frames and not strict:
            version = values["version"]
            raise ConfigError(f"frames: version {version} has {frames} alone; strict_spec=true has both")
        if values["metadata"] and values["frames"] == "data":
            raise ConfigError("metadata: needs frames=json, as pairs of strings have no objects")
        super().complete(scheme, values, given)

    @property
    def encoder_options(self) -> dict[str, Any]:
        pairs, trust = self.frames == "data", self.trust == "metadata"
        own = {"pairs": pairs, "trust_metadata": trust, "metadata": self.metadata}
        return {**super().encoder_options, **own}

    @property
    def batch_limits(self) -> tuple[int, int]:
        return self.window, self.window_bytes
