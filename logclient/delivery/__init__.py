"""From the hand-off to an outcome: one engine owns queueing, retry and delivery for all protocols."""
