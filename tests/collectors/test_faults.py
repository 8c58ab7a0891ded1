"""Fault specifications: the accepted grammar, and the units that each fault strikes."""

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import ConfigError, LedgerError
from logclient.testing.faults import CONNECTION_FAULTS, DATA_FAULTS, NAMES, FaultLog, Faults

pytestmark = pytest.mark.unit

THERE = tuple(name for name in DATA_FAULTS if name in NAMES["lumberjack"])
HERE = tuple(name for name in CONNECTION_FAULTS if name in NAMES["lumberjack"])

CONDITIONS = ["every:1", "every:3", "every:0", "p:0.5", "p:2", "from:2", "max:1", "1s", "7", ""]
ITEMS = st.tuples(
    st.sampled_from([*NAMES["lumberjack"], "seed", "x"]), st.lists(st.sampled_from(CONDITIONS), max_size=3)
)
SPECS = st.lists(ITEMS.map(lambda item: f"{item[0]}={':'.join(item[1])}"), max_size=4).map(",".join)
"""Specifications, many of them valid."""


def struck(spec: str, connections: list[int]) -> list[list[str]]:
    """Return the names of the faults that strike each unit, for units of these connections in this order."""
    faults = Faults(spec)
    return [[act.fault.name for act in faults.plan(c) if act is not None] for c in connections]


def units_struck(spec: str, connections: list[int]) -> list[int]:
    """Return the numbers of the units (from 1) that any fault strikes."""
    return [n for n, names in enumerate(struck(spec, connections), 1) if names]


