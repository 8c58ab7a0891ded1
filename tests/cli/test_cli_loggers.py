"""``logclient check --logging``: which loggers of a program are slow, and why."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from logclient import cli
from tests import support
from tests.support.patience import PATIENCE

PROGRAM = """
import logging
import logclient

logging.setLoggerClass(logclient.Logger)

URL = "lumberjack://127.0.0.1:9"
SHIP = {"class": "logclient.Handler", "url": URL}
CONSOLE = {"class": "logging.StreamHandler"}
FILE = {"class": "logging.FileHandler", "filename": "shop.log"}

NUMBER = 7
BROKEN = {"version": 1, "handlers": {"ship": {**SHIP, "url": "nothing://x"}}}
FAST = {
    "version": 1, "disable_existing_loggers": False,
    "handlers": {"ship": SHIP}, "root": {"handlers": ["ship"]}, "loggers": {"shop": {}, "shop.orders": {}},
}
CONSOLE_AT_THE_ROOT = {
    **FAST, "handlers": {"ship": SHIP, "console": CONSOLE}, "root": {"handlers": ["ship", "console"]},
}
NONE = {"version": 1}


def configure():
    logging.getLogger().addHandler(logclient.Handler(URL))
    logging.getLogger("shop.orders")
    audit = logging.getLogger("audit")
    audit.addHandler(logging.FileHandler("shop.log"))
    lost = logging.getLogger("lost")
    lost.propagate = False
    off = logging.getLogger("off")
    off.disabled = True
    filtered = logging.getLogger("filtered")
    filtered.addFilter(lambda record: True)
    logging.setLoggerClass(logging.Logger)
    logging.getLogger("early")


def fail():
    raise KeyError("SHOP_HOME")


class Part:
    configure = staticmethod(configure)
"""

with_gil = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="all loggers are slow"
)

CALL = "call logging.setLoggerClass(logclient.Logger) before the first import that makes loggers"
ADD = "add a logclient.Handler to them, or to the root logger: nothing that they log is shipped"
ENABLE = "set disable_existing_loggers to false in the mapping for dictConfig"
NEEDS = (
    "which needs a log record for each call that its level lets through; making one takes most of a call's"
    " time: raise that level, or remove the handler where"
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a folder with a program."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "settings.py").write_text(PROGRAM)
    return tmp_path


def check(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run ``check`` as a program of its own, which may configure logging; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "logclient", "check", *arguments],
        cwd=folder, env=support.clean_environment(PYTHONPATH=str(support.TESTED)),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (done.stderr if code == 0 else done.stdout) == ""
    return done.stdout if code == 0 else done.stderr


@with_gil
def test_a_console_handler_makes_all_loggers_slow(program: Path) -> None:
    lines = check(program, "--logging", "shop.settings:CONSOLE_AT_THE_ROOT").splitlines()
    assert lines == [
        "shop: slow: StreamHandler is no logclient.Handler",
        "shop.orders: slow: StreamHandler is no logclient.Handler",
        "0 of 2 loggers are fast",
        f"to fix:  the root logger has a console handler (StreamHandler), {NEEDS} nobody reads the console",
    ]


@with_gil
def test_loggers_of_a_mapping_are_fast(program: Path) -> None:
    lines = check(program, "--logging", "shop.settings:FAST").splitlines()
    assert lines == ["shop: fast", "shop.orders: fast", "2 of 2 loggers are fast"]


@with_gil
@pytest.mark.parametrize("name", ["configure", "Part.configure"])
def test_json_has_the_reason_and_the_fix_of_each_logger(name: str, program: Path) -> None:
    lines = check(program, "--logging", f"shop.settings:{name}", "--json").splitlines()
    found: dict[str, Any] = {}
    for line in lines:
        entry = json.loads(line)
        found[entry.pop("logger")] = entry
    assert found == {
        "audit": {
            "fast": False,
            "why": "FileHandler is no logclient.Handler",
            "mend": f"the logger audit has a FileHandler, {NEEDS} nobody reads what it writes",
        },
        "early": {
            "fast": False,
            "why": "it was made before logging.setLoggerClass, or is the root",
            "mend": CALL,
        },
        "filtered": {"fast": False, "why": "it has a filter", "mend": ""},
        "lost": {"fast": False, "why": "it has no handler", "mend": ADD},
        "off": {"fast": False, "why": "it is disabled", "mend": ENABLE},
        "shop.orders": {"fast": True, "why": "", "mend": ""},
    }
    assert list(found) == sorted(found)


def test_a_program_without_loggers_has_no_line(program: Path) -> None:
    assert (
        check(program, "--logging", "shop.settings:NONE")
        == "only the root logger is configured, and no other has been made\n"
    )
    assert check(program, "--logging", "shop.settings:NONE", "--json") == ""


FORM = "logclient: --logging: must be MODULE:NAME, as in shop.settings:LOGGING"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop.settings", FORM),
        ("shop.settings:", FORM),
        (":configure", FORM),
        (".settings:configure", FORM),
        ("shop.sets:configure", f"{FORM}; ModuleNotFoundError: No module named 'shop.sets'"),
        ("shop.settings:setup", f"{FORM}; AttributeError: module 'shop.settings' has no attribute 'setup'"),
        ("shop.settings:fail", "logclient: --logging: shop.settings:fail failed: KeyError: 'SHOP_HOME'"),
        (
            "shop.settings:NUMBER",
            "logclient: --logging: shop.settings:NUMBER is neither a function nor a mapping for dictConfig",
        ),
    ],
)
def test_a_wrong_name_is_explained(target: str, message: str, program: Path) -> None:
    assert check(program, "--logging", target, code=2) == f"{message}\n"


def test_the_cause_of_an_error_of_dict_config_is_named(program: Path) -> None:
    message = check(program, "--logging", "shop.settings:BROKEN", code=2)
    assert "BROKEN failed: ValueError: Unable to configure handler 'ship': ConfigError: " in message


def test_a_server_is_not_examined_beside_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "lumberjack://127.0.0.1:9", "--logging", "shop.settings:FAST"]) == 2
    assert "argument --logging: not allowed with argument URL" in capsys.readouterr().err


def test_the_help_says_what_is_examined(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    text = capsys.readouterr().out
    assert "--logging MODULE:NAME" in text
    assert "test a program's loggers instead: say which ones are slow, and why" in text
