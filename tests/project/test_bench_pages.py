"""The record of the benchmarks refuses what flatters, and the pages say what is in it."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import support

pytestmark = pytest.mark.tree
if not (support.ROOT / "bench" / "harness.py").exists():
    pytest.skip("no benchmarks beside these tests", allow_module_level=True)

from bench import __main__ as main  # noqa: E402
from bench import harness, pages  # noqa: E402
from tests.support.bench_rows import row  # noqa: E402


@pytest.mark.parametrize(
    ("cpu", "kind"),
    [
        (
            "AMD EPYC (family 25, model 17, stepping 1), 2596 MHz",
            "AMD EPYC (family 25, model 17, stepping 1)",
        ),
        (
            "AMD EPYC 7763 64-Core Processor (family 25, model 1, stepping 1), 3243 MHz",
            "AMD EPYC (family 25, model 1, stepping 1)",
        ),
        (
            "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz (family 6, model 106, stepping 6), 2900 MHz",
            "Intel Xeon (family 6, model 106, stepping 6)",
        ),
        ("AMD EPYC", "AMD EPYC (model not recorded)"),
        ("Intel(R) Xeon(R) Processor", "Intel Xeon (model not recorded)"),
        ("aarch64", "aarch64 (model not recorded)"),
        ("", "unknown (model not recorded)"),
    ],
)
def test_processors_have_a_maker_a_family_a_model_and_a_stepping(cpu, kind):
    assert pages.kind(cpu) == kind


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc/cpuinfo")
def test_this_processor_is_named_as_the_kernel_names_it():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    if "cpu family" not in text:
        pytest.skip("not a processor with families")
    found = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    named = f"(family {found['cpu family']}, model {found['model']}, stepping {found['stepping']})"
    assert named in harness.machine()["cpu"]


@pytest.fixture
def tree(tmp_path):
    """A tree with the pages' places of three rows, and no record."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "bench" / "results").mkdir(parents=True)
    for name in ("one", "two", "web"):
        for page, what in ((pages.MEASUREMENTS, "bench"), (pages.PERFORMANCE, "claims")):
            with open(tmp_path / page.relative_to(support.ROOT), "a", encoding="utf-8") as file:
                file.write(f"words\n\n<!-- {what}:{name} -->\nold\n<!-- {what}:/{name} -->\n\nmore words\n")
    (tmp_path / "README.md").write_text("words\n<!-- numbers -->\nold\n<!-- /numbers -->\n", encoding="utf-8")
    return tmp_path


def recordable(
    name="one", value=1.0, cpu="AMD EPYC (family 25, model 17, stepping 1), 2596 MHz", control=1.0, **facts
):
    made = row(name, value, cpu=cpu)
    head = pages.git("rev-parse", "--short", "HEAD").stdout.strip()
    verdicts = [harness.claim("A/A: a against itself", control), *made.verdicts]
    return made._replace(facts=dict(made.facts) | {"commit": head} | facts, verdicts=verdicts)


def texts(tree):
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (support.ROOT / ".git").exists(), reason="needs the repository"
)


@needs_git
@pytest.mark.parametrize(
    ("made", "why"),
    [
        pytest.param({"others": 0.21}, "busy: other programs used 0.21 cores", id="busy"),
        pytest.param({"others": float("nan")}, "unknown whether other programs", id="load unknown"),
        pytest.param({"commit": "a026f16-dirty"}, "differed from its commit: a026f16-dirty", id="dirty"),
        pytest.param({"commit": None}, "no commit", id="no commit"),
        pytest.param({"commit": "b90d0a9c0"}, "b90d0a9c0 is not in the history", id="another history"),
        pytest.param({"control": 0.949}, "A/A: a against itself: 0.949, not within", id="A/A low"),
        pytest.param({"control": 1.051}, "A/A: a against itself: 1.05, not within", id="A/A high"),
        pytest.param({"control": float("nan")}, "A/A: a against itself: -, not within", id="A/A unknown"),
        pytest.param({"quick": True}, "the run was quick", id="quick"),
    ],
)
def test_a_run_that_was_disturbed_is_not_recorded(tree, made, why):
    before = texts(tree)
    with pytest.raises(pages.Refused, match=why):
        pages.record(recordable(**made), tree)
    assert texts(tree) == before


@needs_git
def test_an_invalid_row_is_not_recorded(tree):
    made = recordable()
    invalid = made.verdicts[1]._replace(reached=None, why="invalid: the sink is the limit")
    before = texts(tree)
    with pytest.raises(pages.Refused, match="x: invalid: the sink is the limit"):
        pages.record(made._replace(verdicts=[made.verdicts[0], invalid]), tree)
    assert texts(tree) == before


@needs_git
def test_a_row_without_a_control_says_why(tree):
    made = recordable()
    made = made._replace(verdicts=made.verdicts[1:])
    with pytest.raises(pages.Refused, match="there is no A/A"):
        pages.record(made, tree)
    pages.record(made._replace(uncontrolled="a run takes a day"), tree)
    text = (tree / pages.MEASUREMENTS.relative_to(support.ROOT)).read_text()
    assert "- no A/A: a run takes a day\n" in text


