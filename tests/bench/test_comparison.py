import subprocess
import sys

import pytest

from bench.comparison import Goal, Run, Sample, alternate, ratio, steady_run, summarise, watch
from bench.processes import CpuMeter, tree_usage


def test_speed_and_cpu_time_are_those_between_the_first_sample_and_the_last():
    samples = [Sample(10.0, 1_000, 2.0), Sample(11.0, 3_000, 2.5), Sample(12.0, 5_000, 3.0)]
    assert steady_run(samples) == Run(messages_per_second=2_000.0, cpu_us_per_message=250.0)


def test_the_last_commit_of_who_waits_for_more_is_left_out():
    samples = [Sample(0.0, 100, 0.0), Sample(1.0, 1_100, 0.001), Sample(9.0, 1_200, 0.5)]
    assert steady_run(samples, has_linger=True) == Run(messages_per_second=1_000.0, cpu_us_per_message=1.0)


def test_a_drain_that_is_over_at_once_says_so():
    with pytest.raises(AssertionError, match="raise the number"):
        steady_run([Sample(0.0, 1, 0.0), Sample(1.0, 2, 0.0)])


def test_contenders_take_turns_each_for_its_own_number_of_rounds(capsys):
    order = []

    def contender(name):
        return lambda: order.append(name) or Run(1.0, 1.0)

    runs = alternate({"limit": contender("limit"), "beam": contender("beam")}, {"limit": 3, "beam": 1})
    assert order == ["limit", "beam", "limit", "limit"]
    assert {name: len(found) for name, found in runs.items()} == {"limit": 3, "beam": 1}
    assert capsys.readouterr().out.count("beam") == 1


def test_a_ratio_is_the_median_over_rounds_and_not_a_quotient_of_medians():
    runs = {"refeed": [Run(10, 1), Run(20, 1), Run(90, 1)], "limit": [Run(20, 1), Run(25, 1), Run(100, 1)]}
    assert ratio(runs, "limit") == 0.8
    assert ratio(runs, "beam") is None


def test_a_result_holds_medians_ratios_and_which_goals_are_met():
    runs = {"refeed": [Run(70, 8), Run(80, 10)], "limit": [Run(100, 5), Run(100, 5)], "script": [Run(10, 60)]}
    result = summarise("backup", runs, ratios={"limit": 0.7, "script": 8.0, "beam": 50.0}, cpu_us=9.0)
    assert (result["refeed"], result["limit"], result["script"]) == (75, 100, 10)
    assert result["cpu_us_per_message"] == {"refeed": 9, "limit": 5, "script": 60}
    assert [(goal["what"], goal["met"]) for goal in result["goals"]] == [
        ("refeed / limit", True),
        ("refeed / script", False),
        ("refeed / beam", None),
        ("CPU us a message", True),
    ]


def test_a_goal_may_be_a_least_or_a_most():
    assert Goal("x", 2.0).judge(2.0)["met"]
    assert Goal("x", 2.0, is_most=True).judge(2.1) == {"what": "x", "value": 2.1, "goal": "<= 2", "met": False}


def test_a_watch_ends_with_the_last_message_and_skips_looks_that_saw_nothing_new():
    counts = iter([0, 5, 5, 9])
    samples = watch(lambda: next(counts), 9, list, lambda: None)
    assert [sample.messages for sample in samples] == [5, 9]


def test_cpu_time_and_memory_are_those_of_a_process_and_all_below_it():
    work = "import subprocess, sys; sum(range(3_000_000)); print(1, flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        meter = CpuMeter()
        used = meter.read_seconds([process.pid])
        assert used > 0.02
        found = tree_usage([process.pid])
        assert len(found) == 2
        assert all(0 < usage.pss_bytes <= usage.rss_bytes for usage in found)
        process.stdin.close()
    assert meter.read_seconds([process.pid]) == used
    assert CpuMeter().read_seconds([process.pid]) == 0
