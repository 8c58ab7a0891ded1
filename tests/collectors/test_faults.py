"""The fault grammar: what it accepts, and when each fault strikes."""

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.collectors.faults import CONNECTION_FAULTS, DATA_FAULTS, NAMES, FaultLog, Faults
from logclient.errors import ConfigError, LedgerError

pytestmark = pytest.mark.unit

THERE = tuple(name for name in DATA_FAULTS if name in NAMES["lumberjack"])
HERE = tuple(name for name in CONNECTION_FAULTS if name in NAMES["lumberjack"])


def struck(spec: str, connections: list[int]) -> list[list[str]]:
    """The names of the faults that strike each unit, for units of these connections in this order."""
    faults = Faults(spec)
    return [[act.fault.name for act in faults.plan(c) if act is not None] for c in connections]


def when(spec: str, connections: list[int]) -> list[int]:
    """The units (from 1) that suffer anything."""
    return [n for n, names in enumerate(struck(spec, connections), 1) if names]


class TestGrammar:
    def test_the_example_of_the_design(self):
        faults = Faults("cut-before-ack=every:5,delay-ack=p:0.1:200ms,discard=every:7,seed=3")
        assert faults.seed == 3
        cut, delay, discard = faults.faults
        assert (cut.name, cut.every) == ("cut-before-ack", 5)
        assert (delay.name, delay.p, delay.value) == ("delay-ack", 0.1, 0.2)
        assert (discard.name, discard.every) == ("discard", 7)

    @pytest.mark.parametrize(("protocol", "name"), [(p, name) for p in NAMES for name in NAMES[p]])
    def test_every_fault_may_be_asked_for(self, protocol, name):
        value = ":1s" if name == "delay-ack" else ""
        (fault,) = Faults(f"{name}=every:5{value}:max:2:from:3:per-connection", protocol).faults
        assert (fault.every, fault.limit, fault.first, fault.per_connection) == (5, 2, 3, True)

    def test_what_only_another_protocol_has(self):
        for protocol, name in (
            ("lumberjack", "no-reply"),
            ("logjam", "keepalive"),
            ("logjam", "partial-ack"),
            ("logux", "partial-ack"),
            ("logux", "keepalive"),
        ):
            with pytest.raises(ConfigError, match=f"'{name}' is no fault"):
                Faults(f"{name}=every:1", protocol)

    def test_values(self):
        spec = "delay-ack=1.5s:every:2, keepalive=every:2:3,partial-ack=every:3:7,"
        spec += "swap=every:9:50ms,stall=p:1:alive"
        assert [f.value for f in Faults(spec).faults] == [1.5, 3, 7, 0.05, 1]

    @pytest.mark.parametrize("spec", ["", " ", ",", "seed=5"])
    def test_no_faults(self, spec):
        faults = Faults(spec)
        assert not faults
        assert not any(faults.plan(1))

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("disk-on-fire=every:1", "'disk-on-fire' is no fault"),
            ("seed=x", "seed: 'x' must be a whole number of at least 0"),
            ("seed=-1", "seed"),
            ("seed", "seed"),
            ("discard", "discard must say when"),
            ("discard=", "discard must say when"),
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
            ("delay-ack=every:2", "delay-ack must say how long"),
            ("delay-ack=every:2:200", "delay-ack: '200' must be a time such as 200ms"),
            ("delay-ack=every:2:1h", "delay-ack: '1h' must be a time"),
            ("partial-ack=every:2:0", "partial-ack: '0' must be a whole number of at least 1"),
            ("keepalive=every:2:many", "keepalive: 'many'"),
            ("stall=every:2:dead", "stall: 'dead' is none of its terms"),
            ("stall:alive=every:9", "terms stand behind the =, as in stall=every:5:alive"),
            ("swap=every:2:", "swap: '' must be a time"),
        ],
    )
    def test_what_is_wrong_is_named(self, spec, words):
        with pytest.raises(ConfigError) as caught:
            Faults(spec)
        assert str(caught.value).startswith("faults: ")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    @given(st.text(alphabet="discardevrymaxp:=,0159.ms-", max_size=40))
    def test_any_text_is_faults_or_an_error(self, spec):
        try:
            Faults(spec).plan(1)
        except ConfigError:
            pass


