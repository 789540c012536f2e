from model.failpoint import FAILPOINTS
from tests.chaos.run import WAREHOUSES, Tally
from tests.chaos.schedule import draw, parts_of, places_of


def test_a_seed_gives_the_same_schedule_again_and_another_one_another():
    first = draw(3, 40, "lake", set(), can_skew=True)
    assert first == draw(3, 40, "lake", set(), can_skew=True)
    assert first.harms != draw(4, 40, "lake", set(), can_skew=True).harms


def test_both_warehouses_together_pass_every_failpoint_that_there_is():
    assert Tally(WAREHOUSES).places == set(FAILPOINTS)
    assert Tally(WAREHOUSES).missed == list(FAILPOINTS)


def test_two_hundred_kills_hit_every_failpoint_of_every_part():
    hit: set[tuple[str, str]] = set()
    kills = 0
    for seed in range(3):
        for warehouse in WAREHOUSES:
            schedule = draw(seed, 40, warehouse, hit, can_skew=False)
            for part, harms in schedule.harms.items():
                kills += len(harms)
                hit |= {(part, harm.partition(":")[2]) for harm in harms if harm.startswith("failpoint:")}
    assert kills >= 200
    everywhere = {(part, name) for each in WAREHOUSES for part in parts_of(each) for name in places_of(part, each)}
    assert {name for _, name in hit} == {name for _, name in everywhere}


def test_no_clock_is_skewed_where_it_can_t_be():
    def skews(*, can_skew: bool) -> bool:
        drawn = (draw(seed, 60, "lake", set(), can_skew=can_skew) for seed in range(5))
        return any(harm.startswith("clock:") for each in drawn for harms in each.harms.values() for harm in harms)

    assert skews(can_skew=True)
    assert not skews(can_skew=False)
