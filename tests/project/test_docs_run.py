"""What README and docs tell users to type works as it is written there.

Commands and samples are taken from the pages (`tests.project.pages`). They run in an `IsolatedMachine`, where
127.0.0.1:5044 is free, and names such as logs.example.org are this machine. `INSTEAD` has those that cannot
run here, with the reason.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logclient import cli
from logclient.cli.parser import make_parser
from logclient.errors import ExitCode
from logclient.files.capture import CaptureReader
from logclient.testing.lumberjack import Collector
from tests import support
from tests.project.isolated_machine import IsolatedMachine, Server, Unavailable, end
from tests.project.pages import FOUND, Text
from tests.support import ROOT, clean_environment, logux_server
from tests.support.documents import dotted
from tests.support.patience import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.tree]

NAMES = (
    *("a", "b", "logs.example.org", "logjam.example.net", "logjam-1.example.net", "logjam-2.example.net"),
    *("device", "device.example.net", "broker"),
)

INSTEAD = {
    "pip install .": "compiles everything: `make wheels` installs what it has built outside the tree",
    "logclient verify --ledger run/ledger --kafka broker:9092/events --out run/verdict": ""
    "needs a broker: tests/verify/test_verify_records.py::test_command_starts_a_session_with_the_connector",
    "logclient verify --local --ledger run/ledger --table ids.parquet --columns id=id --match id"
    " --out run/verdict": ""
    "needs a store: tests/verify/test_verify_arrived.py::test_opensearch_is_judged_by_id",
    "spark-submit --master spark://head:7077 --conf spark.executor.memory=2g verify_run.py": ""
    "needs a cluster: tests/verify/test_verify_session.py::test_settings_of_spark_submit_win",
    "logclient verify --ledger L --capture C --master spark://head:7077": ""
    "needs a cluster: tests/verify/test_verify_cluster.py::test_workers_must_see_the_evidence",
    "python -m pip install --target packages . pyarrow numpy": ""
    "needs an index: `make wheels` installs what it has built outside the tree",
    "spark-submit --master spark://head:7077 --archives packages.tar.gz#packages"
    " --conf spark.executorEnv.PYTHONPATH=packages verify_run.py": ""
    "needs a cluster: tests/verify/test_verify_machines.py::"
    "test_lost_machine_and_speculation_change_no_verdict",
    "spark-submit --class org.apache.spark.sql.connect.service.SparkConnectServer"
    " --master spark://head:7077 spark-internal": ""
    "needs a cluster: tests/verify/test_verify_machines.py::"
    "test_lost_machine_and_speculation_change_no_verdict",
    "spark-submit --master yarn --deploy-mode client --archives packages.tar.gz#packages"
    " --conf spark.executorEnv.PYTHONPATH=packages verify_run.py": ""
    "needs YARN, and the page says that nobody tried: on another cluster it is"
    " tests/verify/test_verify_session.py::test_settings_of_spark_submit_win",
    "spark-submit --master k8s://https://api:6443 --deploy-mode cluster"
    " --conf spark.kubernetes.container.image=registry/spark-logclient verify_run.py": ""
    "needs Kubernetes, and the page says that nobody tried: on another cluster it is"
    " tests/verify/test_verify_session.py::test_settings_of_spark_submit_win",
    "logclient check --logging shop.settings:configure": ""
    "needs a program: tests/cli/test_cli_loggers.py::test_a_console_handler_makes_all_loggers_slow",
    "logclient run gunicorn shop:app": ""
    "needs a program: tests/run/test_run_servers.py::test_records_of_requests_arrive_with_one_id",
    "logclient run python nightly.py": ""
    "needs a program: tests/run/test_run_programs.py::test_a_program_that_configures_nothing",
    "logclient verify --ledger evidence --capture evidence --since 2026-05-01T12:00:00Z"
    " --until 2026-05-01T13:00:00Z": ""
    "needs evidence of that hour: tests/verify/test_verify_selection.py::"
    "test_only_events_of_the_time_are_judged",
    "logclient verify --local --ledger run/ledger --capture run/capture --append run/hours"
    " --since 2026-05-01T12:00:00Z --until 2026-05-01T14:00:00Z": ""
    "needs evidence of these hours: tests/verify/test_verify_hourly.py::test_command_prints_each_hour",
    "logclient report run/hours --out hours.html": ""
    "needs such a table: tests/verify/test_report_hours.py::test_command_replaces_the_page",
    "python -m bench verify-producers --events 100M": ""
    "takes minutes: tests/project/test_bench.py::test_the_generator_of_row_verify_knows_the_verdict",
    "logclient verify --ledger s3://bucket/run --capture s3://bucket/run --out run/verdict": ""
    "needs a bucket: tests/verify/test_verify_storage.py::test_command_runs_in_a_bucket",
    "logclient verify --ledger 'hosts/*/ledger' --capture 'hosts/*/capture' --out run/verdict": ""
    "needs folders of hosts: tests/verify/test_verify_storage.py::test_folders_of_two_hosts_are_merged",
    "logclient verify --ledger s3://bucket/ledger --capture s3://bucket/capture"
    " --out s3://bucket/verdict --master spark://head:7077": ""
    "needs a cluster: tests/verify/test_verify_machines.py::test_workers_share_nothing_but_a_bucket",
    "logclient verify --ledger /shared/ledger --capture /shared/capture --out verdict"
    " --master spark://head:7077 --conf spark.archives=packages.tar.gz#packages"
    " --conf spark.executorEnv.PYTHONPATH=packages --conf spark.pyspark.python=python3.11": ""
    "needs a cluster: tests/verify/test_verify_machines.py::test_workers_share_nothing_but_a_bucket",
    'logclient verify --ledger /shared/ledger --capture /shared/capture --master "sc://head:15002"': ""
    "needs a server: tests/verify/test_verify_connect.py::test_command_line_connects_by_the_master",
    "python -m tests.mutants.random_ones --seed 1 --count 100 --resume build/mutants.jsonl": ""
    "runs the tests a hundred times: tests/project/test_docs.py::test_random_mutants_are_valid_programs",
}
"""Commands that cannot run here, with the reason, and what is run in place of them."""

SERVERS = {
    "logclient stat --settings plog://logs.example.org:23456": ["plog://127.0.0.1:23456"],
    "logclient check lumberjack://a:5044,b:5044": ["lumberjack://127.0.0.1:5044"],
    "logclient check logjam:///shop-production": ["logjam://127.0.0.1:9604"],
    "logclient send lumberjack://127.0.0.1:5044 lost.jsonl --format fallback": [
        "lumberjack://127.0.0.1:5044"
    ],
    "logclient collect logjam+sub://device:9606 --capture run/capture": [
        "logjam://127.0.0.1:9604?publish=9606"
    ],
}
"""What must listen while a command runs, where its page does not say how to start it."""

STORIES = ("README.md", "docs/tutorial/first-steps.md", "docs/tutorial/prove-it.md")
"""Pages whose commands and samples build on one another: each page, or both of the tutorial, in a row."""

SPARK = "logclient verify"  # in the Spark session of all tests, as a JVM takes its time

COMMANDS = [
    text
    for text in dict.fromkeys(FOUND.commands)
    if text.page not in STORIES
    and text.text not in INSTEAD
    and not text.text.startswith(("make ", "pip ", SPARK))
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsolatedMachine]:
    from tests.support.tls import Authority

    folder = tmp_path_factory.mktemp("machine")
    authority = Authority(folder / "authority")
    mine = authority.issue("mine", "127.0.0.1", *NAMES)
    logs = folder / "etc" / "logs"
    logs.mkdir(parents=True)
    for name, source in {"ca.pem": authority.ca, "me.pem": mine, "me.key": mine}.items():
        shutil.copy(source, logs / name)
    [exported] = re.findall(
        r"^    export (\w+)=(\S+)$", (ROOT / "docs" / "logjam.md").read_text(), re.MULTILINE
    )
    variables = {"SSL_CERT_FILE": authority.ca, "LOGS_TOKEN": "secret", "LOGS_KEY_PASSWORD": "none"}
    variables.update([exported])
    try:
        machine = IsolatedMachine(folder, NAMES, variables)
    except Unavailable as error:
        pytest.skip(f"no namespaces here: {error}")
    with machine:
        yield machine


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the files that commands and samples name."""
    folder = tmp_path / "here"
    (folder / "docs").mkdir(parents=True)
    (folder / "numbers.txt").write_text("".join(f"{n}\n" for n in range(1, 1001)))
    (folder / "lost.jsonl").write_text('{"status":"failed","reason":"closed","event":{"message":"paid"}}\n')
    return folder


