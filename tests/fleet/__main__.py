"""Run services for some minutes, copy their evidence, judge each interval, and check every verdict.

Eight hosts have five producers each, of three services, and are restarted in turn. Four collectors capture.
All hosts push their files to S3. One host stops pushing, one collector loses 50 events, and one producer is
idle. Each interval is judged some minutes after its end, by both runners. The expected exit code, and the
number of lost events, come from the collector's fault log and the local ledgers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cores.recount import recount
from tests.support.s3 import Bucket, serve

HOSTS, CLIENTS = 8, 5
SERVICES = ("shop", "pay", "mail")
SILENT = HOSTS - 1  # the host that stops pushing
LOST = 50

PRODUCERS = """
import random, signal, sys, threading
import logclient

folder, seed, *urls = sys.argv[1:]
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
rng, services = random.Random(seed), ("shop", "pay", "mail")
clients = [
    logclient.connect(url, ledger=folder, service=services[i % 3], fields={"service.version": "1.0"})
    for i, url in enumerate(urls)
]
n = 0
while not stop.wait(rng.uniform(0.1, 0.4)):
    n += 1
    for client in clients:
        client.send({"message": f"event {n}"})
for client in clients:
    client.close(10.0)
"""
IDLE = PRODUCERS.replace(
    "while not stop.wait(rng.uniform(0.1, 0.4)):", "while n < 3 or not stop.wait():"
).replace("    n += 1\n", "    n += 1\n    if n > 3: continue\n")


class Fleet:
    """The processes of a fleet, and what was done to it."""

    def __init__(self, root: Path, bucket: Bucket, end: float, lose_at: float, silent_from: float) -> None:
        self.root, self.bucket = root, bucket
        self.end, self.silent_from = end, silent_from
        self.stop = threading.Event()
        self.processes: list[subprocess.Popen[str]] = []
        self.environment = {**os.environ, **bucket.environment, "PYTHONPATH": os.getcwd()}
        self.urls = [self._collector(n, lose_at) for n in range(4)]
        self.hosts = [self._producers(n) for n in range(HOSTS)]
        self.idle = self._start(IDLE, root / "idle" / "ledger", 99, self.urls[:1])
        folders = [f"host{n}" for n in range(HOSTS)] + [f"collector{n}" for n in range(4)] + ["idle"]
        self.threads = [threading.Thread(target=self.push_forever, args=(folder,)) for folder in folders]
        for thread in self.threads:
            thread.start()

    def _collector(self, number: int, lose_at: float) -> str:
        folder = self.root / f"collector{number}"
        command = [
            sys.executable,
            "-m",
            "logclient",
            "collect",
            "lumberjack://127.0.0.1:0",
            "--rotate",
            "20s",
        ]
        command += ["--capture", str(folder / "capture")]
        if number == 3:
            # A window has one event or few: about 10 producers send 4 a second.
            first = round(HOSTS * CLIENTS / 4 * 4 * (lose_at - time.time()))
            command += [
                "--faults",
                f"discard=from:{first}:max:{LOST}",
                "--fault-log",
                str(self.root / "faults"),
            ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["url"])

    def _start(self, program: str, folder: Path, seed: int, urls: list[str]) -> subprocess.Popen[str]:
        folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder), str(seed), *urls],
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.processes.append(process)
        return process

    def _producers(self, host: int) -> subprocess.Popen[str]:
        urls = [self.urls[(host + i) % 4] for i in range(CLIENTS)]
        return self._start(PRODUCERS, self.root / f"host{host}" / "ledger", host, urls)

    def restart(self, host: int) -> None:
        """Restart the producers of a host; every third one is killed."""
        self.hosts[host].send_signal(signal.SIGKILL if host % 3 == 2 else signal.SIGTERM)
        self.hosts[host].wait()
        self.hosts[host] = self._producers(host)

    def push_forever(self, folder: str) -> None:
        """Push a host's files each minute."""
        self.stop.wait(random.uniform(0.0, 60.0))
        while not self.stop.is_set():
            if folder != f"host{SILENT}" or time.time() < self.silent_from:
                command = [
                    sys.executable,
                    "-m",
                    "logclient",
                    "push",
                    str(self.root / folder),
                    self.bucket.url("run", folder),
                ]
                done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
                if done.returncode:
                    print(f"push {folder}: {done.returncode}: {done.stderr[-300:]}", flush=True)
            self.stop.wait(60.0)

    def close(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()

    def created(self, folder: str) -> dict[str, int]:
        """Return the time of each event in the ledgers of a host, by id."""
        found = {}
        for path in (self.root / folder / "ledger").glob("*-0001.ledger"):
            name = path.name.split("-")[0]
            for seq, at in recount(path.parent, name).created.items():
                found[f"{name}{seq:012x}"] = at
        return found

    def lost(self) -> dict[str, int]:
        """Return the times of the events that the collector has lost, by id."""
        path = self.root / "faults"
        if not path.exists():
            return {}
        gone = {one for line in path.read_text().splitlines() for one in json.loads(line)["ids"]}
        found: dict[str, int] = {}
        for host in range(HOSTS):
            found |= {one: at for one, at in self.created(f"host{host}").items() if one in gone}
        return found


def judge(fleet: Fleet, table: Path, since: int, until: int, runner: str) -> dict[str, Any]:
    """Judge one interval as a user does, and return the verdict."""
    command = [sys.executable, "-m", "logclient", "verify", "--json", "--append", str(table)]
    command += ["--every", f"{(until - since) // 60}m", "--since", f"@{since}", "--until", f"@{until}"]
    command += ["--ledger", fleet.bucket.url("run"), "--capture", fleet.bucket.url("run")]
    command += ["--local"] if runner == "local" else ["--master", "local[1]"]
    done = subprocess.run(command, env=fleet.environment, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return {"exit_code": done.returncode, "sentence": done.stderr[-500:], "counts": {}}
    return dict(json.loads(done.stdout.splitlines()[0]))


def check(fleet: Fleet, verdict: dict[str, Any], since: int, until: int) -> list[str]:
    """Return what is wrong with the verdict on an interval."""
    lost = sum(since * 1_000_000 <= at < until * 1_000_000 for at in fleet.lost().values())
    silent = until > fleet.silent_from - 90
    certain = until < fleet.silent_from - 90 or since > fleet.silent_from
    code = 1 if lost else 3 if silent else 0
    wrong = []
    if verdict["exit_code"] != code and (certain or lost):
        wrong.append(f"exit code {verdict['exit_code']}, not {code}")
    if verdict["counts"].get("lost") != lost:
        wrong.append(f"{verdict['counts'].get('lost')} lost, not {lost}")
    if any(verdict["counts"].get(word) for word in ("unexpected", "corrupted", "missing", "dropped")):
        wrong.append("something is unexpected, corrupted, missing or dropped")
    if code == 3 and verdict["exit_code"] == 3 and certain:
        names = {path.name.split("-")[0] for path in (fleet.root / f"host{SILENT}" / "ledger").iterdir()}
        if not any(name in verdict["sentence"] for name in names):
            wrong.append("no ledger of the silent host is named")
    return wrong


def watch(fleet: Fleet, first: int, every: int, end: int, runners: Sequence[str]) -> tuple[int, Counter[int]]:
    """Judge each interval in its time, and return how many verdicts are wrong, and how often a code came."""
    bad, codes = 0, Counter[int]()
    waiting: list[tuple[str, int, Future[dict[str, Any]]]] = []
    turn, due, host = first, first + every + 180, 0
    with ThreadPoolExecutor(1) as pool:
        while turn + every <= end or waiting:
            time.sleep(every / 10)
            if time.time() < end:
                fleet.restart(host)
                host = (host + 1) % HOSTS
            if time.time() >= due and turn + every <= end:
                for runner in runners:
                    given = fleet, fleet.root / runner, turn, turn + every, runner
                    waiting.append((runner, turn, pool.submit(judge, *given)))
                turn, due = turn + every, due + every
            for one in [one for one in waiting if one[2].done()]:
                waiting.remove(one)
                runner, at, future = one
                bad += report(fleet, runner, at, at + every, future.result(), codes)
    return bad, codes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--every", type=int, default=5, help="minutes of an interval")
    parser.add_argument("--runner", choices=("local", "spark", "both"), default="both")
    given = parser.parse_args()
    runners = ("local", "spark") if given.runner == "both" else (given.runner,)
    every = 60 * given.every
    first = -(-int(time.time() + 10) // every) * every
    end = first + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="fleet-") as temporary, serve() as endpoint:
        root = Path(temporary)
        lose_at, silent_from = first + 0.35 * (end - first), first + 0.65 * (end - first)
        fleet = Fleet(root, Bucket(endpoint), end, lose_at, silent_from)
        try:
            bad, codes = watch(fleet, first, every, end, runners)
        finally:
            fleet.close()
        missed = len(fleet.lost()) != LOST
        print(f"{dict(codes)}: {bad} verdicts are wrong; {len(fleet.lost())} events were lost", flush=True)
    return int(bool(bad or missed))


def report(
    fleet: Fleet, runner: str, since: int, until: int, verdict: dict[str, Any], codes: Counter[int]
) -> int:
    codes[verdict["exit_code"]] += 1
    wrong = check(fleet, verdict, since, until)
    at = time.strftime("%H:%M", time.gmtime(since))
    print(f"{at} {runner}: {verdict['exit_code']}: {verdict['sentence'][:300]}", flush=True)
    for one in wrong:
        print(f"    WRONG: {one}", flush=True)
        for problem in verdict.get("problems", [])[:5]:
            print(f"        {problem[:250]}", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
