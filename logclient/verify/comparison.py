"""The steps of one comparison.

The ledgers are surveyed, then one job compares them with what arrived, and, rarely, another one compares some
buckets again (``judge.py``). Then the counts are added up, and examples are read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from logclient.errors import ConfigError
from logclient.evidence import captures, decode
from logclient.evidence.ledger_files import Ledgers
from logclient.evidence.reports import SegmentReport
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.verify import examples, ledger_merge, ledger_rows, schema
from logclient.verify.ledger_buckets import places_of
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.order import Later
from logclient.verify.overview import Grid
from logclient.verify.plan import FILES, MAX_TASKS, TASK_BYTES, Plan, share_evenly, share_out
from logclient.verify.producer_tables import Column
from logclient.verify.records import Source
from logclient.verify.runners import LocalRunner, SparkRunner, ledger_groups
from logclient.verify.summary import Summary
from logclient.verify.tally import Tally
from logclient.verify.tuning import Tuning
from logclient.verify.verdict import Limits, Verdict
from logclient.verify.violation_files import ViolationWriter
from logclient.verify.watch import Watch

ANONYMOUS_SHARE = 1 << 18  # events without an id in one share
BUCKET_PLACES = 1 << 10  # what a bucket costs on top of its places
TOGETHER_PLACES = 1 << 18  # events in the ledgers of a comparison that is one task


@dataclass
class Comparison:
    """A comparison of ledgers with what arrived."""

    steps: SparkRunner | LocalRunner
    ledgers: Ledgers
    survey: captures.Survey
    source: Source | None
    watch: Watch
    selection: Selection
    tuning: Tuning
    examples: int
    violations: bool  # whether every fault is wanted
    by_id: bool
    others: str  # one of `verdict.OTHERS`
    summary: Summary = field(init=False)  # the counts, after `run`
    skipped: list[SegmentReport] = field(default_factory=list)  # of segments that are not read
    second_passes: int = 0

    def run(self, limits: Limits, **accepted: bool) -> Verdict:
        """Return the verdict, without what is only known outside, such as the folders' names."""
        began = time.monotonic()
        self.watch.step("reading ledgers")
        facts = self._facts({})
        plan = self._plan(facts)
        packed = time.monotonic()
        self.skipped = self.survey.find_outside(self.selection)
        some = plan.without_segments({report.name for report in self.skipped})
        verdict = self._verdict(some, facts, limits, accepted)
        counts = verdict.counts
        if self.skipped and counts.lost + counts.missing + counts.unknown + counts.pending:
            self.watch.step("comparing with all segments")
            self.skipped = []
            verdict = self._verdict(plan, facts, limits, accepted)
            counts = verdict.counts
        summary, tally = self.summary, self.summary.tally
        facts, plan = tally.ledger, tally.plan
        self.watch.step("reading examples")
        pick = self.source.pick if self.source is not None else None
        shown = examples.resolve(tally.choose_examples(), plan, summary.doubtful, facts, pick)
        examples.explain_undecoded(verdict.undecoded, plan, pick)
        problems = verdict.problems
        if self.by_id and 2 * min(counts.lost + counts.missing, counts.unexpected) > counts.events:
            problems = (*examples.explain_ids(shown.get("unexpected", []), facts), *problems)
        seconds = {
            "pack": round(packed - began, 3),
            "compare": round(time.monotonic() - packed, 3),
            "second_passes": float(self.second_passes),
        }
        return verdict._replace(examples=shown, problems=problems, seconds=seconds)

    def _verdict(self, plan: Plan, facts: LedgerFacts, limits: Limits, accepted: dict[str, bool]) -> Verdict:
        self.summary = Summary(self._compare(plan, facts))
        return self.summary.verdict(limits, **accepted)

    def _compare(self, plan: Plan, facts: LedgerFacts) -> Tally:
        """Compare the ledgers with what arrived, and return the complete tally."""
        tally = self._tally(plan, facts, "comparing")
        foreign = captures.find_foreign(tally.reports, tally.matched, facts.begin)
        if foreign:
            # Their events are in all the sums, so everything is compared again without them.
            others = [report for report in tally.reports if report.name in foreign]
            self.skipped = [report for report in self.skipped if report.name not in foreign]
            plan = plan.without_segments(foreign)
            tally = self._tally(plan, facts, "comparing without other runs")
            tally.foreign = others
        if ends := self._ends(tally):
            # Events were not seen whose capture goes on: see which of them it cannot lack.
            foreign_reports = tally.foreign
            facts = self._facts(ends)
            tally = self._tally(plan, facts, "comparing with the time of acknowledgements")
            tally.foreign = foreign_reports
        self.watch.step("adding up")
        if self.source is not None:
            first, last = facts.span
            self.source.complete(tally.reports, first if first <= last else None)
        writer = ViolationWriter(plan.violations, facts)
        again = tally.edges.conflicts()
        if again is not None:
            self.second_passes += 1
            self._judge(tally, "comparing again", again)
        tally.count_unlisted(writer)
        tally.files.append(writer.take())
        return tally

    def _facts(self, ends: dict[str, int]) -> LedgerFacts:
        """Read the ledgers.

        `ends`: protocol -> time; an outcome written then or later may not be in the capture yet.
        """
        ledgers, selection = self.ledgers, self.selection
        surveys = self.steps.survey(ledgers.parts, selection, ends)
        bits = self.tuning.bucket_bits
        facts = ledger_merge.merge(
            surveys, bits, ledgers.unread, ledgers.copies, selection, ends, ledgers.twice
        )
        if selection != EVERYTHING:
            groups = ledger_groups(ledgers.parts)
            found = [
                ledger_rows.hashes_of(ledgers.parts[slice(*groups[number])], number, facts)
                for number in facts.anonymous_files()[0]
            ]
            facts.left_out_hashes = np.unique(np.concatenate([facts.left_out_hashes, *found]))
        return facts

    def _ends(self, tally: Tally) -> dict[str, int]:
        """Return until when captures that go on have everything, of protocols with unseen events."""
        ends, facts = tally.doubts()[3], tally.ledger
        unseen = tally.sums[:, [schema.LOST, Column.MISSING_SENT]].any(axis=1)
        families = {facts.families[i] for i in np.unique(facts.rows["family"][unseen]).tolist()}
        return {family: at for family, at in ends.items() if family in families}

    def _tally(self, plan: Plan, facts: LedgerFacts, step: str) -> Tally:
        tally = Tally(plan, facts)
        self._judge(tally, step)
        tally.reports += self.skipped
        return tally

    def _judge(self, tally: Tally, step: str, later: Later | None = None) -> None:
        self.watch.step(step)
        for batch in self.steps.judge(self.ledgers.parts, tally.ledger, tally.plan, later):
            self.watch.check()
            for row in batch.to_pylist():
                tally.add_row(row)

    def _tasks(self) -> list[list[int]]:
        """Distribute the segments over tasks: all of a listener in one if an event may have several units."""
        alone = []
        of_listener: dict[int, list[int]] = {}
        for index, (_, listener, _, protocol) in enumerate(self.survey.entries):
            if protocol and decode.carries(protocol):
                of_listener.setdefault(listener, []).append(index)
            else:
                alone.append(index)
        sizes = [self.survey.entries[index][0].size for index in alone]
        shared = share_out(
            ((i, size, 1) for i, size in enumerate(sizes)), max(TASK_BYTES, sum(sizes) // MAX_TASKS), FILES
        )
        return [*([alone[i] for i in group] for group in shared), *of_listener.values()]

    def _plan(self, facts: LedgerFacts) -> Plan:
        events = facts.anonymous_files()[1] if self.selection == EVERYTHING else 0
        if self.by_id and events:
            raise ConfigError(f"match: {events:,} events have no id, or that of another event: match bodies")
        places = places_of(facts, facts.live)
        # One task on this machine takes less time for little data than a shuffle does.
        together = (
            self.steps.small
            and sum(entry[0].size for entry in self.survey.entries) < self.tuning.together_bytes
            and int(places.sum()) + events < TOGETHER_PLACES
        )
        cores = self.steps.cores
        owners = np.searchsorted(facts.bases[:-1], facts.live, side="right")
        edges = (
            [] if together else share_evenly(places + BUCKET_PLACES, owners, cores, self.tuning.task_places)
        )
        source, survey = self.source, self.survey
        unjudged, published = captures.order_rules(survey.listeners)
        if source is not None:
            # Logjam events reach a topic or table through a device.
            published = [family for family in facts.families if family == "logjam"]
        return Plan(
            bits=self.tuning.bucket_bits,
            units=self.tuning.batch_units,
            chunk=self.tuning.chunk_bytes,
            examples=self.examples,
            partitions=1 if together else max(cores, len(edges) + 1),
            edges=facts.live[edges].tolist(),
            anonymous_shares=max(16, -(-events // ANONYMOUS_SHARE)) if events else 0,
            segments=survey.entries,
            tasks=self._tasks(),
            groups=ledger_groups(self.ledgers.parts),
            violations=self.violations,
            others=self.others,
            grid=Grid.over(*facts.span),
            families=len(facts.families),
            app_envs=_app_envs(facts.urls),
            ordered=not self.by_id and (source is None or source.numbered),
            by_id=self.by_id,
            timed=source is None or source.timed,
            records=source.plan(_only(facts.families)) if source is not None else None,
            listeners=survey.listeners,
            left_out=survey.left_out,
            unjudged=unjudged,
            published=published,
            selection=self.selection,
        )


def _app_envs(urls: list[tuple[str, str]]) -> list[str]:
    """Return the app-envs of the Logjam producers' URLs, or none when one of them has no app-env."""
    found = {
        url.partition("://")[2].partition("?")[0].partition("/")[2]
        for protocol, url in urls
        if protocol == "logjam"
    }
    return [] if "" in found else sorted(found)


def _only(families: list[str]) -> str:
    """Return the only protocol of the ledgers, which is also that of the records."""
    named = [family for family in families if family]
    if len(named) != 1:
        what = " and ".join(sorted(named)) or "no protocol"
        raise ConfigError(f"ledger: it has {what}, but a topic or table has bodies of one protocol")
    decode.wire(named[0])
    return named[0]
