"""Readers of Kafka topics and tables: each makes a DataFrame that is the same whenever it is read."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from logclient.errors import ConfigError, LedgerError, MissingExtra, VerifyError
from logclient.evidence.captures import MOST_LISTENERS, UNIT_BITS

COLUMNS = ("body", "received", "key", "listener", "arrival", "id")  # ``body`` or ``id`` is required
ANSWER_MS = 10_000  # for a broker's answer
_CONNECTING = ("bootstrap.", "client.", "sasl.", "security.", "ssl.")  # of Kafka's settings

Offsets = list[tuple[str, int, int, int]]  # topic, partition, the offsets of its first and of the next record


class Place(NamedTuple):
    """A partition of a topic, or a listener of a table."""

    name: str
    first: int = 0  # the lowest number of its records
    end: int | None = None  # of a topic: the number of the next record


class Arrived(NamedTuple):
    """A DataFrame of records, and what its reader knows of it."""

    frame: Any
    columns: Mapping[str, str]  # some of `COLUMNS` -> the column of the frame
    title: str  # for people, without secrets
    places: list[Place] = []  # the partitions of a topic; empty: not known


def checked_columns(given: Mapping[str, str]) -> dict[str, str]:
    """Return the named columns and the default one, after a check of what is named."""
    columns = dict(given) if "id" in given else {"body": "value", **given}
    for what in columns:
        if what not in COLUMNS:
            raise ConfigError(f"columns: {what[:100]!r} is none of {', '.join(COLUMNS)}, as in body=NAME")
    return columns


def read_kafka(spark: Any, address: str, config: Mapping[str, str]) -> Arrived:
    """Read one or more topics, from the first record to the current end."""
    bootstrap, topics = parse_address(address)
    settings = {**config, "bootstrap.servers": bootstrap}
    offsets = sorted(_offsets(spark, topics, settings))
    for topic in topics:
        if not any(topic == name for name, *_ in offsets):
            raise LedgerError(f"kafka: {bootstrap} has no topic {topic}")
    if len(offsets) > MOST_LISTENERS:
        raise LedgerError(f"kafka: more than {MOST_LISTENERS} partitions")
    if any(end - first >> UNIT_BITS for *_, first, end in offsets):
        raise LedgerError("kafka: more than 2**40 records in a partition")
    # Fix the range now: the topic may grow meanwhile.
    starts, ends = ({topic: dict[int, int]() for topic in topics} for _ in range(2))
    for topic, partition, first, end in offsets:
        starts[topic][partition], ends[topic][partition] = first, end
    assigned = {topic: [*partitions] for topic, partitions in starts.items()}
    ranges = {"assign": assigned, "startingOffsets": starts, "endingOffsets": ends}
    options = {name: json.dumps(value) for name, value in ranges.items()}
    options |= {f"kafka.{name}": value for name, value in settings.items()}
    frame = spark.read.format("kafka").options(**options).load()
    return Arrived(
        frame.selectExpr("*", "concat(topic, '[', partition, ']') AS listener"),
        {"listener": "listener", "arrival": "offset", "received": "timestamp", "key": "key"},
        f"kafka://{bootstrap}/{','.join(topics)}",
        [Place(f"{topic}[{partition}]", first, end) for topic, partition, first, end in offsets],
    )


def parse_address(address: str) -> tuple[str, list[str]]:
    """Return the bootstrap servers and topics of ``host:port/topic``."""
    bootstrap, slash, names = address.rpartition("/")
    topics = sorted(set(names.split(",")))
    if not slash or not bootstrap or "/" in bootstrap or "@" in bootstrap:
        shown = "the address" if "@" in address else repr(address[:200])
        raise ConfigError(f"kafka: {shown} must be HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]")
    for topic in topics:
        if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
            raise ConfigError(f"kafka: {topic[:200]!r} is not the name of a topic")
    return bootstrap, topics


def read_config(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a file of Kafka settings: lines of ``name=value``, and ``#`` for comments."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "no UTF-8")
        raise LedgerError(f"kafka_config: {os.fspath(path)}: {why}") from error
    config = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if line.strip() and not name.startswith(("#", "!")):
            if not equals or not name:
                raise ConfigError(f"kafka_config: line {number} must be NAME=VALUE")
            config[name] = value
    return config


def _offsets(spark: Any, topics: list[str], settings: Mapping[str, str]) -> Offsets:
    """Ask the brokers for the offsets of all partitions, which Spark's source does not tell.

    The client is that of the connector, in the JVM of the session, or through Spark Connect that for Python.
    """
    if not hasattr(spark, "sparkContext"):
        return _offsets_from_here(topics, settings)
    jvm = spark.sparkContext._jvm
    client = jvm.org.apache.kafka.clients.consumer.KafkaConsumer
    if not isinstance(client, type(jvm.java.util.HashMap)):
        raise ConfigError("kafka: this Spark session has no Kafka connector (spark.jars.packages)")
    bytes_ = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    own = dict.fromkeys(("key.deserializer", "value.deserializer"), bytes_)
    own |= {"default.api.timeout.ms": str(ANSWER_MS), "request.timeout.ms": str(ANSWER_MS // 2)}
    own["allow.auto.create.topics"] = "false"
    values, partitions = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    for name, value in {**own, **settings}.items():
        values.put(name, value)
    consumer = client(values)
    try:
        for topic in topics:
            for info in consumer.partitionsFor(topic) or ():
                partitions.add(jvm.org.apache.kafka.common.TopicPartition(topic, info.partition()))
        first, end = consumer.beginningOffsets(partitions), consumer.endOffsets(partitions)
        return [(x.topic(), x.partition(), int(first[x]), int(end[x])) for x in partitions]
    finally:
        consumer.close(jvm.java.time.Duration.ZERO)


def _offsets_from_here(topics: list[str], settings: Mapping[str, str]) -> Offsets:
    try:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        admin: Any = importlib.import_module("confluent_kafka.admin")
    except ImportError as error:
        raise MissingExtra("confluent_kafka", "kafka") from error
    own = {name: value for name, value in settings.items() if name.startswith(_CONNECTING)}
    # It has settings of its own for a login.
    login = re.findall(r'\b(username|password)="((?:[^"\\]|\\.)*)"', own.pop("sasl.jaas.config", ""))
    own |= {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in login}
    committed = settings.get("isolation.level") == "read_committed"
    limits: dict[str, Any] = {
        "isolation_level": IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
        "request_timeout": ANSWER_MS / 1000,
    }
    try:
        client = admin.AdminClient({**own, "log_level": 0})
        listed = client.list_topics(timeout=ANSWER_MS / 1000).topics  # to ask for a topic may create it
        known = [topic for topic in topics if topic in listed]
        every = [TopicPartition(topic, number) for topic in known for number in listed[topic].partitions]
        specs = admin.OffsetSpec.earliest(), admin.OffsetSpec.latest()
        asked = [client.list_offsets(dict.fromkeys(every, x), **limits) if every else {} for x in specs]
        return [(x.topic, x.partition, *(answers[x].result().offset for answers in asked)) for x in every]
    except KafkaException as error:
        why = error.args[0].str()
        if "configuration property" in why:
            # The rest of the text may have the value.
            [name] = re.findall(r'property:? "([\w.]+)"', why)[:1] or ["a setting"]
            why = "it is refused by confluent-kafka, which asks for offsets where Spark Connect is used"
            raise ConfigError(f"kafka_config: {name}: {why}") from None
        raise VerifyError(f"kafka: {settings['bootstrap.servers']}: {why[:300]}") from error


def read_table(spark: Any, name: str) -> Arrived:
    """Read a table or files that Spark can read; of Delta and Iceberg, the version of now."""
    from pyspark.errors import AnalysisException

    named = re.fullmatch(r"([a-zA-Z_]\w*):(?!//)(.*)", name, re.DOTALL)
    form, path = named.groups() if named else ("parquet", name)
    try:
        if named or "/" in name or not _is_table(spark, name):
            frame, version = _at_version(spark, form, path)
        else:
            described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where("col_name = 'Provider'").collect()
            provider = described[0].data_type.lower() if described else ""
            frame, version = _at_version(spark, provider, name, catalogued=True)
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFoundException" in str(error):
            how = "name the Maven coordinates of its package with --packages (packages=)"
            raise LedgerError(f"table: Spark knows no format {form!r}: {how}") from error
        if not isinstance(error, AnalysisException):
            raise
        raise LedgerError(f"table: {str(error).splitlines()[0]}") from error
    return Arrived(frame, {}, f"table {name}{version}")


def _is_table(spark: Any, name: str) -> bool:
    """Return whether the catalogue has a table; True also where no file has that name either."""
    from pyspark.errors import AnalysisException

    try:
        spark.read.table(name).schema  # noqa: B018
    except AnalysisException:
        return not os.path.exists(name)
    return True


def _at_version(spark: Any, form: str, name: str, catalogued: bool = False) -> tuple[Any, str]:
    """Return a table at its current version, if it has versions, and this version in words."""

    def read(part: str = "", **options: Any) -> Any:
        reader = spark.read.options(**options)
        if catalogued:
            return reader.table(f"{name}.{part}" if part else name)
        return reader.format(form).load(f"{name}#{part}" if part else name)

    frame = read()
    frame.schema  # noqa: B018 - otherwise Spark Connect would name a missing table only later
    if form == "delta":
        quoted = name if catalogued else "delta.`" + name.replace("`", "``") + "`"
        found = spark.sql(f"DESCRIBE HISTORY {quoted} LIMIT 1").select("version")
    elif form == "iceberg":
        found = read("refs").where("name = 'main'").select("snapshot_id")
    else:
        return frame, ""
    row = found.first()
    return (read(versionAsOf=row[0]), f", version {row[0]}") if row else (frame, "")