def test_lists_name_only_existing_commands() -> None:
    commands = {text.text for text in FOUND.commands}
    assert set(INSTEAD) <= commands
    assert set(SERVERS) <= commands


@pytest.mark.parametrize("command", INSTEAD)
def test_replacements_of_commands_exist(command: str) -> None:
    reason = INSTEAD[command]
    if made := re.search(r"`make (\w+)`", reason):
        assert dry_run(f"make {made[1]}")
    else:
        path, name = re.findall(r"(tests/[\w/]+\.py)::(\w+)", reason)[0]
        assert f"def {name}(" in (ROOT / path).read_text()


# -- names of commands, and how they are used


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setenv("COLUMNS", "10000")  # lines are not folded
        cli.main([*command.split()[1:], "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", sorted({text.text for text in FOUND.names if "make" not in text.text}))
def test_named_commands_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith("logclient"):
        assert help_of(name, capsys)
    elif name.startswith("python -m "):
        module = ROOT.joinpath(*name.removeprefix("python -m ").split("."))
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists()
    else:
        assert name in ("pip", "pip install")


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@pytest.mark.parametrize("usage", dict.fromkeys(FOUND.usages), ids=str)
def test_usages_name_the_existing_options(usage: Text, capsys: pytest.CaptureFixture[str]) -> None:
    words = usage.text.split()
    if words[0] == "python":
        assert (ROOT / (words[2].replace(".", "/") + ".py")).exists()
        return
    command = re.match(r"logclient(?: [a-z]+)+(?= |$)", usage.text)
    assert command
    there = set(OPTION.findall(help_of(command[0], capsys))) - {"--help"}
    named = set(OPTION.findall(usage.text))
    if usage.page == "docs/commands.md" and len(words) > 3:
        assert named == there
    else:
        assert named <= there


HEADINGS = re.findall(r"^## (\w+)$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)


def test_every_command_is_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    there = re.findall(r"^    (\w+)", help_of("logclient", capsys).partition("commands:")[2], re.MULTILINE)
    assert sorted(HEADINGS) == sorted(there)
    assert all(any(usage.text.startswith(f"logclient {name} ") for usage in FOUND.usages) for name in there)


@pytest.mark.parametrize("command", HEADINGS)
def test_help_examples_can_be_parsed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The README runs most of them."""
    text = help_of(f"logclient {command}", capsys).partition("Example: ")[2]
    example = shlex.split(text.partition(" > ")[0])
    assert example[:2] == ["logclient", command]
    assert make_parser().parse_args(example[1:]).run


# -- make


def dry_run(command: str) -> str:
    """What make would do."""
    words = shlex.split(command)
    environment = {k: v for k, v in clean_environment().items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        [words[0], "--dry-run", *words[1:]],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_commands() -> list[str]:
    texts = [*FOUND.commands, *FOUND.names]
    return list(dict.fromkeys(text.text for text in texts if text.text.startswith("make ")))


@pytest.mark.parametrize("command", make_commands())
def test_make_has_the_named_targets_and_variables(command: str) -> None:
    recipe = dry_run(command)
    _, _, *given = shlex.split(command)
    programs = re.findall(r"-m (?:bench|fuzz|t\w+\.\w+)\b|tools/\w+\.py", recipe)
    for variable in given:
        name, _, value = variable.partition("=")
        if name not in ("ROW", "KAFKA"):  # the one goes by the environment, the other is a switch
            assert value in recipe
        if name in ("ARGS", "ROW"):
            done = subprocess.run(
                [sys.executable, *programs[-1].split(), "--help"],
                cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True,
                env=clean_environment(COLUMNS="10000"),
            )  # fmt: skip
            for word in re.findall(r"(?:^|(?<=[ ,]))(?:--)?[a-z][a-z_-]*(?=$|[ ,=])", value):
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", done.stdout), word
    assert "KAFKA=1" not in given or "kafka" in recipe


# -- commands


def listening(machine: IsolatedMachine, command: str, folder: Path) -> ExitStack:
    """The servers that a command needs."""
    running = ExitStack()
    for n, url in enumerate(SERVERS.get(command, [])):
        serve = f"logclient collect {url} --capture {folder.parent / 'captures'}/{n}"
        running.enter_context(Server(machine, serve, folder))
    return running


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_each_command_of_the_pages_runs(command: Text, machine: IsolatedMachine, here: Path) -> None:
    home = Path(machine.environment["HOME"])
    for name in (".zfunc", ".config/fish/completions"):
        (home / name).mkdir(parents=True, exist_ok=True)
    for name, source in {"server.pem": "me.pem", "server.key": "me.key", "clients.pem": "ca.pem"}.items():
        shutil.copy(f"{home.parent}/etc/logs/{source}", here / name)
    if command.text.startswith("logclient collect "):
        with listening(machine, command.text, here), Server(machine, command.text, here) as server:
            assert server.listens["url"]
            if "logjam+sub:" in command.text:  # its device must answer before it ends
                wait_until(lambda: any(any(CaptureReader(path)) for path in here.rglob("*.cap")))
        assert list(here.rglob("*.cap"))
        return
    with listening(machine, command.text, here):
        said = machine.run(command.text, here)
    written = re.search(r" > (\S+)$", command.text)
    if written:
        file = Path(written[1].replace("~", str(home)))
        assert (here / file).read_text().strip()
        if file.name == "options.md":
            assert (here / file).read_text() == (ROOT / "docs" / "options.md").read_text()
    else:
        assert said.strip() or command.text.startswith("source ")


def test_pip_commands_install_known_packages(machine: IsolatedMachine, tmp_path: Path) -> None:
    """All of it is installed in the environment of the tests, so pip fetches nothing."""
    commands = {text.text for text in FOUND.commands if text.text.startswith("pip ")} - set(INSTEAD)
    assert len(commands) > 7
    wanted = [word for command in sorted(commands) for word in shlex.split(command)[2:]]
    wanted = [word.replace(".[", "logclient[") for word in wanted if word != "."]
    said = machine.run(["pip", "install", "--disable-pip-version-check", *wanted], tmp_path)
    assert "Would" not in said and "Successfully" not in said
    assert "does not provide the extra" not in said


def test_the_readme_works_in_its_order(
    machine: IsolatedMachine,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """As one who reads it types it. The verdict is about all that was sent before it."""
    serve, *rest = commands_of("README.md")
    samples = [text for text in FOUND.samples if text.page == "README.md"]
    with Server(machine, serve, here):
        for sample in samples:
            if sample.text.startswith('"'):  # of a dictConfig
                continue
            said = machine.run([sys.executable, "-c", f"import logclient\n{sample.text}"], here)
        assert "status='acked'" in said and "0 left;" in said
        for command in rest:
            if command.startswith(SPARK):
                shutil.copytree(here / "run", here / "before" / "run")
                shutil.copytree(here / "captured", here / "before" / "captured")
                verdict = command
            else:
                machine.run(command, here)
        said = machine.run("logclient decode captured/", here)
        assert all(text in said for text in ("paid", "an event of my own", "and one to follow"))
    request.getfixturevalue("spark")
    monkeypatch.chdir(here / "before")
    assert cli.main(shlex.split(verdict)[1:]) == ExitCode.OK
    assert "3 of 3 events arrived intact" in capsys.readouterr().out


def commands_of(page: str) -> list[str]:
    """Return the commands of a page that are not of make or pip, in their order."""
    commands = [text.text for text in FOUND.commands if text.page == page]
    return [command for command in commands if not command.startswith(("make ", "pip "))]


def test_the_tutorial_works_in_its_order(
    machine: IsolatedMachine,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    _, first_steps, prove_it = STORIES
    serve, *rest = commands_of(first_steps)
    records, events = samples(first_steps)
    request.getfixturevalue("spark")
    monkeypatch.chdir(here)
    with ExitStack() as server:
        server.enter_context(Server(machine, serve, here))
        machine.run([sys.executable, "-c", records.text], here)
        said = machine.run([sys.executable, "-c", events.text], here)
        assert "status='acked'" in said and "0 events left;" in said
        for command in rest:
            said = machine.run(command, here)
        for text in (
            "user ada logged in",
            "disk is 91 % full",
            "order placed",
            "order paid",
            '"message":"1000"',
        ):
            assert text in said
        said = ""
        # Each command of the next page, and each time that it says to stop the server.
        steps = re.findall(r"^    (logclient .+)$|\b(Stop the server)\b", (ROOT / prove_it).read_text(), re.M)
        assert [bool(stops) for _, stops in steps] == [True, False, False, True, False]
        for command, stops in steps:
            if stops:
                server.close()
            elif command.startswith(SPARK):
                code = cli.main(shlex.split(command)[1:])
                said += f"exit code {int(code)}: {capsys.readouterr().out}"
            else:
                server.enter_context(Server(machine, command, here))
                for sample in records, events:
                    lied_to = sample.text.replace('"run/"', '"lied-to/"')
                    machine.run([sys.executable, "-c", lied_to], here)
    truth, lies = re.split(r"(?=exit code [0-9])", said)[1:]
    assert (
        truth.startswith(f"exit code {int(ExitCode.OK)}") and "1,004 of 1,004 events arrived intact" in truth
    )
    assert lies.startswith(f"exit code {int(ExitCode.BROKEN)}") and " lost, of 4 events." in lies
    for folder in "verdict", "lies":
        assert {"verdict.json", "report.html"} <= {path.name for path in (here / folder).iterdir()}


def verdicts() -> list[Text]:
    asked = [
        text
        for text in dict.fromkeys(FOUND.commands)
        if text.text.startswith(SPARK) and not text.page.startswith("docs/tutorial/")
    ]
    return [text for text in asked if text.text not in INSTEAD]


@pytest.mark.spark
@pytest.mark.parametrize(
    "command", [x for x in verdicts() if "run/capture" in x.text or "--local" in x.text], ids=str
)
def test_each_verify_command_runs(
    command: Text, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds run/ledger and run/capture, or what the README has made. (Spark looks for a table in the
    folder where the session was begun.)"""
    scene_of(command, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command.text)[1:]) == ExitCode.OK


@pytest.mark.long  # a JVM for each
@pytest.mark.spark
@pytest.mark.parametrize("command", verdicts(), ids=str)
def test_each_verify_command_runs_in_its_own_process(
    command: Text, machine: IsolatedMachine, tmp_path: Path
) -> None:
    scene_of(command, tmp_path)
    assert "20 of 20 events arrived intact" in machine.run(command.text, tmp_path)


def scene_of(command: Text, folder: Path) -> None:
    """Make the ledger, and the capture or table, that a command names, of 20 events."""
    pyarrow, parquet = support.need("pyarrow"), support.need("pyarrow.parquet")
    from tests.support.verify_scene import Scene

    (folder / "run").mkdir()
    scene = Scene(folder / "run").write_ledger().write_capture()
    rows = pyarrow.table({"line": list(scene.bodies.values())})
    parquet.write_table(rows, folder / "events.parquet")
    if command.page == "README.md":
        scene.ledger.rename(folder / "ledger")
        scene.capture.rename(folder / "captured")
        (folder / "run").rmdir()
        (folder / "ledger").rename(folder / "run")


# -- samples of programs


class Program(NamedTuple):
    """One that a docstring says how to run, and what makes it log."""

    ask: str  #: a program in Python, beside it
    says: str  #: in the capture
    ready: str = ""  #: what it prints when it knows how to end, if it answers before that


GET = """
import time, urllib.request
for _ in range(200):
    try:
        print(urllib.request.urlopen({url!r}, timeout=10).read())
        break
    except OSError:
        time.sleep(0.1)
else:
    raise SystemExit("it does not answer")
"""
PROGRAMS = {
    "celery": Program("import tasks; print(tasks.price.delay(7).get(timeout=30))", "order 7 priced"),
    "fastapi": Program(GET.format(url="http://127.0.0.1:8001/items/7"), "item 7 added up"),
    "flask": Program(GET.format(url="http://127.0.0.1:8000/orders/7"), "order 7 found"),
    "gunicorn": Program(GET.format(url="http://127.0.0.1:8000/order/7"), "order 7 priced"),
    "uwsgi": Program(
        GET.format(url="http://127.0.0.1:8000/order/7"), "order 7 priced", "gracefully_kill_them_all"
    ),
}
EXAMPLES = ROOT / "docs" / "examples"


def documented_command(example: str) -> str:
    """Return the command in the docstring of a sample."""
    found = [
        command
        for file in sorted((EXAMPLES / example).glob("*.py"))
        for command in re.findall(r"^ *(LOG_URL=.+)$", file.read_text(), re.MULTILINE)
    ]
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("example", PROGRAMS)
def test_each_example_documents_its_command(example: str) -> None:
    assert documented_command(example).startswith("LOG_URL=")


def test_every_example_is_run() -> None:
    """multiprocessing takes arguments, so tests/lifecycle/test_prefork_multiprocessing.py runs it.

    dataframes is a notebook: see `test_the_notebook_runs`. protocol is a package:
    tests/project/test_fifth_protocol.py installs it.
    """
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*PROGRAMS, "dataframes", "multiprocessing", "protocol"}


