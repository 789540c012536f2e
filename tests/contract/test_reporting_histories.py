"""Any history of versions, replays and merges, by one suite on both warehouses."""

import random
from datetime import date, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reporting.shops import START, BigQueryShop, LakeShop, order, repaired
from tests.worlds.tables import dataset_name

# A merge is a dozen jobs of a stand-in that runs them beside everything else on the machine.
pytestmark = pytest.mark.timeout(600)
HOUR = timedelta(hours=1)


VERSIONS = st.lists(
    st.builds(
        order,
        number=st.one_of(st.none(), st.integers(0, 4)),
        day=st.integers(1, 3),
        minute=st.integers(0, 4),
        message=st.integers(0, 9),
        shop=st.sampled_from(["se", "no", None]),
        changed_at=st.sampled_from([None, START, START + HOUR]),
        ordered_on=st.sampled_from([None, date(2026, 3, 1), date(2026, 3, 2)]),
        _operation=st.sampled_from(["INSERT", "MODIFY", "REMOVE"]),
    ),
    min_size=1,
    max_size=8,
)
# Of an earlier row, chosen by its place: what a replay through repaired code may have changed.
REPAIRS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.fixed_dictionaries(
            {
                "backfill": st.sampled_from(["bf_1", "bf_2"]),
                "_backfill_row": st.integers(0, 1),
                "_operation": st.sampled_from(["INSERT", "REMOVE"]),
            },
            optional={
                "number": st.one_of(st.none(), st.integers(0, 4)),
                "changed_at": st.sampled_from([None, START, START + HOUR]),
                "revision": st.sampled_from([None, 1]),
                "ordered_on": st.sampled_from([None, date(2026, 3, 1), date(2026, 3, 2)]),
            },
        ),
    ),
    max_size=4,
)
HISTORIES = st.lists(st.tuples(VERSIONS, REPAIRS, st.booleans()), min_size=1, max_size=4)
ANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
UNPLAYED = {"_backfill_id": None, "_backfill_row": None}


def check_history(shop, history, seed):
    moment = START
    for fresh, repairs, is_merged in history:
        earlier = [{k: v for k, v in row.items() if k != "ingest_time"} for row in shop.staged] or fresh
        versions = [*fresh, *(repaired(earlier[place % len(earlier)], **more) for place, more in repairs)]
        # Rows of one file have one ingest_time: equal versions of a key in it could not be told apart.
        distinct = {
            (shop.key_of({**UNPLAYED, **v}), shop.rank({"revision": None, **v, "ingest_time": moment})): v
            for v in versions
        }
        shuffled = list(distinct.values())
        random.Random(seed).shuffle(shuffled)
        shop.stage(shuffled, moment)
        if is_merged:
            shop.merge(moment + HOUR / 2)
        moment += 3 * HOUR
    assert shop.view(moment) == shop.visible()
    shop.merge(moment)
    assert shop.reporting() == shop.oracle()
    shop.merge(moment + HOUR)
    assert shop.reporting() == shop.oracle()


@settings(ANY, max_examples=15)
@given(history=HISTORIES, seed=st.integers(0, 99))
def test_any_history_merged_at_any_time_in_a_lake_is_what_the_oracle_says(tmp_path_factory, history, seed):
    check_history(LakeShop(lake=tmp_path_factory.mktemp("lake")), history, seed)


@pytest.mark.cloud
@settings(ANY, max_examples=4)
@given(history=HISTORIES, seed=st.integers(0, 99))
def test_any_history_merged_at_any_time_in_bigquery_is_what_the_oracle_says(shared_standin, history, seed):
    shop = BigQueryShop(dataset=dataset_name(), standin=shared_standin)
    try:
        check_history(shop, history, seed)
    finally:
        shop.warehouse.close()
