"""Sample log lines: from files, from the system, or generated."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import logclient
from logclient.errors import ConfigError
from logclient.testing.lumberjack import Collector
from tools.demo import samples

pytestmark = pytest.mark.unit

# Lines that are hard to keep as they are.
AWKWARD = (
    "",
    "\t leading and trailing blanks \t ",
    'quotes " and \\ backslashes \\n that are no newline',
    "\x1b[31mred\x1b[0m, a bell \x07, a NUL \x00, a delete \x7f and two separators \u2028\u2029",
    "Größe überschritten: 5 € für naïve Wünsche",
    "Ошибка подключения к серверу базы данных",
    "接続に失敗しました。再試行します。",
    "فشل الاتصال بالخادم",
    "cafe\u0301 beside caf\u00e9, 👩\u200d🚀 and 🇺🇳, the last code point \U0010ffff",
    """\
Traceback (most recent call last):
  File "/srv/app/orders.py", line 88, in accept
    total = sum(item.price for item in basket)
TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'""",
    "{} {0} %s %d %(name)s 100%",
    "long " + "0123456789abcdef" * 4096,
)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """An empty folder in place of /var/log."""
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


class TestFiles:
    def test_files_are_read_as_lines(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one.log", tmp_path / "two.log"
        one.write_bytes(b"first\r\n\nan error \xff\n")
        two.write_bytes(b"a warning\na debug line")
        lines, source = samples.choose([str(one), str(two)])
        assert source == "2 files"
        assert [line.text for line in lines] == ["first", "an error \ufffd", "a warning", "a debug line"]
        assert [line.level for line in lines] == [logging.INFO, logging.ERROR, logging.WARNING, logging.DEBUG]
        assert (lines[0].program, lines[0].file) == ("one", str(one))

    def test_an_unreadable_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No such file"):
            samples.choose([str(tmp_path / "none")])

    def test_a_file_without_lines_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        with pytest.raises(ConfigError, match=r"no log lines found in .*empty"):
            samples.choose([str(tmp_path / "empty")])

    def test_the_bytes_kept_are_bounded(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("x\n" * 60_000)
        assert len(samples.choose([str(tmp_path / "a")] * 2).lines) == 100_000

    def test_lines_of_any_length_are_kept(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("short\n")
        assert samples.choose([str(tmp_path / "a")], near=(90, 150)).source == "1 file"


class TestSystem:
    def test_text_logs_of_the_system_are_taken(self, system: Path) -> None:
        (system / "apt").mkdir()
        (system / "apt" / "a.log").write_text("one\n")
        (system / "b.log").write_text("two ☃\n")
        lines, source = samples.choose(system=system)
        assert source == f"2 text logs in {system}"
        assert [line.text for line in lines] == ["one", "two ☃"]

    def test_journals_and_compressed_logs_are_ignored(self, system: Path) -> None:
        cases = {
            "text": "line ☃\n".encode(),
            "empty": b"",
            "nul": b"LPKSHHRH\0\0",
            "gz": b"\x1f\x8b\x08\xff" * 9,
            "cut": b"x" * 4095 + "☃".encode(),  # a character across the end of what is looked at
        }
        for name, data in cases.items():
            (system / name).write_bytes(data)
        assert {line.program for line in samples.choose(system=system).lines} == {"text", "cut"}

    def test_without_system_logs_lines_are_generated(self, system: Path) -> None:
        lines, source = samples.choose(system=system)
        assert source == "the generator (seed 7)"
        assert lines == list(samples.generate(len(lines), 7))

    @pytest.mark.parametrize(("size", "taken"), [(89, False), (90, True), (150, True), (151, False)])
    def test_lines_may_be_limited_by_length(self, system: Path, size: int, taken: bool) -> None:
        (system / "a.log").write_text(("x" * size + "\n") * 10)
        assert ("text log" in samples.choose(system=system, near=(90, 150)).source) is taken


class TestGenerated:
    def test_a_seed_determines_the_generated_lines(self) -> None:
        assert list(samples.generate(200, 1)) == list(samples.generate(200, 1))
        assert list(samples.generate(200, 1)) != list(samples.generate(200, 2))

    def test_generated_lines_resemble_real_ones(self) -> None:
        made = samples.Samples(list(samples.generate(5000)), "")
        assert 110 < made.mean < 125
        assert len({line.text for line in made.lines}) > 4500
        assert len({line.program for line in made.lines}) == 7
        assert all(0 < len(line.text) < 400 and line.text.isascii() for line in made.lines)
        assert not any("{" in line.text for line in made.lines if line.program != "orders")
        assert all(json.loads(line.text) for line in made.lines if line.program == "orders")
        levels = [line.level for line in made.lines]
        assert {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR} == set(levels)
        assert levels.count(logging.INFO) > 4000

    def test_awkward_lines_arrive_unchanged(self) -> None:
        lines = [line.text for line in samples.generate(300)]
        lines[9::10] = [AWKWARD[n % len(AWKWARD)] for n in range(30)]
        assert "" in lines
        assert any("Traceback" in line and "\n" in line for line in lines)
        assert any(not line.isascii() for line in lines)
        assert any("\0" in line for line in lines)
        assert max(map(len, lines)) > 1 << 16
        with Collector(keep=True) as collector:
            handler = logclient.Handler(collector.url)
            logger = logging.Logger("tests.samples")
            logger.addHandler(handler)
            for line in lines:
                logger.info("%s", line)
            assert handler.client.flush() == 0
            handler.close()
            assert [event["message"] for event in collector.events(len(lines))] == lines