@pytest.mark.parametrize(
    "example",
    [pytest.param(name, marks=[pytest.mark.long] if name == "celery" else []) for name in PROGRAMS],
)
def test_each_example_delivers(example: str, machine: IsolatedMachine, here: Path) -> None:
    folder = here / example
    shutil.copytree(EXAMPLES / example, folder)
    command = documented_command(example)
    url = re.sub(r"(:\d+)/.*", r"\1", command.split()[0].removeprefix("LOG_URL="))
    with Server(machine, f"logclient collect {url} --capture capture", here):
        running = machine.start(f"exec env {command}", folder)  # so that its signals reach the program itself
        try:
            if PROGRAMS[example].ready:
                assert running.stdout is not None
                assert any(PROGRAMS[example].ready in line for line in running.stdout)
            machine.run([sys.executable, "-c", PROGRAMS[example].ask], folder)
            running.terminate()
            running.communicate(timeout=2 * PATIENCE)
        finally:
            end(running)
    assert PROGRAMS[example].says in machine.run("logclient decode capture --bytes 9999", here)


FAILING_VIEW = """
import logging.config, sys
import django
from django.conf import settings
from django.test import Client
from django.urls import path
sys.stderr = sys.stdout
def fail(request):
    raise LookupError("order 7 was never paid")
urlpatterns = [path("", fail)]
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, LOGGING=LOGGING)
django.setup()
assert Client(raise_request_exception=False).get("/").status_code == 500
"""


