"""The suites of other projects give the same results with logclient in their processes."""

from __future__ import annotations

import pytest

from tests.guests.suites import Guest, NoIndex, compare, guests
from tests.support import missing

pytestmark = pytest.mark.long


@pytest.mark.parametrize("guest", guests(), ids=lambda guest: guest.name)
def test_the_suite_gives_what_it_gives_without_us(guest: Guest) -> None:
    for way in guest.ways:
        try:
            result = compare(guest, way)
        except NoIndex as error:
            missing(f"no package index: {error}")
        assert result.faults == [], f"{guest.name} {way}"
