"""Random messages of Logux, most of them wrong in some place."""

from __future__ import annotations

from hypothesis import strategies as st

TYPES = [*"connect connected headers ping pong sync synced debug error foo".split(), "__init__"]  # noqa: SIM905
numbers = st.integers(-5, 5) | st.floats(-10, 10) | st.sampled_from([2**53, 2**53 + 1, -(2**54), 10**30])
texts = st.sampled_from(["error", "u:c:t", "a b", "", "5", "é\U0001f600", "\ud800", '"]\\'])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["length", "type", "id", "time", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)
ids = (
    numbers
    | st.lists(numbers, min_size=2, max_size=2)
    | st.tuples(numbers, texts, numbers).map(list)
    | values
)
actions = st.dictionaries(st.sampled_from(["x", "length"]), values, max_size=2).flatmap(
    lambda rest: st.sampled_from(["a", "", None, 5]).map(lambda kind: {**rest, "type": kind})
)
metas = st.builds(lambda i, t, rest: {"id": i, "time": t, **rest}, ids, numbers | st.none(), st.just({}))
options = st.dictionaries(st.sampled_from(["token", "subprotocol", "length"]), values, max_size=3)
messages = st.one_of(
    values,
    st.lists(values, max_size=5).flatmap(
        lambda rest: st.sampled_from(TYPES).map(lambda kind: [kind, *rest])
    ),
    st.builds(
        lambda a, e: ["sync", a, *(p for one in e for p in one)],
        numbers,
        st.lists(st.tuples(actions | values, metas | values), max_size=3),
    ),
    st.builds(
        lambda p, n, s, o: ["connect", p, n, s, *o],
        numbers, texts, numbers, st.lists(options, max_size=1),
    ),
    st.builds(
        lambda p, n, t, o: ["connected", p, n, t, *o],
        numbers, texts, st.lists(numbers, min_size=1, max_size=3), st.lists(options, max_size=1),
    ),
    st.builds(lambda h: ["headers", h], options | values),
)  # fmt: skip
