from backfill.plan.options import RunOptions
from backfill.plan.request import YieldTo


def test_what_a_specification_says_is_what_runs() -> None:
    run = {
        "ordering": "by_key",
        "attributes": {"a": "1"},
        "yield_to": {"subscription": "live", "max_oldest_unacked_seconds": 30},
        "max_failed": 5,
        "max_rows": 100,
        "approval_rows": 50,
        "only": "missing",
        "rows": [3, 4],
    }
    options = RunOptions.from_specification({"run": run})
    assert options.by_key
    assert options.yield_to == YieldTo("live", 30)
    assert (options.attributes, options.max_failed, options.max_rows) == ({"a": "1"}, 5, 100)
    assert (options.approval_rows, options.only, options.rows) == (50, "missing", (3, 4))
    assert (
        RunOptions.from_specification({"run": {"yield_to": None, "rows": None, "max_failed": None}})
        == RunOptions()
    )