@needs_git
def test_a_file_of_a_refused_run_fails_the_command(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(pages.dumps(recordable(others=3.0)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bench.pages", str(path)],
        cwd=support.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "one: not recorded: busy: other programs used 3.00 cores, more than 0.2\n"


def test_a_quick_run_is_refused_before_it_starts(capsys):
    with pytest.raises(SystemExit):
        main.main(["import", "--quick", "--record"])
    assert "a quick run is not recorded" in capsys.readouterr().err


XEON = "Intel(R) Xeon(R) Processor (family 6, model 143, stepping 8), 2000 MHz"


@needs_git
def test_recording_replaces_the_run_of_the_same_row_and_processor(tree):
    pages.record(recordable("one"), tree)
    pages.record(recordable("two"), tree)
    pages.record(recordable("one", 1.5, XEON), tree)
    pages.record(recordable("one", 3.0), tree)
    text = (tree / pages.MEASUREMENTS.relative_to(support.ROOT)).read_text()
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("###")] == [
        "### one on AMD EPYC (family 25, model 17, stepping 1)",
        "### one on Intel Xeon (family 6, model 143, stepping 8)",
        "### two on AMD EPYC (family 25, model 17, stepping 1)",
    ]
    assert "| x | 3 | <= 2 | NOT reached |" in text and "| x | 1.5 | <= 2 | reached |" in text
    assert text.count("more words") == 3 and "old" not in text
    assert "<!-- bench:web -->\nNot recorded.\n<!-- bench:/web -->" in text
    table = (tree / "docs" / "performance.md").read_text()
    assert "- x: 3 (A), target <= 2 **not reached**\n" in table
    assert "- x: 1\n" in table
    assert "A: AMD EPYC (family 25, model 17, stepping 1), 20" in table


@pytest.mark.parametrize(
    ("op", "values", "order"),
    [("<=", [1, 3, 2], [3, 2, 1]), (">=", [1, 3, 2], [1, 2, 3]), ("==", [2, 5, 1], [5, 1, 2])],
)
def test_the_worst_figure_is_said(op, values, order):
    rows = [row(value=v)._replace(verdicts=[harness.claim("x", float(v), op, 2.0)]) for v in values]
    (line,) = [line for line in pages.claims(rows).splitlines() if line.startswith("- x: ")]
    assert line.startswith(f"- x: {order[0]} ({'ABC'[values.index(order[0])]})")


def test_contenders_of_one_claim_are_one_line():
    values = {"a": 2.0, "b": 3.0, "c": 1.0}
    verdicts = [harness.claim(f"{who}: lost", 0.0, "==", 0.0) for who in values]
    verdicts += [harness.claim(f"{who}: p99", value, "<=", 2.5) for who, value in values.items()]
    verdicts += [harness.claim("a: x / b: y", 1.0, "<=", 2.0)]
    assert pages.claims([row()._replace(verdicts=verdicts)]).splitlines()[:3] == [
        "- lost: 0 (3 contenders)",
        "- p99: 3 (b, the worst of 3), target <= 2.5 **not reached**",
        "- a: x / b: y: 1",
    ]


def test_the_readme_has_the_worst_figure_and_its_processor(monkeypatch):
    monkeypatch.setattr(
        pages, "NUMBERS", (pages.Number("some", "x", "a call"), pages.Number("none", "y", "more"))
    )
    rows = [row(value=1.0), row(value=3.0, cpu=XEON)]
    date, commit = rows[1].facts["date"], rows[1].facts["commit"]
    assert pages.numbers({"some": rows}).splitlines()[2:] == [
        f"| a call | ≤ 2 × | 3 × **not reached** | 1–3 | {pages.kind(XEON)}, {date[:10]}, {commit} |"
    ]
    with pytest.raises(LookupError, match="row some has no claim 'x'"):
        pages.numbers({"some": [row()._replace(verdicts=[])]})


@needs_git
def test_a_complete_set_is_quoted_and_replaces_what_its_processor_said(tree):
    pages.record(recordable("one", 1.0), tree)
    pages.record(recordable("two", 1.0, commit="HEAD~1"), tree)
    pages.record(recordable("one", 3.0, XEON), tree)
    made = recordable("one")
    pages.record_set(made.facts["cpu"], made.facts["commit"], tree)
    table = (tree / "docs" / "performance.md").read_text()
    assert "- x: 1 (1–3)\n" in table
    assert "<!-- claims:two -->\nNot recorded.\n" in table


def test_a_row_without_targets_needs_no_place_among_the_claims(tree):
    page = tree / "docs" / "performance.md"
    page.write_text(page.read_text().replace(":web", ":other"))
    made = recordable("web")
    pages.record(made._replace(verdicts=made.verdicts[:1]), tree)  # the A/A
    text = (tree / pages.MEASUREMENTS.relative_to(support.ROOT)).read_text()
    assert "### web on AMD EPYC" in text
    with pytest.raises(LookupError, match="no place for row web: claims page"):
        pages.record(made, tree)


def test_only_claims_with_a_target_are_said():
    verdicts = [
        harness.claim("A/A: a against itself", 1.0),
        harness.claim("printed", 1.0),
        harness.claim("judged", harness.Spread(1.0, 0.5, 2.0), "<=", 2.0),
        harness.claim("missed", 1.0, ">=", 2.0, "the server's own limit"),
    ]
    assert pages.claims([row()._replace(verdicts=verdicts)]).splitlines()[:2] == [
        "- judged: 1",
        "- missed: 1, target >= 2 **not reached**: the server's own limit",
    ]


def test_results_judged_by_another_target_have_their_own_line():
    rows = [row()._replace(verdicts=[harness.claim("x", 4.0, ">=", bound)]) for bound in (3.0, 2.0)]
    assert pages.claims(rows).splitlines()[:2] == ["- x: 4 (A)", "- x: 4 (B)"]


def test_a_written_run_can_be_recorded_later(tmp_path):
    made = row()
    made = made._replace(verdicts=[*made.verdicts, *harness.judge({}, [harness.Target("a", "b", ">=", 2)])])
    harness.show(made, tmp_path)
    read = pages.read(tmp_path / "some.json")
    assert harness.markdown(read) == harness.markdown(made)
    (tmp_path / "again.json").write_text(pages.dumps(read), encoding="utf-8")
    assert harness.markdown(pages.read(tmp_path / "again.json")) == harness.markdown(made)


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_pages_say_what_the_record_says(page):
    text = page.read_text(encoding="utf-8")
    assert text == pages.filled(text)


def test_the_page_of_claims_names_the_complete_set():
    kind, commit = (pages.RESULTS / pages.SET).read_text(encoding="utf-8").splitlines()
    said = re.search(
        r"The set: (.*), \d{4}-\d\d-\d\d, (\w+)\.", pages.PERFORMANCE.read_text(encoding="utf-8")
    )
    assert said is not None and said.groups() == (kind, commit)


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_a_figure_that_is_edited_by_hand_is_found(page):
    text = page.read_text(encoding="utf-8")
    blocks = [*pages.BLOCK.finditer(text), *pages.NUMBERS_BLOCK.finditer(text)]
    figure = next(filter(None, (re.compile(r"\d\.\d\d").search(text, *block.span()) for block in blocks)))
    edited = text[: figure.start()] + figure[0][::-1] + text[figure.end() :]
    assert edited != text == pages.filled(edited)


@needs_git
@pytest.mark.parametrize("path", sorted(pages.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_runs_were_quiet_clean_and_valid(path):
    assert not pages.refusals(pages.read(path))


@pytest.mark.parametrize("name", sorted(main.ROWS))
def test_every_row_has_its_place_on_the_pages(name):
    for page, what in ((pages.MEASUREMENTS, "bench"), (pages.PERFORMANCE, "claims")):
        if what == "bench" or name != "web":  # which has no targets
            text = page.read_text(encoding="utf-8")
            assert text.count(f"<!-- {what}:{name} -->") == text.count(f"<!-- {what}:/{name} -->") == 1


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])", id="grandchild"
        ),
        pytest.param(
            "import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {BURN!r} + 'print(flush=True); input()'],"
            " stdin=0, stdout=1)",
            id="orphan",
        ),
    ],
)
def test_what_a_row_has_started_is_its_own(start):
    program = f"""
import subprocess, sys
from bench import harness
others = harness.OtherPrograms()
before = harness.own_seconds()
code = {start!r} + "\\nprint(flush=True)"
pipe = subprocess.PIPE
child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)
child.stdout.readline()
child.stdout.readline() if {"Popen" in start} else None
child.wait()
print(harness.own_seconds() - before)
child.stdin.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=support.ROOT, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) >= 0.29


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_what_other_programs_use_is_not_the_rows():
    program = """
from bench import harness
others = harness.OtherPrograms()
before = harness.own_seconds()
print(flush=True)
input()
print(harness.own_seconds() - before)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=support.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as row_process:
        row_process.stdout.readline()
        subprocess.run([sys.executable, "-c", BURN], check=True)  # of our own, and not of the row's
        found, _ = row_process.communicate("\n")
    assert float(found) < 0.2


@needs_git
def test_what_recording_writes_makes_no_tree_dirty(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        if command[0] == "add":
            (tmp_path / "code.py").write_text("1\n")
            (tmp_path / "README.md").write_text("1\n")
        who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", *command], cwd=tmp_path, check=True, env=os.environ | who)
    clean = harness.commit()
    assert clean and not clean.endswith("-dirty")
    (tmp_path / "README.md").write_text("2\n")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "results" / "one.json").write_text("{}")
    assert harness.commit() == clean
    (tmp_path / "code.py").write_text("2\n")
    assert harness.commit() == f"{clean}-dirty"