def test_django_shows_errors_while_the_server_is_away(machine: IsolatedMachine, here: Path) -> None:
    pytest.importorskip("django")
    settings = samples("docs/web.md")[0]
    assert "LOGGING" in settings.text
    away = "import os\nos.environ['LOGCLIENT_URL'] = 'lumberjack://127.0.0.1:5044'\n"
    said = machine.run([sys.executable, "-c", away + settings.text + FAILING_VIEW], here)
    assert "LookupError: order 7 was never paid" in said and "Traceback (most recent call last)" in said


FAILING_COMMAND = """
import django
from django.conf import settings
from django.core.management import BaseCommand, execute_from_command_line, get_commands
class Command(BaseCommand):
    def handle(self, *args, **options):
        raise LookupError("order 7 was never paid")
settings.configure(LOGGING=LOGGING)
django.setup()
get_commands()["pay"] = Command()
execute_from_command_line(["manage.py", "pay"])
"""


def test_django_ships_the_exception_that_ends_a_management_command() -> None:
    pytest.importorskip("django")
    text = "".join(sample.text for sample in samples("docs/web.md")[:2]) + FAILING_COMMAND
    with Collector(keep=True) as collector:
        environment = clean_environment(LOGCLIENT_URL=collector.url)
        done = subprocess.run(
            [sys.executable, "-c", text], env=environment, capture_output=True, encoding="utf-8"
        )
        [event] = [dotted(event) for event in collector.events()]
    assert (event["log.logger"], event["error.type"]) == ("uncaught", "LookupError")
    assert done.stderr.count("LookupError: order 7 was never paid") == 1 and done.returncode == 1


@pytest.mark.parametrize("example", [*PROGRAMS, "multiprocessing"])
def test_each_example_keeps_the_console(example: str) -> None:
    text = "".join(path.read_text() for path in (EXAMPLES / example).glob("*.py"))
    assert "logging.StreamHandler" in text


# -- samples of code

RUNNER = """
import ast, asyncio, inspect, json, sys
names = {"__name__": "__main__"}
for n, text in enumerate(json.load(sys.stdin)):
    code = compile(text, ("before", "the sample", "after")[n], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.iscoroutine(found := eval(code, names)):
        asyncio.run(found)
"""
"""Run what it is told, one after the other, with the same names. ``await`` may stand outside of functions."""

DICT_CONFIG = """
import logging.config
logging.config.dictConfig({"version": 1, "root": {"level": "INFO", "handlers": ["ship"]}, %s})
logging.info("hello")
assert not logging.getLogger("").handlers[-1].client.flush(10)
"""


class Stage(NamedTuple):
    """What a sample takes for granted, and what must come of it."""

    before: str = ""
    after: str = ""
    says: str = ""  #: a sample that runs for ever is ended when it says this
    around: str = "%s"  #: code with the sample as a part of it
    pytest: bool = False  #: it is a test
    shows: bool = False  #: it prints an object with the fields of the page's JSON


DOTTED = """
def dotted(value, name=""):
    if not isinstance(value, dict) or not value:
        return {name: value}
    inner = [dotted(inner, f"{name}.{key}" if name else key) for key, inner in value.items()]
    return {key: value for one in inner for key, value in one.items()}
def events(*given):
    return [dotted(event) for event in server.events(*given)]
"""


def server(kind: str, **options: object) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    made = f"from logclient.testing.{kind} import Collector\nserver = Collector({given})\nserver.start()\n"
    return made + DOTTED


TLS = """
from logclient.testing.{kind} import Collector
from logclient.transports.tls import server_context
Collector(port={port}, tls=server_context("/etc/logs/me.pem"){more}).start()
"""
TEN = """
import threading
import logclient
def send():
{wait}    client = logclient.connect({url!r})
    for n in range(10):
        client.submit("hello").result(10)
threading.Thread(target=send).start()
"""
UNTIL_OPEN = """
    import socket, time
    deadline = time.monotonic() + 10
    while socket.socket().connect_ex(("127.0.0.1", 23456)) and time.monotonic() < deadline:
        time.sleep(0.01)
"""
PLOG = server("plog", port=23456, keep=True)
DEVICE = server("logjam", port=9604, keep=True)
QUERY = "number = 17\ndef query():\n    return []\n"

SHIPPED = server("lumberjack", port=5044, keep=True) + (
    "import json, logging, logclient\n"
    "handler = logclient.Handler('lumberjack://127.0.0.1:5044')\n"
    "logging.basicConfig(level='INFO', handlers=[handler])\n"
    "client = logclient.connect('lumberjack://127.0.0.1:5044')\n"
)

ASKED = (
    "assert not handler.client.flush(10)\n"
    "[event] = [event for event in events() if event['message'] == 'asked']\n"
    "assert (event['http.request.id'], event['url.path']) == ('r-1', '/orders')\n"
)

