"""The comparison of a plan with a service: what is alike has no error, and what differs shows."""

import pytest
from tests.fleet.build import profile
from tools.held_out import report
from tools.held_out.live import LiveRun, served_of
from tools.held_out.loads import (
    LAYOUTS,
    HeldOutLoad,
    held_out,
    mix_of,
    planned,
    planned_verdict,
    verdict_of,
)
from tools.held_out.recording import Recording

from baton.dev.bench.client import RequestOutcome
from baton.dev.bench.workload import TraceRow
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.planning.judging import is_met


@pytest.fixture(scope="module")
def load():
    rows = mix_of("mixed", rate=4.0, count=40).rows(0)
    return HeldOutLoad(
        mix="mixed", fraction=1.0, rate=4.0, slos={"ttft": 200.0, "tpot": 20.0}, rows=tuple(rows)
    )


def slower(served, factor):
    return tuple(
        ServedRequest(
            at=0,
            prompt_tokens=one.prompt_tokens,
            asked=one.asked,
            first=round(factor * one.ttft_us),
            last=round(factor * (one.last - one.at)),
            tokens=one.tokens,
        )
        for one in served
    )


def runs(plans, factors):
    return {
        name: [
            LiveRun(
                served=slower(plans[name].served, f),
                late_ms=0.0,
                seconds=10.0,
                cores={},
                pace={"one": f, "other": f + 0.2},
            )
            for f in factors
        ]
        for name in LAYOUTS
    }


def test_loads_are_fractions_of_what_two_workers_carry():
    low, most, high = held_out(profile(), ["long prompts"], [0.3, 1.0, 3.0], seconds=15, tried=40)
    assert low.rate == pytest.approx(0.3 * most.rate)
    assert high.rate == pytest.approx(3 * most.rate)
    assert len(most.rows) == round(15 * most.rate)
    assert {576 <= row.input_tokens <= 960 for row in most.rows} == {True}

    def best(one):
        divided = (planned(profile(), one.rows, name, cores=None).served for name in LAYOUTS)
        return max(sum(is_met(s, one.slos) for s in served) / len(served) for served in divided)

    assert best(low) > 0.95
    assert best(high) < 0.85


def test_a_service_that_is_as_planned_has_no_error(load):
    plans = {name: planned(profile(), load.rows, name, cores=2) for name in LAYOUTS}
    row = report.compared(
        load, plans, plans, runs(plans, [1.0, 1.0]), advice="noise", advice_apart="split"
    )
    found = report.document([row], profile(), {})["errors"]
    assert found["attained_error"] == {"median": 0, "worst": 0}
    assert found["ttft_error"]["worst"] == pytest.approx(0, abs=1e-4)
    assert (found["tpot_within_10_percent"], found["verdicts"]["alike"]) == (2, 1)
    assert found["ttft_between_rounds"] == pytest.approx(0)


def test_a_slower_service_shows_as_a_ratio_below_one_and_rounds_as_their_spread(load):
    plans = {name: planned(profile(), load.rows, name, cores=2) for name in LAYOUTS}
    row = report.compared(
        load, plans, plans, runs(plans, [1.9, 2.1]), advice="noise", advice_apart="split"
    )
    for cell in row["layouts"].values():
        assert 0.45 < cell["planned"]["ttft"] / cell["measured"]["ttft"] < 0.55
        assert cell["planned"]["attained"] >= cell["measured"]["attained"]
    found = report.document([row], profile(), {})
    assert found["errors"]["ttft_between_rounds"] == pytest.approx(2.1 / 1.9 - 1, abs=0.01)
    assert 0.45 < found["errors"]["tpot_error"]["median"] < 0.55
    text = report.table(found)
    assert "| mixed |" in text
    assert "between the rounds 11 %" in text
    assert "one 2.00 (1.90 to 2.10), other 2.20 (2.10 to 2.30)" in text
    assert found["pace"] == pytest.approx({"median": 2.1, "p10": 1.9, "p90": 2.3})


