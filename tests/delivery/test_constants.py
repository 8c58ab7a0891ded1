"""Numbers that compiled code and Python share have the names that are shown for them."""

import pytest

from logclient._ext import constants

pytestmark = pytest.mark.unit

NUMBERS = {name: value for name, value in vars(constants).items() if name.isupper() and type(value) is int}


def names_of(prefix: str) -> tuple[str, ...]:
    """Return the names of the numbers with this prefix, in the order of the numbers."""
    found = {
        value: name.removeprefix(prefix).lower() for name, value in NUMBERS.items() if name.startswith(prefix)
    }
    return tuple(name for _, name in sorted(found.items()))


def test_every_reason_has_a_name() -> None:
    assert names_of("R_") == ("none", *constants.REASONS[1:], "count")
    assert constants.REASONS[0] == ""
    assert len(constants.REASONS) == constants.R_COUNT


def test_every_end_has_a_name() -> None:
    assert names_of("END_") == constants.ENDS


def test_every_status_has_a_name() -> None:
    assert [NUMBERS[name.upper()] for name in constants.STATUSES] == list(range(len(constants.STATUSES)))


def test_every_method_of_udp_has_a_name() -> None:
    numbers = (constants.UDP_ONE, constants.UDP_MANY, constants.UDP_RUNS)
    assert [constants.UDP_METHODS[number] for number in numbers] == ["send", "mmsg", "gso"]


def test_numbers_of_a_group_differ() -> None:
    for prefix in ("R_", "END_", "PUT_", "STOP_"):
        values = [value for name, value in NUMBERS.items() if name.startswith(prefix)]
        assert len(values) == len(set(values)) > 1