MOVED = "import json\n[event] = server.events(1)\nassert event['message'] == 'order 17 is late'\n"

IN_POD = (
    "import json, os\n"
    "os.environ.update(KUBERNETES_SERVICE_HOST='h', POD_NAME='shop-1',\n"
    "                  LOGCLIENT_URL='lumberjack://127.0.0.1:5044?enrich=kubernetes')\n"
)

STAGES: dict[str, list[Stage]] = {
    "README.md": [
        Stage(),
        Stage(TLS.format(kind="lumberjack", port=5044, more=""), around=DICT_CONFIG),
        Stage("import logclient\n"),
    ],
    "docs/index.md": [Stage()],
    "docs/events.md": [
        Stage(SHIPPED, "[event] = server.events(1)\nprint(json.dumps(event))", shows=True),
        Stage(
            SHIPPED,
            "handler.handle(logging.makeLogRecord({'msg': 'hello', 'levelname': 'INFO'}))\n"
            "assert server.events(1)[0]['level'] == 'INFO'\n",
        ),
        Stage(
            "",
            "to_file.handle(logging.makeLogRecord({'msg': 'hello'}))\n"
            "text = open('app.log').read()\n"
            'assert \'"short_message":"hello"\' in text and \'"_service.name":"shop"\' in text\n',
        ),
        Stage(
            SHIPPED,
            "shop = logging.getLogger('shop')\n"
            "shop.propagate = False\n"
            "shop.addHandler(handler)\n"
            "try:\n"
            "    1 / 0\n"
            "except ZeroDivisionError:\n"
            "    shop.exception('failed')\n"
            "[event] = events(1)\n"
            "assert len(event['error.fingerprint']) == 16\n",
        ),
        Stage(
            "from datetime import datetime, timezone\n" + SHIPPED,
            "client.send({'message': 'bare'})\n"
            "paid, bare = server.events(2)\n"
            "assert paid['@timestamp'] == now and bare['@timestamp'] > now[:19]\n",
        ),
        Stage(
            SHIPPED + "class TheirFormatter(logging.Formatter):\n"
            "    def format(self, record):\n"
            "        return json.dumps({'text': record.getMessage()})\n"
            "handler.setFormatter(TheirFormatter())\n"
            "logging.info('twice')\n"
            "assert handler.client.flush(20) == 0\n",
            "logging.getLogger().handlers[:] = [handler]\n"
            "logging.info('once')\n"
            "twice, once = server.events(2)\n"
            "assert json.loads(twice['message']) == {'text': 'twice'}\n"
            "assert once['text'] == 'once' and 'message' not in once\n",
        ),
    ],
    "docs/logger.md": [
        Stage(
            server("lumberjack", port=5044, keep=True),
            "[event] = server.events(1)\n"
            "assert event['message'] == 'user alice did checkout in 12 ms'\n"
            "assert logclient.Logger.why_slow('shop') in ('', 'this Python has no GIL')\n",
        ),
        Stage(
            "import logging, logclient\n"
            "logging.setLoggerClass(logclient.Logger)\n"
            "logging.getLogger().addHandler(logging.StreamHandler())\n",
            "why = logclient.Logger.why_slow('shop')\n"
            "assert why in ('StreamHandler is no logclient.Handler', 'this Python has no GIL')\n",
        ),
    ],
    "docs/operations.md": [
        Stage("import logclient\n", "assert logclient.memory_used() == 0\n"),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logclient\n",
            "assert client.close() == 0\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True)
            + "import logclient\nclient = logclient.connect('lumberjack://127.0.0.1:5044')\n",
            "client.send('changed')\n[event] = events(1)\n"
            "assert (event['release'], event['service.environment']) == ('2.4.2', 'staging')\n",
        ),
        Stage(
            server("lumberjack", port=5045, keep=True)
            + "import logclient\nclient = logclient.connect('lumberjack://127.0.0.1:5044')\n",
            "client.send('to the new server')\n[event] = events(1)\n"
            "assert old.closed and event['message'] == 'to the new server'\n",
        ),
    ],
    "docs/filters.md": [
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logging, logclient\n",
            "logging.getLogger().addHandler(handler)\n"
            "logging.error('%(a_token)s', {'a_token': 'x'}, extra={'db': {'Password': 'x'}})\n"
            "[event] = server.events(1)\n"
            "assert event['db'] == {'Password': '[redacted]'} and event['message'] == '[redacted]'\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logclient\n",
            "[event] = server.events(1)\nassert event['message'] == 'paid with [redacted]'\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logging, logclient\n",
            "logging.getLogger().addHandler(handler)\n"
            "logging.error('ok', extra={'url.path': '/health'})\nlogging.error('paid')\n"
            "[event] = server.events(1)\n"
            "assert (event['message'], event['team']) == ('paid', 'payments')\n"
            "assert handler.client.stats().filtered == {'before_send': 1}\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logging, logclient\n",
            "logging.getLogger().addHandler(handler)\n"
            "for n in range(3):\n    logging.error('paid')\n"
            "[event] = server.events(1)\n"
            "assert handler.client.stats().filtered == {'dedupe': 2}\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True)
            + "import logging, logclient\n"
            + "from logclient.integrations.request_fields import RequestFields\n",
            "logging.getLogger('shop').addHandler(handler)\n"
            "fields = RequestFields('GET', '/', None, None, None)\n"
            "logging.getLogger('shop').debug('low')\n"
            "logging.getLogger('shop').error('high')\n"
            "assert [event['message'] for event in events(2)] == ['low', 'high']\n",
        ),
    ],
    "docs/fields.md": [
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logging, logclient\n",
            "logging.getLogger().addHandler(handler)\nlogging.error('hello')\n[event] = events(1)\n"
            "assert event['service.name'] == 'shop' and event['host.name'] and event['tags'][0] == 'eu'\n",
        ),
        Stage(SHIPPED, "[event] = server.events(1)\nassert event['request_id'] == '7c9e'\n"),
    ],
    "docs/other-loggers.md": [
        Stage(
            server("lumberjack", port=5044, keep=True),
            "logger.complete()\n[event] = server.events(1)\n"
            "assert (event['message'], event['order']) == ('late by 3 days', 17)\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "[event] = events(1)\n"
            "assert (event['message'], event['days'], event['log.logger']) == ('late', 3, 'orders')\n"
            "import contextlib, io\n"
            "with contextlib.redirect_stderr(io.StringIO()) as said:\n"
            "    try:\n"
            "        raise LookupError('order 7 was never paid')\n"
            "    except LookupError:\n"
            "        structlog.get_logger('orders').exception('oops')\n"
            "assert said.getvalue().rstrip().endswith('LookupError: order 7 was never paid')\n"
            "assert events(2)[1]['error.type'] == 'LookupError'\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import contextlib, io, sys\n"
            "said = contextlib.redirect_stderr(io.StringIO())\n"
            "said.__enter__()\n",
            "try:\n"
            "    raise LookupError('order 7 was never paid')\n"
            "except LookupError:\n"
            "    structlog.get_logger('orders').exception('oops', days=3)\n"
            "text = sys.stderr.getvalue()\n"
            "said.__exit__(None, None, None)\n"
            "assert 'error' in text and text.rstrip().endswith('LookupError: order 7 was never paid')\n"
            "[event] = events(1)\n"
            "assert (event['message'], event['days'], event['error.type']) == ('oops', 3, 'LookupError')\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "[event] = server.events(1)\n"
            "assert (event['message'], event['order']) == ('late by 3 days', 17)\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True)
            + "import picologging, logclient\n"
            + "logger = picologging.getLogger('orders')\n"
            + "logger.addHandler(logclient.Handler('lumberjack://127.0.0.1:5044'))\n",
            "logger.warning('hello')\nassert server.events(1)[0]['tenant'] == 'acme'\n",
        ),
    ],
    "docs/web.md": [
        Stage(
            server("lumberjack", port=5044, keep=True)
            + "import os\nos.environ['LOGCLIENT_URL'] = 'lumberjack://127.0.0.1:5044'\n",
            "import logging.config\n"
            "logging.config.dictConfig(LOGGING)\n"
            "logging.getLogger('django.request').info('hello')\n"
            "assert server.events(1)[0]['message'] == 'hello'\n",
        ),
        Stage(
            "import signal, sys\n",
            "assert callable(signal.getsignal(signal.SIGTERM))\n"
            "assert sys.excepthook is not sys.__excepthook__\n",
        ),
        Stage(
            SHIPPED,
            "import django\n"
            "from django.conf import settings\n"
            "from django.http import HttpResponse\n"
            "from django.urls import path\n"
            "def orders(request):\n"
            "    logging.info('asked')\n"
            "    return HttpResponse('none')\n"
            "settings.configure(ALLOWED_HOSTS=['*'], LOGGING_CONFIG=None, MIDDLEWARE=MIDDLEWARE)\n"
            "django.setup()\n"
            "settings.ROOT_URLCONF = (path('orders', orders),)\n"
            "from django.test import Client\n"
            "assert Client().get('/orders', headers={'X-Request-Id': 'r-1'})['X-Request-Id'] == 'r-1'\n"
            + ASKED,
        ),
        Stage(
            SHIPPED,
            "@app.get('/orders')\n"
            "def orders():\n"
            "    logging.info('asked')\n"
            "    return 'none'\n"
            "with app.test_client().get('/orders', headers={'X-Request-Id': 'r-1'}) as answer:\n"
            "    assert answer.headers['X-Request-Id'] == 'r-1'\n" + ASKED,
        ),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import json\n",
            "@app.get('/orders')\n"
            "def orders():\n"
            "    logging.info('asked')\n"
            "    return []\n"
            "async def ask():\n"
            "    said = []\n"
            "    scope = {'type': 'http', 'asgi': {'version': '3.0'}, 'http_version': '1.1',\n"
            "             'method': 'GET', 'scheme': 'http', 'path': '/orders', 'query_string': b'',\n"
            "             'root_path': '', 'headers': [(b'x-request-id', b'r-1')],\n"
            "             'client': ('127.0.0.1', 5), 'server': None}\n"
            "    async def receive():\n"
            "        return {'type': 'http.request', 'body': b'', 'more_body': False}\n"
            "    async def send(message):\n"
            "        said.append(message)\n"
            "    await app(scope, receive, send)\n"
            "    assert (b'x-request-id', b'r-1') in said[0]['headers']\n"
            "asyncio.run(ask())\n" + ASKED + "async def live():\n"
            "    async with lifespan(None):\n"
            "        logging.getLogger('uvicorn.access').warning('late')\n"
            "    logging.getLogger('uvicorn').info('Finished server process')\n"
            "asyncio.run(live())\n"
            "assert server.events()[-1]['message'] == 'late' and handler.client.closed\n"
            "assert handler.client.stats().refused == 0\n",
        ),
        Stage(
            SHIPPED + "import asyncio\n",
            "async def orders(request):\n"
            "    logging.info('asked')\n"
            "    return web.Response(text='none')\n"
            "app.add_routes([web.get('/orders', orders)])\n"
            "async def ask():\n"
            "    from aiohttp.test_utils import TestClient, TestServer\n"
            "    async with TestClient(TestServer(app)) as client:\n"
            "        async with client.get('/orders', headers={'X-Request-Id': 'r-1'}) as answer:\n"
            "            assert answer.headers['X-Request-Id'] == 'r-1'\n"
            "asyncio.run(ask())\n" + ASKED,
        ),
        Stage(
            SHIPPED + "import threading, urllib.error, urllib.request, uvicorn\n"
            "async def app(scope, receive, send):\n"
            "    raise LookupError\n"
            "web = uvicorn.Server(uvicorn.Config(app, port=8000, lifespan='off'))\n",
            "threading.Thread(target=web.run, daemon=True).start()\n"
            "while not web.started:\n"
            "    threading.Event().wait(0.01)\n"
            "try:\n"
            "    urllib.request.urlopen('http://127.0.0.1:8000/orders')\n"
            "except urllib.error.HTTPError as error:\n"
            "    assert error.code == 500\n"
            "assert handler.client.flush(20) == 0\n"
            "found = [event['message'] for event in server.events()]\n"
            "assert len([text for text in found if '/orders' in text]) == 1, found\n"
            "assert found.count('Exception in ASGI application\\n') == 1, found\n",
        ),
        Stage(
            SHIPPED + "import asyncio, contextlib\n",
            "async def live():\n"
            "    async with lifespan(None):\n"
            "        logging.info('hello')\n"
            "    logging.info('Finished server process')\n"
            "asyncio.run(live())\n"
            "assert (handler.client.stats().acked, handler.client.stats().refused) == (1, 0)\n",
        ),
        Stage(
            SHIPPED,
            "@app.task(name='shop.confirm')\n"
            "def confirm():\n"
            "    logging.info('asked')\n"
            "app.conf.task_always_eager = True\n"
            "with logclient.bind({'http.request.id': 'r-1', 'url.path': '/orders'}):\n"
            "    confirm.delay()\n" + ASKED + "assert event['celery.task.name'] == 'shop.confirm'\n",
        ),
    ],
    "docs/coming-from.md": [
        Stage(
            server("lumberjack", port=5044, keep=True),
            MOVED
            + "assert (event['customer'], event['team'], event['tags']) == ('ann', 'payments', ['eu'])\n",
        ),
        *[
            Stage(
                server("lumberjack", port=5044, keep=True), MOVED + "assert '\"shop\"' in json.dumps(event)\n"
            )
        ]
        * 2,
        Stage(
            server("lumberjack", port=5044, keep=True),
            MOVED + "assert '\"production\"' in json.dumps(event)\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "from opentelemetry.sdk.trace import TracerProvider\n"
            + MOVED
            + "with TracerProvider().get_tracer('shop').start_as_current_span('pay') as span:\n"
            "    logging.warning('in a span')\n"
            "assert f'{span.context.trace_id:032x}' in json.dumps(server.events(2)[1])\n",
        ),
    ],
    "docs/elastic.md": [
        Stage(
            TLS.format(kind="lumberjack", port=5044, more=""),
            "assert handler.client.flush(10) == 0 and handler.client.stats().acked == 1\n",
        ),
        Stage(after="assert export_ids"),
    ],
    "docs/kubernetes.md": [
        Stage(
            server("lumberjack", port=5044, keep=True) + IN_POD,
            "logging.info('hello')\n"
            "[event] = server.events(1)\n"
            "assert event['message'] == 'hello' and '\"shop-1\"' in json.dumps(event)\n",
        ),
        Stage(after="import signal\nassert callable(signal.getsignal(signal.SIGTERM))\n"),
        Stage(IN_POD, "assert not stats.dropped\n"),
    ],
    "docs/uncaught.md": [
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logging, logclient, threading\n",
            "def fail():\n"
            "    raise LookupError\n"
            "thread = threading.Thread(target=fail)\n"
            "thread.start()\n"
            "thread.join()\n"
            "[event] = events(1)\n"
            "assert (event['log.logger'], event['error.type']) == ('uncaught', 'LookupError')\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True) + "import logging, logclient, threading\n"
            "from loguru import logger\n"
            "from logclient.integrations.loguru import Sink\n",
            "thread = threading.Thread(target=lambda: 1 / 0)\n"
            "thread.start()\n"
            "thread.join()\n"
            "[event] = events(1)\n"
            "assert (event['log.logger'], event['error.type']) == ('uncaught', 'ZeroDivisionError')\n",
        ),
        Stage(
            SHIPPED + "import warnings\n",
            "[event] = events(1)\n"
            "assert (event['error.type'], event['log.origin.file.name']) == "
            "('DeprecationWarning', 'the sample')\n",
        ),
    ],
    "docs/metrics.md": [
        Stage(
            after="import logclient, urllib.request\n"
            "logclient.connect('lumberjack://127.0.0.1:9').send('hello')\n"
            "text = urllib.request.urlopen('http://127.0.0.1:9000/metrics').read().decode()\n"
            "assert 'logclient_events_sent_total{url=\"lumberjack://127.0.0.1:9\"} 1.0' in text\n",
        ),
    ],
    "docs/opentelemetry.md": [
        Stage(
            server("lumberjack", port=5044, keep=True),
            "[event] = events(1)\n"
            "assert (event['message'], event['service.name']) == ('card refused', 'shop')\n"
            "assert (len(event['trace.id']), len(event['span.id'])) == (32, 16)\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "provider.force_flush()\n"
            "[event] = events(1)\n"
            "assert (event['message'], event['log.level'], event['order']) == ('card refused', 'warn', 17)\n",
        ),
        Stage(
            after="import logclient\n"
            "logclient.connect('lumberjack://127.0.0.1:9').send('hello')\n"
            "[found] = reader.get_metrics_data().resource_metrics\n"
            "names = {metric.name: metric.data for metric in found.scope_metrics[0].metrics}\n"
            "assert names['logclient.events.sent'].data_points[0].value == 1\n",
        ),
    ],
    "docs/logjam.md": [
        Stage(
            DEVICE,
            "@app.get('/orders')\n"
            "def orders():\n"
            "    logging.info('asked')\n"
            "    return 'none'\n"
            "with app.test_client().get('/orders') as answer:\n"
            "    assert answer.text == 'none'\n"
            "assert not client.flush(10)\n"
            "assert server.events(1)[0]['lines'][0][2] == 'asked'\n",
        ),
        Stage(
            DEVICE,
            "@api.get('/items')\n"
            "async def items():\n"
            "    logging.info('asked')\n"
            "    return []\n"
            "async def ask():\n"
            "    said = []\n"
            "    scope = {'type': 'http', 'asgi': {'version': '3.0'}, 'http_version': '1.1',\n"
            "             'method': 'GET', 'scheme': 'http', 'path': '/items', 'query_string': b'',\n"
            "             'root_path': '', 'headers': [], 'client': None, 'server': None}\n"
            "    async def receive():\n"
            "        return {'type': 'http.request', 'body': b'', 'more_body': False}\n"
            "    async def send(message):\n"
            "        said.append(message)\n"
            "    await app(scope, receive, send)\n"
            "    assert said[0]['status'] == 200\n"
            "asyncio.run(ask())\n"
            "assert not client.flush(10)\n"
            "assert server.events(1)[0]['lines'][0][2] == 'asked'\n",
        ),
        Stage(
            DEVICE + "import types, urllib.request\n"
            "import logclient\n"
            "client = logclient.connect('logjam://127.0.0.1:9604/shop-production')\n"
            "asked = []\n"
            "requests = types.SimpleNamespace(get=lambda url, headers: asked.append(headers))\n"
            "url = 'http://127.0.0.1:1'\n"
            "here = client.request('A#b')\n"
            "here.__enter__()\n",
            "assert asked[0]['X-Logjam-Caller-Id'].startswith('shop-production-')",
        ),
        Stage(DEVICE + QUERY, "assert not client.flush(10)\nassert server.events(1)[0]['customer'] == 17"),
        Stage(DEVICE + "import logclient", "assert client.submit('hello').result(10).ok"),
    ],
    "docs/logux.md": [
        Stage(TLS.format(kind="logux", port=31337, more=', token="secret"')),
        Stage(
            server("logux", port=31337) + "import logclient\n"
            "see_everything = print\nclient = logclient.connect('logux://127.0.0.1:31337')\n"
        ),
        Stage(
            server("logux", port=31337) + "import logclient, threading\n"
            "show = print\n"
            "def push():\n"
            "    while True:\n"
            "        server.push({'type': 'news/add', 'text': 'it rains'})\n"
            "        threading.Event().wait(0.05)\n"
            "threading.Thread(target=push, daemon=True).start()\n",
            says="it rains",
        ),
        Stage(pytest=True),
    ],
    "docs/lumberjack.md": [
        Stage(
            server("lumberjack", port=5045, keep=True) + "import logclient\n",
            "client.send('hello')\nassert not client.flush(20)\nassert events(1)[0]['message'] == 'hello'\n",
        ),
        Stage(pytest=True),
        Stage("import logclient"),
        Stage(),
    ],
    "docs/codec.md": [
        Stage(),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "assert event.status == 'acked' and server.events(1)[0]['message'] == 'hello'\n",
        ),
    ],
    "docs/plog.md": [
        Stage(PLOG, "assert server.wait_for(events=3, timeout=20) and len(server.messages()) == 3"),
        Stage(after="assert Reassembler and len(list(datagrams)) == 1"),
    ],
    "docs/tls.md": [
        Stage(TLS.format(kind="lumberjack", port=5044, more=""), around=DICT_CONFIG),
        Stage(
            "import pytest\nfrom logclient.transports.tls import server_context\n",
            "def test(log_collector):\n    assert log_collector.url.startswith('lumberjack+tls://')\n",
            pytest=True,
        ),
    ],
    "docs/testing.md": [
        Stage(pytest=True),
        Stage(pytest=True),
        Stage(
            "import logclient\n"
            "from logclient.testing.lumberjack import Collector\n"
            "with Collector(capture='run/capture') as collector:\n"
            "    with logclient.connect(collector.url, ledger='run/ledger') as client:\n"
            "        client.send({'message': 'hi'})\n"
            "        assert client.flush(20) == 0\n"
        ),
        Stage(TEN.format(url="logjam://127.0.0.1:9604/shop-production", wait="")),
        Stage(
            server("logjam", port=9604, publish_port=9606, heartbeat=0.1) + "import threading, logclient\n"
            "def send():\n"
            "    client = logclient.connect('logjam://127.0.0.1:9604/shop-production')\n"
            "    while True:\n"
            "        client.submit('hello').result(10)\n"
            "        threading.Event().wait(0.05)\n"
            "threading.Thread(target=send, daemon=True).start()\n",
            says="shop-production logs.shop.production",
        ),
        # It opens the port for lines last; what is sent by UDP before is lost.
        Stage(TEN.format(url="plog://127.0.0.1:23456", wait=UNTIL_OPEN)),
        Stage("from logclient.testing.plog import Collector"),
    ],
    "docs/programs.md": [
        Stage(
            server("lumberjack", port=5044, keep=True),
            "found = [event['message'] for event in events(2)]\nassert found == ['started', 'paid']\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "assert stats.acked == 1 and events(1)[0]['message'] == 'imported 17000 rows'\n",
        ),
        Stage(
            server("lumberjack", port=5044, keep=True),
            "assert lambda_handler({'order': 17}, None) == {'status': 'ok'}\n"
            "assert handler.client.stats().acked == 1 and events(1)[0]['message'] == 'order 17'\n",
        ),
    ],
}
"""For each page, what its samples in Python stand on, in their order."""

