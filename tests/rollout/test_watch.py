from dataclasses import asdict, replace

import pytest

from rollout.watch import WatchFigures, WatchVerdict, judge

BEFORE = WatchFigures(60.0, 6000.0, 6.0, 0.0, 2.0)
AFTER = WatchFigures(120.0, 12000.0, 12.0, 0.0, 2.0)


def judged(before=BEFORE, *, is_over=True, **after):
    return judge(before, replace(AFTER, **after), is_over=is_over, min_messages=100)


def test_figures_as_before_pass_at_the_end_and_not_earlier():
    assert judged() == (
        WatchVerdict.PASSED,
        "12,000 messages in 120 s. All compared figures are within their limits.",
    )
    assert judged(is_over=False) == (WatchVerdict.OPEN, "")


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({"dead_letters": 160.0}, "1.3% of the messages became dead letters. Before the update it was 0.1%."),
        ({"faults": 72.0}, "There were 0.60 faults per second. Before the update it was 0.00."),
    ],
)
def test_dead_letters_and_faults_fail_as_soon_as_enough_has_come(after, why):
    assert judged(is_over=False, **after) == (WatchVerdict.FAILED, why)
    assert judged(is_over=False, messages=99.0, **after)[0] is WatchVerdict.OPEN


def test_some_more_dead_letters_and_faults_are_borne():
    assert judged(dead_letters=140.0)[0] is WatchVerdict.PASSED
    assert judged(faults=59.0)[0] is WatchVerdict.PASSED


def test_a_lag_that_grows_fails_at_the_end():
    assert judged(lag_seconds=64.0)[0] is WatchVerdict.PASSED
    assert judged(lag_seconds=65.0) == (
        WatchVerdict.FAILED,
        "The oldest message has waited for 65 s. Before the update it was 2 s.",
    )
    assert judged(lag_seconds=65.0, is_over=False)[0] is WatchVerdict.OPEN


def test_a_low_rate_fails_only_while_the_lag_grows():
    assert judged(messages=5000.0)[0] is WatchVerdict.PASSED, "the producers send less"
    verdict, why = judged(messages=5000.0, lag_seconds=13.0)
    assert (verdict, why) == (
        WatchVerdict.FAILED,
        "The lag grows, and the rate fell from 100.0 to 41.7 messages per second.",
    )


@pytest.mark.parametrize("name", ["messages", "dead_letters", "faults", "lag_seconds"])
def test_a_figure_that_is_not_known_of_one_of_them_proves_nothing(name):
    verdict, why = judged(replace(BEFORE, **{name: None}))
    assert (verdict, why) == (
        WatchVerdict.INCONCLUSIVE,
        f"These figures are unknown for one of the releases: {name}.",
    )
    assert judged(**{name: None})[0] is WatchVerdict.INCONCLUSIVE


def test_a_lag_that_nobody_measures_is_not_compared():
    unmeasured = replace(BEFORE, lag_seconds=None)
    verdict, why = judged(unmeasured, lag_seconds=None)
    assert (verdict, why.endswith("The lag is unknown, so it was not compared.")) == (WatchVerdict.PASSED, True)
    assert judged(unmeasured, lag_seconds=None, faults=72.0)[0] is WatchVerdict.FAILED
    assert judged(unmeasured, lag_seconds=None, messages=99.0)[0] is WatchVerdict.INCONCLUSIVE
    both = {"faults": None, "lag_seconds": None}
    assert judged(replace(BEFORE, **both), **both)[0] is WatchVerdict.INCONCLUSIVE, (
        "every stream counts its faults"
    )


def test_too_few_messages_or_no_old_process_prove_nothing():
    verdict, why = judged(messages=99.0, dead_letters=0.0)
    assert verdict is WatchVerdict.INCONCLUSIVE
    assert why == "99 messages arrived during the watch. At least 100 are needed."
    assert judged(None)[0] is WatchVerdict.INCONCLUSIVE


def test_figures_are_read_from_a_status():
    rates = {"messages": 100.0, "dead_letters": 0.1, "faults": 0.0, "commits": 1.0}
    assert WatchFigures.of_last_minute({"rates": rates, "rates_over_seconds": 60.0}, 2.0) == BEFORE
    assert WatchFigures.of_last_minute({}, None).missing == [
        "seconds",
        "messages",
        "dead_letters",
        "faults",
        "lag_seconds",
    ]
    totals = {"messages": 12000, "dead_letters": 12, "faults": 0}
    assert WatchFigures.of_process({"totals": totals}, 120.0, 2.0) == AFTER
    assert WatchFigures.before({"before": asdict(AFTER)}) == AFTER
    assert WatchFigures(60.0, 0.0, 0.0, 0.0, 0.0).dead_share == 0.0


def test_what_pubsub_refused_of_a_kinesis_stream_counts_as_dead_letters():
    totals = {"messages": 90, "records": 100, "commits": 9, "refused": 10, "throttled": 0, "faults": 1}
    rates = {name: count / 60 for name, count in totals.items()}
    status = {"totals": totals, "rates": rates, "rates_over_seconds": 60.0}
    for found in (WatchFigures.of_last_minute(status, 1.0), WatchFigures.of_process(status, 60.0, 1.0)):
        assert found.missing == []
        assert found.dead_letters == pytest.approx(10)


def test_a_process_that_ran_before_its_watch_began_is_judged_by_all_of_its_time():
    totals = {"messages": 60_000, "dead_letters": 0, "faults": 15}
    status = {"totals": totals, "at": 1300.0, "first_commit_at": 1000.0}
    found = WatchFigures.of_process(status, 1.0, 2.0)
    assert found.rate(found.faults) == pytest.approx(0.05), "not 15 in the second since somebody looked"
    assert judge(BEFORE, found, is_over=False, min_messages=100) == (WatchVerdict.OPEN, "")
    assert WatchFigures.of_process(status, 600.0, 2.0).seconds == 600.0
