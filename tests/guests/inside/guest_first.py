"""A plugin of pytest that logs once before the session.

A suite that compares the threads after each test with those before the first one then knows our sender.
"""

import logging

logging.getLogger("guest").warning("before the session")