OTHERS = {
    *STORIES[1:2],
    "docs/verify.md sh",
    *("docs/verify-spark.md", "docs/verify-spark.md sql"),
    *("docs/logux.md js", "docs/logjam.md json", "docs/events.md json", "docs/receivers.md yaml"),
    *("docs/fields.md yaml", "docs/metrics.md yaml", "docs/kubernetes.md yaml", "docs/coming-from.md py"),
    *("docs/kubernetes.md dockerfile", "docs/programs.md py", "docs/codec.md toml"),
}


def samples(page: str) -> list[Text]:
    return [text for text in FOUND.samples if text.page == page and text.language == "python"]


SAMPLES = [pair for page, stages in STAGES.items() for pair in zip(samples(page), stages, strict=False)]


def test_every_sample_is_run() -> None:
    code = [text for text in FOUND.samples if text.language != "mermaid"]
    there = {f"{text.page} {text.language}".removesuffix(" python") for text in code}
    assert there == set(STAGES) | OTHERS
    counts = {page: len(stages) for page, stages in STAGES.items()}
    assert counts == {page: len(samples(page)) for page in STAGES}


@pytest.mark.parametrize(("sample", "stage"), SAMPLES[1:], ids=[str(text) for text, _ in SAMPLES[1:]])
def test_each_sample_runs(sample: Text, stage: Stage, machine: IsolatedMachine, here: Path) -> None:
    for name, source in {"server.pem": "me.pem", "clients.pem": "ca.pem"}.items():
        shutil.copy(Path(machine.environment["HOME"]).parent / "etc" / "logs" / source, here / name)
    if stage.pytest:
        head = stage.before or "import logclient\nimport pytest\n"
        (here / "test_sample.py").write_text("\n".join([head, sample.text, stage.after]))
        said = machine.run([sys.executable, "-m", "pytest", "-q", "test_sample.py"], here)
        assert "1 passed" in said
        return
    code = stage.around % sample.text if stage.around != "%s" else sample.text
    given = json.dumps([stage.before, code, stage.after])
    if not stage.says:
        said = machine.run([sys.executable, "-c", RUNNER], here, given)
        if stage.shows:
            [shown] = [text for text in FOUND.samples if text.page == sample.page and text.language == "json"]
            identity = {"@metadata", "event"}
            assert set(json.loads(shown.text)) == set(json.loads(said)) - identity
        return
    process = machine.start([sys.executable, "-uc", RUNNER], here)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(given)
    process.stdin.close()
    try:
        said = ""
        while stage.says not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
    finally:
        end(process)


