"""Random histories for the verifier: ledgers of some producers, and what arrived."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracle import logjam as oracle
from tests.oracle.verify import Arrival, Part, Result, is_within, judge
from tests.support import verify_files as files

# Where the events of a protocol may arrive; "e/2" is what device 2 published, at the consumer e.
ENDPOINTS = {"lumberjack": ("a", "b", "c"), "logjam": ("d", "e/1", "e/2")}
TOPICS = ("logs.shop.production", "events.shop.production", "frontend.page", "mobile")
HUGE = (1 << 48) - 1


class Sent(NamedTuple):
    """One copy of an event on its way."""

    endpoint: str
    raw: bytes
    arrival: Arrival
    topic: str = ""  # Logjam's


def compressions() -> list[int]:
    """Those of Logjam's that can be written here."""
    found = []
    for number in range(4):
        try:
            oracle.pack(number, b"x")
        except ImportError:
            continue
        found.append(number)
    return found


class History:
    """One producer: its ledger, and the copies of its events in the order in which each listener got them."""

    def __init__(
        self,
        rng: random.Random,
        *,
        anonymous: float = 0.0,
        users: float = 0.0,
        protocol: str = "lumberjack",
        whole: bool = False,
    ) -> None:
        self.rng = rng
        self.whole = whole
        self.producer = rng.randbytes(10).hex()
        self.protocol = protocol
        self.endpoints = ENDPOINTS[protocol]
        self.mode = rng.choice(("request", "async")) if protocol == "logjam" else ""
        self.topics: dict[int, str] = {}
        self.identity = "none" if rng.random() < anonymous else "id"
        self.users = users if self.identity == "id" else 0.0
        self.bodies: dict[int, bytes] = {}
        self.user_ids: dict[int, str] = {}
        self.parts: dict[int, Part] = {}
        self.raw_parts: dict[int, list[dict[str, Any] | bytes]] = {}
        self._ledger()
        self.sent: list[Sent] = []
        self._arrivals()

    # -- ledger

    def _body(self, seq: int, text: str) -> bytes:
        if self.protocol == "logjam":
            topic = self.topics.setdefault(seq, self.rng.choice(TOPICS))
            ident = files.event_id(self.producer, seq) if self.identity == "id" else None
            return files.document(ident, text, topic=topic, user=self.user_ids.get(seq))
        if self.identity == "none":
            return files.body(None, text)
        if seq in self.user_ids:
            return files.body(None, text, user=self.user_ids[seq])
        carrier = self.rng.choice(("both", "metadata", "event"))
        return files.body(files.event_id(self.producer, seq), text, carrier=carrier)

    def _ledger(self) -> None:
        rng = self.rng
        n = rng.choice((0, 1, 2, 3, 5, 8, 9, 13, 20, 30, rng.randint(31, 70)))
        unlisted = rng.choice((0, 0, 0, 0.1, 0.5))
        outcomes: dict[int, str] = {}
        lines: list[dict[str, Any] | None] = []
        todo: list[int] = []
        began, pace = rng.randint(0, 2_000_000), rng.choice((0, 10, 1_000, 40_000))
        for seq in range(1, n + 1):
            if rng.random() < unlisted:
                outcomes[seq] = rng.choice(("dropped", "dropped", "failed", "failed" if self.whole else ""))
            else:
                if rng.random() < self.users:
                    self.user_ids[seq] = rng.choice(
                        (f"user-{rng.getrandbits(60)}", f"shared-{rng.randint(1, 3)}")
                    )
                text = (
                    f"line {rng.randint(1, 6)}" if self.identity == "none" else f"{seq} {rng.getrandbits(40)}"
                )
                self.bodies[seq] = self._body(seq, text)
                outcomes[seq] = rng.choices(("acked", "handed", "failed", ""), (20, 2, 1, 1))[0]
                todo.append(seq)
        while todo:
            size = rng.randint(1, 9)
            piece, todo = todo[:size], todo[size:]
            with_user = [(s, self.user_ids[s]) for s in piece if s in self.user_ids]
            events = [(s, began + pace * s, files.xxh64(self.bodies[s])) for s in piece]
            lines.append(files.batch_line(events, own=[s for s, _ in with_user]))
            if with_user:
                lines.append(files.ids_line(with_user))
        by_outcome: dict[str, list[int]] = {}
        for seq, outcome in outcomes.items():
            by_outcome.setdefault(outcome, []).append(seq)
        by_outcome.pop("", None)
        for outcome, seqs in by_outcome.items():
            rng.shuffle(seqs)
            cut = rng.randint(0, len(seqs))
            for some in (seqs[:cut], seqs[cut:]):
                if some:
                    line = (
                        files.dropped_line(some, began)
                        if outcome == "dropped"
                        else files.outcome_line(outcome, some, at_us=self._written_us())
                    )
                    lines.insert(rng.randint(0, len(lines)), line)
        listed = sorted(self.bodies.keys() & outcomes.keys())
        if listed and rng.random() < 0.3:
            some = rng.sample(listed, min(3, len(listed)))
            lines.insert(rng.randint(0, len(lines)), files.deferred_line(some))
        if outcomes and rng.random() < 0.05:  # two outcomes for one event: the stronger one wins
            some = rng.sample(sorted(outcomes), 1)
            lines.append(files.outcome_line("failed", some, at_us=self._written_us()))
        if rng.random() < 0.3:
            lines.append({"t": "alive", "at_us": self._written_us(), "waiting": rng.choice((0, 0, 3))})
        if rng.random() < 0.1:
            lines.append({"t": "ended", "at_us": self._written_us()})
        torn: bytes | None = None
        ending = 0.5 if self.whole else rng.random()
        if ending < 0.1:
            lines.append({"t": "stopped", "reason": "disk full"})
        if 0.05 < ending < 0.75:
            totals = files.totals(line for line in lines if line is not None)
            if not self.whole and rng.random() < 0.05:
                totals[rng.choice(("acked", "handed", "failed", "dropped"))] += 1
            last = n + (rng.choice((-1, 0, 1, 7)) if not self.whole and rng.random() < 0.1 else 0)
            end = files.close_line(max(last, 0), bytes=0, **totals)
            lines.append(end | {"at_us": began + pace * (n + 1)})
        elif 0.75 <= ending < 0.88 and lines:
            whole = files.encode_line(lines.pop() or {})
            torn = whole[: rng.randint(1, len(whole) - 1)]
        self._split(lines, torn, began)

    def _written_us(self) -> int:
        """A time of a line, so that it is near the end of the captures, or of what is selected.

        Those times are about 1.5 s, and the clocks of machines may differ by 10 s.
        """
        return self.rng.choice((-8_500_000, 1_500_000, 11_500_000)) + self.rng.randint(0, 200_000)

    def _split(self, lines: list[dict[str, Any] | None], torn: bytes | None, began: int) -> None:
        rng = self.rng
        cuts = sorted(rng.randint(0, len(lines)) for _ in range(rng.choice((0, 0, 1, 2))))
        pieces = [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
        size = 0
        for number, piece in enumerate(pieces, 1):
            head = files.open_line(self.producer, number, self.identity, self.protocol, self.mode)
            head["at_us"] = began
            piece.insert(0, head)
            if number < len(pieces) or (torn is None and not self.whole and rng.random() < 0.05):
                piece.append({"t": "continued", "at_us": self._written_us()})
            for line in piece:
                if line is not None and line["t"] == "close":
                    line["bytes"] = size
                    if rng.random() < 0.2:
                        del line["bytes"]
                size += len(files.encode_line(line or {}))
        whole = dict(enumerate(pieces, 1))
        if not self.whole and rng.random() < 0.3:
            self._damage(whole)
        for number, piece in whole.items():
            raw: list[dict[str, Any] | bytes] = [
                rng.choice((b"{nonsense\n", b'{"t":"batch","seqs":[[9,2]],"n":1}\n', b"[]\n"))
                if line is None
                else line
                for line in piece
            ]
            sizes = [len(files.encode_line(line)) for line in raw]
            mine = torn if number == len(pieces) else None
            if mine is not None:
                raw.append(mine)
                sizes.append(len(mine))
            self.parts[number] = Part(piece, mine is not None, sizes)
            self.raw_parts[number] = raw

    def _damage(self, parts: dict[int, list[dict[str, Any] | None]]) -> None:
        """One thing that happens to files."""
        rng = self.rng
        number = rng.choice(sorted(parts))
        lines = parts[number]
        at = rng.randrange(len(lines))
        match rng.randrange(9):
            case 0:
                lines[at] = None
            case 1:
                del lines[at]
            case 2:
                lines.insert(at, lines[at])
            case 3:
                lines.insert(at, None)
            case 4:
                to = rng.randrange(len(lines))
                lines[at], lines[to] = lines[to], lines[at]
            case 5:
                lines[at:at] = lines
            case 6:
                if len(parts) > 1:
                    del parts[number]
            case 7:
                parts[number + 1] = list(lines)
            case _:
                parts[number] = lines[:at]

    # -- arrivals

    def _copy(self, endpoint: str, seq: int, raw: bytes) -> Sent:
        user = None
        if seq in self.user_ids:
            text = self.user_ids[seq].encode()
            user = files.xxh64(text), files.xxh64(text, 43)
        ours = self.identity == "id" and user is None
        return Sent(
            endpoint,
            raw,
            Arrival(endpoint, self.producer if ours else "", seq if ours else 0, files.xxh64(raw), user),
            self.topics.get(seq, ""),
        )

    def _arrivals(self) -> None:
        rng = self.rng
        bad = rng.choice((0.0, 0.02, 0.1, 0.4))
        many = rng.random() < 0.3  # more than one listener
        wild = rng.random() < 0.1  # any order
        sent = []
        for seq, raw in sorted(self.bodies.items()):
            if rng.random() < bad:
                continue
            endpoint = rng.choice(self.endpoints) if many and rng.random() < 0.3 else self.endpoints[0]
            copies = 1 + (rng.randint(1, 3) if rng.random() < bad else 0)
            for _ in range(copies):
                mine = self._body(seq, f"{seq} other") if rng.random() < bad / 3 else raw
                sent.append(self._copy(endpoint, seq, mine))
                if many and rng.random() < 0.5:
                    endpoint = rng.choice(self.endpoints)
        for _ in range(rng.choice((0, 0, 1, 2)) if bad else 0):  # events that were never sent
            seq = rng.choice((0, 1, 2, 5, len(self.bodies), len(self.bodies) + 1, len(self.bodies) + 9, HUGE))
            if self.identity == "id" and seq not in self.bodies:
                for _ in range(rng.choice((1, 1, 2))):
                    sent.insert(
                        rng.randint(0, len(sent)),
                        self._copy(rng.choice(self.endpoints), seq, self._body(seq, "phantom")),
                    )
        for _ in range(int(len(sent) * bad)):  # moved, near and far
            i = rng.randrange(len(sent))
            item = sent.pop(i)
            sent.insert(rng.choice((i + 1, i + 2, rng.randint(0, len(sent)), 0)), item)
        if wild:
            rng.shuffle(sent)
        self.sent = sent


class World:
    """Many histories in one ledger folder and one capture folder, and the verdict of the reference."""

    def __init__(
        self,
        seed: int,
        n: int,
        *,
        anonymous: float = 0.0,
        users: float = 0.0,
        unclosed: str = "",
        logjam: float = 0.3,
        whole: bool = False,
        runs: Sequence[str] = ("r",),
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.runs = runs
        self.unclosed = unclosed
        self.end_us = 0  # when the last unit of that listener was received
        self.methods = compressions()
        self.numbers: dict[int, int] = {}  # device -> its last number
        self.histories = [
            History(
                rng,
                anonymous=anonymous,
                users=users,
                protocol="logjam" if rng.random() < logjam else "lumberjack",
                whole=whole,
            )
            for _ in range(n)
        ]
        queues = [list(reversed(history.sent)) for history in self.histories if history.sent]
        self.merged: list[Sent] = []
        while queues:  # a few producers at a time, so that units mix them
            which = rng.randrange(min(len(queues), 8))
            for _ in range(rng.randint(1, 6)):
                if queues[which]:
                    self.merged.append(queues[which].pop())
            if not queues[which]:
                queues.pop(which)
        for _ in range(n // 20):
            self.merged.insert(rng.randint(0, len(self.merged)), self._foreign_event())

    def _foreign_event(self) -> Sent:
        rng = self.rng
        protocol = rng.choice(sorted(ENDPOINTS))
        endpoint, topic = rng.choice(ENDPOINTS[protocol]), rng.choice(TOPICS)

        def body(ident: str | None, text: str, user: str | None = None) -> bytes:
            if protocol == "logjam":
                return files.document(ident, text, topic=topic, user=user)
            return files.body(ident, text, user=user)

        kind = rng.randint(0, 2)
        if kind == 0:
            producer, seq = f"{rng.randint(1, 5):020x}", rng.randint(1, 3)
            raw = body(files.event_id(producer, seq), "foreign")
            return Sent(endpoint, raw, Arrival(endpoint, producer, seq, files.xxh64(raw)), topic)
        if kind == 1:
            text = f"foreign-{rng.randint(1, 5)}"
            raw = body(None, "foreign", text)
            user = files.xxh64(text.encode()), files.xxh64(text.encode(), 43)
            return Sent(endpoint, raw, Arrival(endpoint, "", 0, files.xxh64(raw), user), topic)
        raw = body(None, f"foreign {rng.randint(1, 5)}")
        return Sent(endpoint, raw, Arrival(endpoint, "", 0, files.xxh64(raw)), topic)

    def write(self, folder: Path, segments: int = 0) -> tuple[Path, Path]:
        """Write the files; return the folders of the ledger and of the capture.

        Args:
            folder: the folder for both.
            segments: of each listener, about; 0: one to four.
        """
        rng = self.rng
        ledger, capture = folder / "ledger", folder / "capture"
        for history in self.histories:
            for number, lines in history.raw_parts.items():
                files.write_part(ledger, history.producer, number, lines)
        names = {name.partition("/")[0]: protocol for protocol, some in ENDPOINTS.items() for name in some}
        for listener, protocol in names.items():
            mine = [i for i, sent in enumerate(self.merged) if sent.endpoint.partition("/")[0] == listener]
            units: list[tuple[bytes, int, int]] = []
            at = 1_500_000
            places: dict[int, int] = {}  # of each event, the unit
            while mine:
                size = rng.choice((1, 1, 2, 5, 20))
                piece, mine = mine[:size], mine[size:]
                at += rng.choice((1, 50, 5_000))
                for i in piece:
                    sent = self.merged[i]
                    self.merged[i] = sent._replace(arrival=sent.arrival._replace(received_us=at))
                if protocol == "logjam":
                    for i in piece:
                        places[i] = len(units)
                        units += [(unit, way, at) for unit, way in self._messages(self.merged[i])]
                else:
                    places |= dict.fromkeys(piece, len(units))
                    raws = [self.merged[i].raw for i in piece]
                    units.append((files.window(raws, compress=rng.random() < 0.3), 0, at))
                    units.append((b"2A\0\0\0\1", 1, at))
            if listener == self.unclosed and units:
                self.end_us = at
            few = max(3, len(units) // rng.randint(1, 4))
            size = max(1, len(units) // segments) if segments else few
            files.write_segments(
                capture,
                listener,
                units,
                per_segment=size,
                runs=self.runs,
                closed=listener != self.unclosed,
                protocol=protocol,
            )
        return ledger, capture

    def _messages(self, sent: Sent) -> list[tuple[bytes, int]]:
        """(wire unit, direction) of an event, and of what travels besides."""
        rng = self.rng
        compression = rng.choice(self.methods)
        _, _, device = sent.endpoint.partition("/")
        if not device:
            request = rng.random() < 0.5
            unit = files.message(sent.raw, request=request, compression=compression, topic=sent.topic)
            return [(unit, 0), (files.ACCEPTED, 1)] if request else [(unit, 0)]
        number = self._number(int(device))
        found = [
            files.message(
                sent.raw, request=False, compression=compression, topic=sent.topic,
                device=int(device), number=number,
            )
        ]  # fmt: skip
        if rng.random() < 0.05:
            other = rng.choice((1, 2, 3, (1 << 32) - 1))
            found.append(files.heartbeat(other, self._number(other)))
        return [(unit, 0) for unit in found]

    def _number(self, device: int) -> int:
        """The next number of a device, which sometimes loses messages or restarts."""
        rng = self.rng
        number = self.numbers.get(device, rng.choice((0, 0, 7, (1 << 64) - 9))) + 1
        if rng.random() < 0.05:
            number += rng.randint(1, 20)
        if number >= 1 << 64 or rng.random() < 0.01:
            number = rng.randint(1, 5)
        self.numbers[device] = number
        return number

    def expected(self, **options: Any) -> Result:
        """The reference's verdict after `write`, which sets arrival times; options as for `judge`."""
        ledgers = {history.producer: history.parts for history in self.histories}
        protocol = "logjam" if self.unclosed in "de" else "lumberjack"
        doubtful = [protocol] if self.unclosed and not self.end_us else []
        ends = {protocol: self.end_us} if self.end_us else {}
        return judge(ledgers, [sent.arrival for sent in self.merged], doubtful, ends, **options)


def breaks(facts: Any, counts: dict[str, int], published: str = "") -> tuple[str, ...]:
    """Which counts of a producer break its promise; order is promised where events are acknowledged."""
    words = ["lost", "corrupted", "unexpected"]
    acknowledged = facts.protocol == "lumberjack" or facts.mode == "request"
    if acknowledged and facts.protocol != published and not facts.holes:
        words.append("reordered")
    return tuple(word for word in words if counts.get(word))


def differences(
    expected: Result, verdict: Any, found: dict[str, set[tuple[str, int]]], published: str = ""
) -> list[str]:
    """Return the differences of a verdict from the reference, a line each.

    Args:
        found: word -> (producer, sequence), from the verdict's violations.
        published: the protocol whose arrivals have the order of a device, which is no promise.
    """
    out = []
    mine = {x.producer: x for x in verdict.producers if x.producer}
    if verdict.exit_code != expected.exit_code:
        out.append(f"exit code {verdict.exit_code}, the reference has {expected.exit_code}")
    for word in ("unexpected", "unknown"):
        foreign = sum(getattr(x.counts, word) for x in verdict.producers if not x.producer)
        if foreign != expected.unknown_ids.get(word, 0):
            out.append(f"foreign {word}: {foreign}, the reference has {expected.unknown_ids}")
    judged = {producer for producer, mine in expected.facts.items() if mine.selected}
    if mine.keys() != judged:
        out.append(f"producers: {sorted(mine.keys() ^ judged)} are named or left out wrongly")
    for producer, counts in expected.counts.items():
        if producer not in mine:
            continue
        has = mine[producer].counts._asdict()
        wrong = {word: (n, counts.get(word, 0)) for word, n in has.items() if n != counts.get(word, 0)}
        if mine[producer].gaps != expected.gaps[producer]:
            wrong["gaps"] = (mine[producer].gaps, expected.gaps[producer])
        if mine[producer].ledger != expected.facts[producer].kind:
            wrong["ledger"] = (mine[producer].ledger, expected.facts[producer].kind)
        broken = breaks(expected.facts[producer], counts, published)
        if mine[producer].breaks != broken:
            wrong["breaks"] = (mine[producer].breaks, broken)
        if wrong:
            out.append(f"{producer}: {wrong}")
    for word in (
        "lost",
        "missing",
        "recovered",
        "corrupted",
        "dropped",
        "unexpected",
        "unknown",
        "pending",
        "duplicated",
        "reordered",
    ):
        if found.get(word, set()) != expected.ids.get(word, set()):
            more = sorted(found.get(word, set()) - expected.ids.get(word, set()))[:3]
            less = sorted(expected.ids.get(word, set()) - found.get(word, set()))[:3]
            out.append(f"ids of {word}: too many {more}, too few {less}")
    return out


def overview_differences(expected: Result, verdict: Any) -> list[str]:
    """Where the sums over time and over the sequences differ from the reference's single events."""
    out = []
    when = {
        (producer, seq): created
        for producer, mine in expected.facts.items()
        for seq, created in mine.created.items()
    }
    noted = [
        row
        for mine in expected.facts.values()
        for row in mine.noted if mine.selected and is_within(row[0], mine.since, mine.until)
    ]  # fmt: skip
    every = [
        at
        for mine in expected.facts.values()
        for at in mine.all_created.values() if is_within(at, mine.since, mine.until)
    ]  # fmt: skip
    times = [*every, *(at for at, _ in noted)]
    timeline = verdict.timeline
    if not times:
        return [] if timeline is None else ["a timeline of nothing"]
    start, width, n = timeline.start_us, timeline.width_us, len(timeline.events)
    # The steps may begin with what a producer dropped that is left out by its run.
    every_drop = [
        at
        for mine in expected.facts.values()
        for at, _ in mine.noted
        if is_within(at, mine.since, mine.until)
    ]
    least = min([*times, *every_drop])
    if not (
        n <= 240
        and least - width < start <= min(times)
        and start + (n - 1) * width <= max([*times, *every_drop])
    ):
        out.append(f"{n} steps of {width} from {start} for {min(times)} to {max(times)}")
    wanted: dict[str, list[int]] = {
        word: [0] * n for word in timeline._fields if word not in ("start_us", "width_us", "latency")
    }
    for at, count in noted:
        wanted["dropped"][(at - start) // width] += count
    for word, events in expected.ids.items():
        if word == "dropped":
            continue
        for event in events:
            if event in when:  # an event that was never listed has no time
                step = (when[event] - start) // width
                if word not in ("duplicated", "reordered"):
                    wanted["events"][step] += 1
                if word != "ok":
                    wanted[word][step] += expected.copies[event] if word == "duplicated" else 1
    for word, numbers in wanted.items():
        if getattr(timeline, word) != numbers:
            out.append(f"{word} over time: {getattr(timeline, word)}, the reference has {numbers}")
    took: list[list[int]] = [[] for _ in range(n)]
    for created, us in expected.took:
        if us >= 0:
            took[(created - start) // width].append(us)
    early = [-us for _, us in expected.took if us < 0]
    early_found = sum(x.early for x in verdict.producers), max(x.early_us for x in verdict.producers)
    if early_found != (len(early), max(early, default=0)):
        out.append(f"early: {early_found}, the reference has {len(early)} by {max(early, default=0)}")
    for word, share in (("p50", 50), ("p99", 99), ("max", 100)):
        for step, values in enumerate(took):
            found = timeline.latency[word][step]
            exact = sorted(values)[-(-share * len(values) // 100) - 1] if values else None
            if (found is None) != (exact is None) or (
                found is not None and abs(found - exact) > exact / 64 + 0.1
            ):
                out.append(f"{word} in step {step}: {found}, the reference has {exact}")
    # By sequence: all that is inside 1..last.
    parts: dict[str, dict[str, dict[int, int]]] = {}  # producer -> word -> part -> how many
    widths = {producer: max(-(-mine.last // 200), 1) for producer, mine in expected.facts.items()}
    for word, events in expected.ids.items():
        for producer, seq in events:
            if word != "ok" and 1 <= seq <= expected.facts[producer].last:
                part = parts.setdefault(producer, {}).setdefault(word, {})
                at = (seq - 1) // widths[producer]
                part[at] = part.get(at, 0) + (expected.copies[producer, seq] if word == "duplicated" else 1)
    maps = {
        producer: (
            expected.facts[producer].last,
            widths[producer],
            {word: sorted(map(list, x.items())) for word, x in mine.items()},
        )
        for producer, mine in parts.items()
    }
    found_maps = {x.producer: (x.last, x.width, x.parts) for x in verdict.maps}
    if len(verdict.maps) + verdict.maps_left_out != len(maps):
        out.append(f"{len(verdict.maps)} maps and {verdict.maps_left_out}, the reference has {len(maps)}")
    out += [
        f"map of {producer}: {map_}, the reference has {maps.get(producer)}"
        for producer, map_ in found_maps.items()
        if map_ != maps.get(producer)
    ]
    return out


def assert_equals_reference(world: World, verdict: Any, out: Path, **options: Any) -> None:
    """Compare a verdict, and the violations in its folder, with those of the reference."""
    from tests.support import verify_inprocess  # needs pyarrow

    expected = world.expected(**options)
    found = {
        word: {event for event in events if event[0] in expected.counts}
        for word, events in verify_inprocess.found(out).items()
    }
    wrong = differences(expected, verdict, found) + overview_differences(expected, verdict)
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:20])
    # Each sequence is counted under exactly one word; events beyond all sequences come on top.
    for x in verdict.producers:
        c = x.counts
        judged = c.ok + c.lost + c.missing + c.recovered + c.corrupted + c.dropped
        assert judged + c.unexpected + c.unknown + c.pending >= c.events
