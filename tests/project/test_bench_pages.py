"""The pages with recorded results: each row changes its own section and column only."""

import pytest

from tests import support

pytestmark = pytest.mark.tree
if not (support.ROOT / "bench" / "harness.py").exists():
    pytest.skip("no benchmarks beside these tests", allow_module_level=True)

from bench import __main__ as main  # noqa: E402
from bench import harness, pages  # noqa: E402
from tests.project.test_bench import row  # noqa: E402


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("AMD EPYC", "AMD EPYC"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC"),
        ("Intel(R) Xeon(R) Processor", "Intel Xeon"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "Intel Xeon"),
        ("aarch64", "aarch64"),
        ("", "unknown"),
    ],
)
def test_processors_have_a_maker_and_a_family(model, kind):
    assert pages.processor(model) == kind


def test_recording_changes_only_the_rows_own_section(tmp_path):
    page, short = tmp_path / "measurements.md", tmp_path / "performance.md"
    page.write_text("# Measurements\n\nwords\n")
    pages.record(row("one"), page, short)
    pages.record(row("two"), page, short)
    pages.record(row("one", cpu="Intel(R) Xeon(R) Processor"), page, short)
    before = page.read_text()
    pages.record(row("one", 3.0), page, short)
    text = page.read_text()
    assert text.startswith("# Measurements\n\nwords\n")
    headings = [line.split(":")[0] for line in text.splitlines() if line.startswith("###")]
    assert headings == ["### one on AMD EPYC", "### one on Intel Xeon", "### two on AMD EPYC"]
    assert "NOT reached" in text
    start = "<!-- bench:/one, AMD EPYC -->"
    assert text.partition(start)[2] == before.partition(start)[2]
    assert "load 0.5 before, 0.8 after" in text


def column(page, kind):
    table = [line for line in page.read_text().splitlines() if "|" in line]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    at = lines[0].index(kind)
    return {line[0]: line[at] for line in lines[2:]}


def test_each_processor_has_a_column_of_claims(tmp_path):
    page, short = tmp_path / "measurements.md", tmp_path / "performance.md"
    start, end = "<!-- claims:some -->\n", "<!-- claims:/some -->\n"
    short.write_text(f"# Performance\n\n{start}Not recorded yet.\n{end}\nwords\n")
    pages.record(row(), page, short)
    pages.record(row(value=3.0, others=0.5, cpu="Intel(R) Xeon(R) Processor"), page, short)
    date = row().facts["date"][:10]
    assert column(short, "AMD EPYC") == {"x": "1", "recorded": date}
    assert column(short, "Intel Xeon") == {"x": "3, **not reached**", "recorded": f"{date}, busy"}
    pages.record(row(value=0.5), page, short)
    assert column(short, "AMD EPYC") == {"x": "0.5", "recorded": date}
    assert column(short, "Intel Xeon")["x"] == "3, **not reached**"
    assert short.read_text().endswith(f"{end}\nwords\n")
    assert "Not recorded" not in short.read_text()


def test_only_claims_with_a_target_are_in_the_table(tmp_path):
    verdicts = [
        harness.claim("A/A: a against itself", 1.0),
        harness.claim("printed", 1.0),
        harness.claim("judged", harness.Spread(1.0, 0.5, 2.0), "<=", 2.0),
        harness.claim("invalid", 1.0, ">=", 2.0)._replace(reached=None, why="the sink is the limit"),
        harness.claim("missed", 1.0, ">=", 2.0, "the server's own limit"),
    ]
    assert pages.claims(verdicts) == [
        ("judged", "<= 2", "1"),
        ("invalid", ">= 2", "1: the sink is the limit"),
        ("missed", ">= 2", "1, **not reached**: the server's own limit"),
    ]


def test_results_judged_by_another_target_keep_their_line():
    old = pages.merged("", "A", [pages.Claim("x", ">= 2", "1"), pages.Claim("gone", "<= 1", "0")], "then")
    both = pages.merged(old, "B", [pages.Claim("x", ">= 3", "4")], "now")
    assert both.splitlines() == [
        "| claim | target | A | B |",
        "|---|---|---|---|",
        "| x | >= 3 | - | 4 |",
        "| x | >= 2 | 1 | - |",
        "| gone | <= 1 | 0 | - |",
        "| recorded |  | then | now |",
    ]
    again = pages.merged(both, "A", [pages.Claim("x", ">= 3", "5")], "now")
    assert again.splitlines()[2:] == ["| x | >= 3 | 5 | 4 |", "| recorded |  | now | now |"]


def test_a_written_run_can_be_recorded_later(tmp_path):
    made = row()
    made = made._replace(verdicts=[*made.verdicts, *harness.judge({}, [harness.Target("a", "b", ">=", 2)])])
    harness.show(made, tmp_path)
    read = pages.read(tmp_path / "some.json")
    assert harness.markdown(read) == harness.markdown(made)
    assert pages.claims(read.verdicts) == pages.claims(made.verdicts)


@pytest.mark.parametrize("name", sorted(main.ROWS.keys() - {"web", "names"}))
def test_every_row_has_a_table_on_the_page(name):
    text = pages.PERFORMANCE.read_text()
    assert text.count(pages.TABLE.format(name=name)) == text.count(pages.TABLE.format(name="/" + name)) == 1