class TestWhen:
    def test_every(self):
        assert when("discard=every:3", [1] * 10) == [3, 6, 9]

    def test_from_is_the_first_that_counts(self):
        assert when("discard=from:4", [1] * 6) == [4, 5, 6]
        assert when("discard=every:3:from:4", [1] * 10) == [6, 9]

    def test_max(self):
        assert when("discard=every:2:max:2", [1] * 10) == [2, 4]

    def test_units_of_all_connections_count_together(self):
        assert when("discard=every:3", [1, 2, 1, 2, 3, 1]) == [3, 6]

    def test_or_of_each_by_itself(self):
        units = [1, 2, 1, 2, 1, 2, 2]
        assert when("discard=every:2:per-connection", units) == [3, 4, 7]
        assert when("discard=every:2:per-connection:max:1", units) == [3, 4]
        assert when("discard=from:3:per-connection", units) == [5, 6, 7]

    def test_probability(self):
        hits = len(when("discard=p:0.25,seed=1", [1] * 4000))
        assert 800 < hits < 1200
        assert when("discard=p:1", [1] * 5) == [1, 2, 3, 4, 5]

    @given(
        seed=st.integers(0, 10**9),
        units=st.lists(st.integers(1, 3), max_size=60),
        scope=st.sampled_from(["", ":per-connection"]),
    )
    def test_same_seed_and_input_same_faults(self, seed, units, scope):
        spec = f"cut-before-ack=p:0.3{scope},delay-ack=p:0.3{scope}:1s,corrupt=every:3{scope},seed={seed}"
        first, second = Faults(spec), Faults(spec)
        for connection in units:
            one, two = first.plan(connection), second.plan(connection)
            assert one == two
            if one.data is not None and two.data is not None:
                assert one.data.random.random() == two.data.random.random()

    def test_another_seed_other_faults(self):
        assert when("discard=p:0.5,seed=1", [1] * 64) != when("discard=p:0.5,seed=2", [1] * 64)

    def test_per_connection_does_not_depend_on_the_others(self):
        alone = when("discard=p:0.5:per-connection,seed=4", [1] * 20)
        among = struck("discard=p:0.5:per-connection,seed=4", [1, 2, 3] * 20)[::3]
        assert [n for n, names in enumerate(among, 1) if names] == alone

    def test_a_fault_does_not_disturb_the_draws_of_another(self):
        alone = when("discard=p:0.5,seed=4", [1] * 30)
        beside = struck("discard=p:0.5,delay-ack=p:0.5:1s,seed=4", [1] * 30)
        assert [n for n, names in enumerate(beside, 1) if "discard" in names] == alone


class TestTogether:
    def test_one_lie_and_no_end(self):
        spec = ",".join(f"{name}=every:1" for name in (*THERE, *HERE)) + ",keepalive=every:1"
        assert struck(spec, [1]) == [["discard", "keepalive"]]

    def test_one_end(self):
        assert struck(",".join(f"{name}=every:1" for name in HERE), [1]) == [["cut-before-write"]]

    def test_what_was_put_aside_does_not_count_in_max(self):
        spec = "discard=every:2:max:1,cut-before-ack=every:2:max:1"
        assert struck(spec, [1] * 4) == [[], ["discard"], [], ["cut-before-ack"]]

    def test_nothing_but_manners_for_the_second_of_a_swap(self):
        faults = Faults("swap=every:1,cut-before-ack=every:1,keepalive=every:1")
        assert faults.plan(1).data is not None
        paired = faults.plan(1, paired=True)
        assert (paired.data, paired.connection) == (None, None)
        assert paired.keepalive is not None

    def test_what_could_not_be_done_is_given_back(self):
        faults = Faults("corrupt=every:1:max:1")
        act = faults.plan(1).data
        assert act is not None
        assert faults.done == {"corrupt": 1}
        faults.withdraw(act)
        assert faults.done == {"corrupt": 0}
        assert faults.plan(1).data is not None
        assert faults.plan(1).data is None


class TestFaultLog:
    def test_lines(self, tmp_path):
        fault_log = FaultLog(tmp_path / "w")
        fault_log.write("discard", ["a", "b"])
        fault_log.write("add", ["c"])
        fault_log.close()
        fault_log.close()
        lines = [json.loads(line) for line in (tmp_path / "w").read_text().splitlines()]
        assert lines == [{"fault": "discard", "ids": ["a", "b"]}, {"fault": "add", "ids": ["c"]}]
        assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o600

    def test_not_where_the_verdict_could_see_it(self, tmp_path):
        (tmp_path / "capture").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "capture")
        for path in ("capture/w", "capture/sub/../w", "link/w"):
            with pytest.raises(ConfigError, match="outside the capture"):
                FaultLog(tmp_path / path, tmp_path / "capture")
        FaultLog(tmp_path / "capture.w", tmp_path / "capture").close()

    def test_a_path_that_cannot_be(self, tmp_path):
        with pytest.raises(LedgerError, match=r"fault_log: .*No such file"):
            FaultLog(tmp_path / "none" / "w")
