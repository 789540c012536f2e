import pytest

from model.failpoint import FAILPOINTS
from tests.chaos.run import WAREHOUSES, Tally
from tests.chaos.schedule import AGENT_PLACES, draw, draw_under_agents, parts_of, places_of


def test_a_seed_gives_the_same_schedule_again_and_another_one_another():
    first = draw(3, 40, "lake", set())
    assert first == draw(3, 40, "lake", set())
    assert first.harms != draw(4, 40, "lake", set()).harms


def test_both_warehouses_together_pass_every_failpoint_that_is_not_an_agent_s():
    expected = [name for name in FAILPOINTS if not name.startswith(AGENT_PLACES)]
    assert Tally(WAREHOUSES).places == set(expected)
    assert Tally(WAREHOUSES).missed == expected


def planned(seeds: range, kills: int, warehouses: tuple[str, ...], *, enough: int) -> set[tuple[str, str, str]]:
    """Return the failpoints (warehouse, part, name) that a call comes to before it has had ``enough`` kills."""
    found: set[tuple[str, str, str]] = set()
    done = 0
    for seed in seeds:
        for warehouse in warehouses:
            hit = {(part, name) for where, part, name in found if where == warehouse}
            for part, harms in draw(seed, kills, warehouse, hit).harms.items():
                done += len(harms)
                names = [what for kind, _, what in (harm.partition(":") for harm in harms) if kind == "failpoint"]
                found |= {(warehouse, part, name) for name in names}
        if done >= enough:
            return found
    raise AssertionError(f"{done} kills only")


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 11, 21])
def test_three_runs_come_to_every_failpoint_of_every_part_on_both_warehouses(seed):
    found = planned(range(seed, seed + 3), 40, WAREHOUSES, enough=200)
    assert found == {
        (each, part, name) for each in WAREHOUSES for part in parts_of(each) for name in places_of(part, each)
    }


@pytest.mark.parametrize("warehouses", [WAREHOUSES, ("lake",), ("bigquery",)])
@pytest.mark.parametrize("kills", [5, 10, 30, 200])
def test_two_hundred_kills_come_to_every_failpoint_however_they_are_shared_out(kills, warehouses):
    found = planned(range(100), kills, warehouses, enough=200)
    assert not Tally(warehouses, hit=found).missed


def test_no_harm_comes_twice_before_every_other_one_of_its_part_came():
    harms = draw(1, 200, "bigquery", set()).harms["backup"]
    failpoints = [harm for harm in harms if harm.startswith("failpoint:")]
    others = [harm for harm in harms if not harm.startswith("failpoint:")]
    places = places_of("backup", "bigquery")
    # The missing ones first, which are all of them here, then all of them again.
    assert len(set(failpoints[: len(places)])) == len(places)
    assert len(set(others[:5])) == 5


def test_a_failpoint_that_was_missed_counts_in_a_call_of_two_hundred_kills_or_more():
    everything = {("lake", part, name) for part in parts_of("lake") for name in places_of(part, "lake")}
    most = {place for place in everything if place[2] != "compact.after"}
    assert Tally(("lake",), kills=200, published=1, hit=everything).is_clean
    missing = Tally(("lake",), kills=200, published=1, hit=most)
    assert not missing.is_clean
    assert missing.as_json()["missed"] == ["compact.after"]
    assert Tally(("lake",), kills=199, published=1, hit=most).is_clean, "a short call only names it"


@pytest.mark.parametrize("warehouse", WAREHOUSES)
def test_a_run_of_forty_kills_has_an_outage_longer_than_ids_are_known(warehouse):
    for seed in range(20):
        assert "outage:server" in draw(seed, 40, warehouse, set()).harms["server"]


def split(harms):
    names = [harm.partition(":")[2] for harm in harms if harm.startswith("failpoint:")]
    return names, [harm for harm in harms if not harm.startswith("failpoint:")]


@pytest.mark.parametrize("warehouse", WAREHOUSES)
def test_each_run_under_agents_moves_puts_back_updates_and_rolls_out_and_comes_to_other_harms_in_turn(warehouse):
    rollouts = {name for name in FAILPOINTS if name.startswith(("shadow.", "upload."))}
    for seed in range(5):
        short = draw_under_agents(seed, 40, warehouse, set())
        assert short.has_agents
        assert not {"backup", "pipeline"} & short.harms.keys()
        names, others = split(short.harms["agents"])
        assert (len(names), set(names) <= rollouts) == (3, True)
        assert set(others) == {"move:home", "rollback:source", "kill:update", "kill:rollout"}
        names, others = split(draw_under_agents(seed, 200, warehouse, set()).harms["agents"])
        assert set(names[: len(rollouts)]) == rollouts
        assert len(set(others[4:])) == len(others[4:])


@pytest.mark.parametrize("warehouse", WAREHOUSES)
def test_runs_under_agents_come_to_every_place_that_agents_and_the_service_pass(warehouse):
    hit: set[tuple[str, str]] = set()
    for seed in range(20):
        names, _ = split(draw_under_agents(seed, 40, warehouse, hit).harms["agents"])
        hit |= {("agents", name) for name in names}
    assert {name for _, name in hit} == {name for name in FAILPOINTS if name.startswith(AGENT_PLACES)}