class TestGrammar:
    def test_a_specification_of_three_faults_is_read(self):
        faults = Faults("cut-before-ack=every:5,delay-ack=p:0.1:200ms,discard=every:7,seed=3")
        assert faults.seed == 3
        cut, delay, discard = faults.faults
        assert (cut.name, cut.every) == ("cut-before-ack", 5)
        assert (delay.name, delay.p, delay.value) == ("delay-ack", 0.1, 0.2)
        assert (discard.name, discard.every) == ("discard", 7)

    @pytest.mark.parametrize(("protocol", "name"), [(p, name) for p in NAMES for name in NAMES[p]])
    def test_every_fault_takes_all_conditions(self, protocol, name):
        value = ":1s" if name == "delay-ack" else ""
        (fault,) = Faults(f"{name}=every:5{value}:max:2:from:3:per-connection", protocol).faults
        assert (fault.every, fault.limit, fault.first, fault.per_connection) == (5, 2, 3, True)

    def test_faults_of_other_protocols_are_refused(self):
        for protocol, name in (
            ("lumberjack", "no-reply"),
            ("logjam", "keepalive"),
            ("logjam", "partial-ack"),
            ("logux", "partial-ack"),
            ("logux", "keepalive"),
        ):
            with pytest.raises(ConfigError, match=f"'{name}' is not a fault"):
                Faults(f"{name}=every:1", protocol)

    def test_values_of_faults_are_read(self):
        spec = "delay-ack=1.5s:every:2, keepalive=every:2:3,partial-ack=every:3:7,"
        spec += "swap=every:9:50ms,stall=p:1:alive"
        assert [f.value for f in Faults(spec).faults] == [1.5, 3, 7, 0.05, 1]

    @pytest.mark.parametrize("spec", ["", " ", ",", "seed=5"])
    def test_an_empty_specification_has_no_faults(self, spec):
        faults = Faults(spec)
        assert not faults
        assert not any(faults.plan(1))

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("disk-on-fire=every:1", "'disk-on-fire' is not a fault"),
            ("seed=x", "seed: 'x' must be a whole number of at least 0"),
            ("seed=-1", "seed"),
            ("seed", "seed"),
            ("discard", "discard needs a term"),
            ("discard=", "discard needs a term"),
            ("discard=every:0", "discard: every: '0' must be a whole number of at least 1"),
            ("discard=every:1.5", "discard: every: '1.5'"),
            ("discard=every", "discard: every: ''"),
            ("discard=every:٣", "discard: every"),
            ("discard=p:0", "discard: p: '0' must be a number over 0 and at most 1"),
            ("discard=p:1.1", "discard: p: '1.1'"),
            ("discard=p:nan", "discard: p: 'nan'"),
            ("discard=max:0", "discard: max: '0'"),
            ("discard=from:x", "discard: from: 'x'"),
            ("discard=every:2:p:0.5", "discard: every and p exclude each other"),
            ("discard=every:2:every:3", "discard: every is given twice"),
            ("discard=every:2,discard=every:3", "discard is given twice"),
            ("discard=every:2:200ms", "discard: '200ms' is none of its terms"),
            ("delay-ack=every:2", "delay-ack needs a time"),
            ("delay-ack=every:2:200", "delay-ack: '200' must be a time such as 200ms"),
            ("delay-ack=every:2:1h", "delay-ack: '1h' must be a time"),
            ("partial-ack=every:2:0", "partial-ack: '0' must be a whole number of at least 1"),
            ("keepalive=every:2:many", "keepalive: 'many'"),
            ("keepalive=every:1:10001", "'10001' must be a whole number of at least 1 and at most 10000"),
            ("stall=every:2:dead", "stall: 'dead' is none of its terms"),
            ("stall:alive=every:9", "terms follow the =, as in stall=every:5:alive"),
            ("swap=every:2:", "swap: '' must be a time"),
        ],
    )
    def test_invalid_specifications_are_explained(self, spec, words):
        with pytest.raises(ConfigError) as caught:
            Faults(spec)
        assert str(caught.value).startswith("faults: ")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    @given(st.text(alphabet="discardevrymaxp:=,0159.ms-", max_size=40) | SPECS)
    def test_any_text_is_a_plan_or_a_one_line_error(self, spec):
        try:
            faults = Faults(spec)
        except ConfigError as error:
            assert str(error).startswith("faults: ") and "\n" not in str(error)
            return
        terms = [term.strip().partition("=")[0] for term in spec.split(",")]
        assert [fault.name for fault in faults.faults] == [name for name in terms if name not in ("", "seed")]
        for fault in faults.faults:
            assert fault.every >= 1 or (fault.every == 0 and 0.0 <= fault.p <= 1.0)
            assert fault.first >= 1 and fault.limit >= 0 and fault.value >= 0.0
        acts = [act for act in faults.plan(1) if act is not None]
        assert {act.fault for act in acts} <= set(faults.faults)
        assert sum(faults.done.values()) == len(acts)


