"""The tree of errors, and what a user can catch them as."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

import logclient
from logclient import errors
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("EncodeError", ValueError),
        ("EncodeTypeError", TypeError),
        ("QueueFull", BufferError),
        ("ConnectFailed", ConnectionError),
        ("CredentialError", PermissionError),
        ("ProtocolError", ValueError),
        ("LedgerError", OSError),
    ],
)
def test_each_error_is_also_the_builtin_it_resembles(name: str, builtin: type[Exception]) -> None:
    cls = getattr(errors, name)
    with pytest.raises(builtin, match="one line") as caught:
        raise cls("one line")
    assert isinstance(caught.value, errors.LogclientError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == "one line"


def test_a_missing_extra_names_the_pip_command() -> None:
    error = errors.MissingExtra("pyspark", "verify")
    assert isinstance(error, ImportError)
    copy = pickle.loads(pickle.dumps(error))
    for one in (error, copy):
        assert str(one) == 'pyspark is not installed: pip install "logclient[verify]"'
        assert one.name == "pyspark"
        assert one.extra == "verify"
    error = errors.MissingExtra("pyspark", "spark", "or use --local")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == 'pyspark is not installed: pip install "logclient[spark]", or use --local'


def test_the_tree_in_the_docstring_names_every_class() -> None:
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, errors.LogclientError):
            assert name in (errors.__doc__ or "")
            assert name in errors.__all__


def test_exit_codes_are_the_ones_scripts_rely_on() -> None:
    assert [(code.name, int(code)) for code in errors.ExitCode] == [
        ("OK", 0),
        ("BROKEN", 1),
        ("USAGE", 2),
        ("UNREACHABLE", 3),
        ("INTERNAL", 70),
        ("INTERRUPTED", 130),
        ("TERMINATED", 143),
    ]


def test_public_errors_are_reachable_from_the_package() -> None:
    assert logclient.ConfigError is errors.ConfigError
    assert logclient.MissingExtra is errors.MissingExtra
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = logclient.nonsense  # type: ignore[attr-defined]
    assert set(logclient.__all__) <= set(dir(logclient))


def test_every_public_name_loads_lazily() -> None:
    script = (
        "import sys, logclient\n"
        "assert not [m for m in sys.modules if m.startswith('logclient.')], 'import loads something'\n"
        "for name in logclient.__all__:\n"
        "    assert getattr(logclient, name).__name__ == name, name\n"
        "from logclient import *\n"
        "assert connect is logclient.connect\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=2 * PATIENCE)


def test_version_is_the_one_of_the_distribution() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("logclient")
    except PackageNotFoundError:
        pytest.skip("logclient is not installed as a distribution")
    assert logclient.__version__ == installed


def test_a_second_interpreter_is_refused() -> None:
    """The error names the rule, and not the module that Python happens to try first."""
    program = """
import sys
import logclient.handler
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
inside = '''
import logclient
for name in ("connect", "Handler", "connect"):
    try:
        getattr(logclient, name)
    except ImportError as error:
        print(error, flush=True)
'''
if sys.version_info >= (3, 13):
    interpreters.exec(interpreters.create("legacy"), inside)
else:
    interpreters.run_string(interpreters.create(isolated=False), inside)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=4 * PATIENCE,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all(line.startswith("logclient works in one interpreter of a process") for line in lines)
