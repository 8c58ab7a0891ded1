"""Four throw-away protocols, one per kind of acknowledgement, for the contract suite.

=============  ==============================================  =============================
kind           on the wire                                     answer of the server
=============  ==============================================  =============================
`cumulative`   windows: ``W n``, then n events                 ``A k``: k of the oldest window
`fifo`         ``E`` events without a number                   a byte for the oldest
`by_id`        ``E id`` events with a number of the connection a byte and that number
`none`         ``D`` datagrams                                 nothing
=============  ==============================================  =============================

A payload is the event's id (32 hex digits), then its body as the caller gave it. Every server may send
``.`` (alive) and ``!`` (refused permanently); anything else breaks the protocol. `fifo` and `by_id` exist
twice: in Python, and compiled behind ``lc_codec`` (``fifo.pyx``, ``by_id.pyx``,
``by_message.pyx``).
"""