OTHER_LIBRARIES = [text for text in FOUND.samples if text.language == "py"]


@pytest.mark.parametrize("program", OTHER_LIBRARIES, ids=range(len(OTHER_LIBRARIES)))
def test_programs_of_other_libraries_run(program: Text, machine: IsolatedMachine, here: Path) -> None:
    """Those from before the move, where the library is installed; they reach no server."""
    tree = ast.parse(program.text)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            pytest.importorskip(node.module or "")
        elif isinstance(node, ast.Import):
            pytest.importorskip(node.names[0].name)
    machine.run([sys.executable, "-c", program.text], here)


def test_the_javascript_sample_runs(machine: IsolatedMachine, here: Path) -> None:
    """@logux/server with the code of the page takes an event and keeps it."""
    [sample] = [text for text in FOUND.samples if text.language == "js"]
    (here / "server.mjs").write_text(
        f"async function keep(id, time, data) {{ console.log('kept', id, data.message) }}\n{sample.text}"
    )
    script = logux_server.program(here / "server.mjs")
    process = machine.start(f"exec node {script}", here)
    send = "import logclient\nclient = logclient.connect('logux://127.0.0.1:31337', token='env:LOGS_TOKEN')\n"
    assert process.stdout is not None
    try:
        assert "is listening" in process.stdout.readline()
        sent = machine.run([sys.executable, "-c", send + "print(client.submit('hello').result(20))"], here)
    finally:
        said = end(process)
    assert "acked" in sent
    assert re.search(r"kept [0-9a-f]{32} hello", said), said


@pytest.mark.spark
def test_spark_samples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, with a ledger and a capture; the tests of DataFrames check what such frames have."""
    from tests.support.verify_scene import Scene

    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    Scene(tmp_path / "run").write_ledger().write_capture()
    folder = str(tmp_path / "run")
    known: dict[str, Any] = {"spark": spark}
    for sample in [text for text in FOUND.samples if text.page == "docs/verify-spark.md"]:
        # Spark's working folder is where its session was begun.
        text = sample.text.replace("run/", f"{folder}/")
        if sample.language == "sql":
            for statement in text.split(";")[:-1]:
                spark.sql(statement).collect()
        elif "kafka" in text:
            # It runs in tests/verify/test_verify_records.py::test_topic_decodes_alike_in_batch_and_stream.
            compile(text, "verify-spark.md", "exec")
        else:
            exec(text, known)
    assert spark.read.parquet(f"{folder}/events").count() == 20


@pytest.mark.spark
def test_the_notebook_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of it, in order, in the session of all tests."""
    notebook = json.loads((EXAMPLES / "dataframes" / "logs.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), known)
    assert not any(cell.get("outputs") for cell in notebook["cells"])
