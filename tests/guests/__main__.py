"""Runs the suites of other projects as they are and with logclient inside, and prints what differs.

python -m tests.guests [NAME…]
"""

import sys

from tests.guests.suites import HEAD, compare, guests

faults = []
for cells in (HEAD, ["---"] * len(HEAD)):
    print(f"| {' | '.join(cells)} |")
for guest in guests():
    for way in guest.ways if guest.name in sys.argv[1:] or not sys.argv[1:] else []:
        result = compare(guest, way)
        print(f"| {' | '.join(result.row())} |", flush=True)
        faults += [f"{guest.name} {way}: {line}" for line in result.faults]
print(*faults, sep="\n")
sys.exit(bool(faults))