class TestWhen:
    def test_every_strikes_each_nth_unit(self):
        assert units_struck("discard=every:3", [1] * 10) == [3, 6, 9]

    def test_from_sets_the_first_unit(self):
        assert units_struck("discard=from:4", [1] * 6) == [4, 5, 6]
        assert units_struck("discard=every:3:from:4", [1] * 10) == [6, 9]

    def test_max_limits_the_strikes(self):
        assert units_struck("discard=every:2:max:2", [1] * 10) == [2, 4]

    def test_units_of_all_connections_count_together(self):
        assert units_struck("discard=every:3", [1, 2, 1, 2, 3, 1]) == [3, 6]

    def test_per_connection_counts_each_alone(self):
        units = [1, 2, 1, 2, 1, 2, 2]
        assert units_struck("discard=every:2:per-connection", units) == [3, 4, 7]
        assert units_struck("discard=every:2:per-connection:max:1", units) == [3, 4]
        assert units_struck("discard=from:3:per-connection", units) == [5, 6, 7]

    def test_p_strikes_with_that_probability(self):
        hits = len(units_struck("discard=p:0.25,seed=1", [1] * 4000))
        assert 800 < hits < 1200
        assert units_struck("discard=p:1", [1] * 5) == [1, 2, 3, 4, 5]

    @given(
        seed=st.integers(0, 10**9),
        units=st.lists(st.integers(1, 3), max_size=60),
        scope=st.sampled_from(["", ":per-connection"]),
    )
    def test_a_seed_determines_the_faults(self, seed, units, scope):
        spec = f"cut-before-ack=p:0.3{scope},delay-ack=p:0.3{scope}:1s,corrupt=every:3{scope},seed={seed}"
        first, second = Faults(spec), Faults(spec)
        for connection in units:
            one, two = first.plan(connection), second.plan(connection)
            assert one == two
            if one.data is not None and two.data is not None:
                assert one.data.random.random() == two.data.random.random()

    def test_another_seed_strikes_other_units(self):
        assert units_struck("discard=p:0.5,seed=1", [1] * 64) != units_struck(
            "discard=p:0.5,seed=2", [1] * 64
        )

    def test_per_connection_ignores_other_connections(self):
        alone = units_struck("discard=p:0.5:per-connection,seed=4", [1] * 20)
        among = struck("discard=p:0.5:per-connection,seed=4", [1, 2, 3] * 20)[::3]
        assert [n for n, names in enumerate(among, 1) if names] == alone

    def test_faults_draw_independently(self):
        alone = units_struck("discard=p:0.5,seed=4", [1] * 30)
        beside = struck("discard=p:0.5,delay-ack=p:0.5:1s,seed=4", [1] * 30)
        assert [n for n, names in enumerate(beside, 1) if "discard" in names] == alone


class TestTogether:
    def test_a_data_fault_excludes_connection_faults(self):
        spec = ",".join(f"{name}=every:1" for name in (*THERE, *HERE)) + ",keepalive=every:1"
        assert struck(spec, [1]) == [["discard", "keepalive"]]

    def test_only_one_connection_fault_strikes_a_unit(self):
        assert struck(",".join(f"{name}=every:1" for name in HERE), [1]) == [["cut-before-write"]]

    def test_an_excluded_fault_does_not_count_in_max(self):
        spec = "discard=every:2:max:1,cut-before-ack=every:2:max:1"
        assert struck(spec, [1] * 4) == [[], ["discard"], [], ["cut-before-ack"]]

    def test_the_partner_of_a_swap_gets_only_ack_faults(self):
        faults = Faults("swap=every:1,cut-before-ack=every:1,keepalive=every:1")
        assert faults.plan(1).data is not None
        paired = faults.plan(1, paired=True)
        assert (paired.data, paired.connection) == (None, None)
        assert paired.keepalive is not None

    def test_a_withdrawn_fault_may_strike_again(self):
        faults = Faults("corrupt=every:1:max:1")
        act = faults.plan(1).data
        assert act is not None
        assert faults.done == {"corrupt": 1}
        faults.withdraw(act)
        assert faults.done == {"corrupt": 0}
        assert faults.plan(1).data is not None
        assert faults.plan(1).data is None


class TestFaultLog:
    def test_the_fault_log_has_a_line_for_each_fault(self, tmp_path):
        fault_log = FaultLog(tmp_path / "w")
        fault_log.write("discard", ["a", "b"])
        fault_log.write("add", ["c"])
        fault_log.close()
        fault_log.close()
        lines = [json.loads(line) for line in (tmp_path / "w").read_text().splitlines()]
        assert lines == [{"fault": "discard", "ids": ["a", "b"]}, {"fault": "add", "ids": ["c"]}]
        assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o600

    def test_the_fault_log_must_be_outside_the_capture(self, tmp_path):
        (tmp_path / "capture").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "capture")
        for path in ("capture/w", "capture/sub/../w", "link/w"):
            with pytest.raises(ConfigError, match="outside the capture"):
                FaultLog(tmp_path / path, tmp_path / "capture")
        FaultLog(tmp_path / "capture.w", tmp_path / "capture").close()

    def test_an_impossible_path_is_refused(self, tmp_path):
        with pytest.raises(LedgerError, match=r"fault_log: .*No such file"):
            FaultLog(tmp_path / "none" / "w")