def test_one_round_has_no_spread(load):
    plans = {name: planned(profile(), load.rows, name, cores=2) for name in LAYOUTS}
    row = report.compared(
        load, plans, plans, runs(plans, [1.0]), advice="noise", advice_apart="noise"
    )
    found = report.document([row], profile(), {})
    assert found["errors"]["ttft_between_rounds"] is None
    text = report.table(found)
    assert "between the rounds" not in text
    assert "As if" not in text, "both plans are one"


def test_an_outcome_has_the_times_of_its_tokens():
    row = TraceRow(number=0, at_s=0.0, input_tokens=9, output_tokens=3)
    fine = RequestOutcome(due=1.0, sent=2.0, ended=4.0, times=(2.5, 3.0, 3.5), output_tokens=3)
    one = served_of(row, fine)
    assert (one.ttft_us, one.tpot_us, one.failure) == (500_000, 500_000, "")
    refused = served_of(row, RequestOutcome(due=1.0, sent=2.0, ended=2.1, failure="HTTP 429"))
    assert not is_met(refused, {"ttft": 1e9})


def test_the_pace_is_that_of_all_steps_since_then(tmp_path):
    recording = Recording(profile=tmp_path / "p.json", directory=tmp_path)
    assert recording.pace("prefill-0", 0.0) is None
    (tmp_path / "prefill-0.jsonl").write_text(
        "\n".join(
            f'{{"began": {began}, "took": {took}, "planned": {planned}}}'
            for began, took, planned in [(1.0, 9.0, 1.0), (5.0, 0.3, 0.1), (6.0, 0.9, 0.5)]
        )
    )
    assert recording.pace("prefill-0", 5.0) == pytest.approx(1.2 / 0.6)
    assert recording.pace("prefill-0", 7.0) is None


def round_of(met):
    """A round in which so many of ten requests meet an SLO of 100 ms to the first token."""
    each = [50_000] * met + [500_000] * (10 - met)
    served = tuple(
        ServedRequest(at=0, prompt_tokens=9, asked=2, first=us, last=us + 1, tokens=2, failure="")
        for us in each
    )
    return LiveRun(served=served, late_ms=0.0, seconds=1.0, cores={}, pace={})


@pytest.mark.parametrize(
    ("split", "unified", "expected"),
    [
        ((10, 9), (1, 2), "split"),
        ((1, 0), (9, 8), "unified"),
        ((5, 5), (5, 5), "noise"),
        ((10, 2), (3, 0), "noise"),  # one round with split workers was worse than one without
    ],
)
def test_a_layout_is_better_beyond_the_noise_if_every_round_says_so(split, unified, expected):
    rounds = {"split": [round_of(n) for n in split], "unified": [round_of(n) for n in unified]}
    assert report.measured_verdict(rounds, {"ttft": 100.0}) == expected


def test_a_plan_is_right_where_the_service_tells_one_layout_from_the_other():
    said = [("split", "split"), ("noise", "split"), ("unified", "split"), ("split", "noise")]
    rows = [{"verdict": {"planned": p, "planned_apart": "noise", "measured": m}} for p, m in said]
    found = report.verdicts(rows, "planned")
    assert found == {"loads": 4, "alike": 1, "outside_noise": 3, "right": 1, "opposite": 1}
    apart = report.verdicts(rows, "planned_apart")
    assert (apart["alike"], apart["right"], apart["opposite"]) == (1, 0, 0)


def test_the_verdict_of_a_plan_is_of_many_draws_as_one_leaves_it_to_chance():
    rows = tuple(mix_of("mixed", rate=8.0, count=12).rows(0))
    slos = {"ttft": 100.0, "tpot": 20.0}
    load = HeldOutLoad(mix="mixed", fraction=1.0, rate=8.0, slos=slos, rows=rows)
    one = {name: planned(profile(), rows, name, cores=2).served for name in LAYOUTS}
    assert verdict_of(one, slos) == "noise"
    assert planned_verdict(profile(), load, cores=2) == "unified"
