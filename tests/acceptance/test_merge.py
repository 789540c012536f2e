"""Three versions of 10,000 entities in random order, duplicates and deletes, a part of them backfilled twice."""

import random
from datetime import timedelta

from tests.reporting.shops import START, LakeShop, Row, order

ENTITIES = 10_000
VERSIONS = 3
FILES = 4
DAYS = 6
BACKFILLED = range(2_000, 4_000)
HOUR = timedelta(hours=1)


def make_versions(dice: random.Random) -> list[Row]:
    """Every version of every entity: some change their day, some are removed at last, some of these come back."""
    made = []
    for number in range(ENTITIES):
        for version in range(VERSIONS):
            is_removed = (version == 1 and number % 7 == 0) or (version == 2 and number % 5 == 0)
            made.append(
                order(
                    number,
                    day=1 + (number + (version if number % 3 == 0 else 0)) % DAYS,
                    minute=version,
                    note=f'{{"version": {version}}}',
                    message=f"{number}-{version}",
                    _operation="REMOVE" if is_removed else "MODIFY" if version else "INSERT",
                )
            )
    return made + dice.sample(made, len(made) // 10)


def test_reporting_is_what_plain_python_says(tmp_path):
    dice = random.Random(6)
    shop = LakeShop(lake=tmp_path)
    versions = make_versions(dice)
    dice.shuffle(versions)
    backfill = [{**row, "_backfill_id": "bf_1"} for row in versions if row["number"] in BACKFILLED]
    parts = [versions[place::FILES] for place in range(FILES)]
    parts.insert(FILES // 2, backfill)
    parts.append(dice.sample(backfill, len(backfill)))
    moment = START
    for part in parts:
        shop.stage(part, moment)
        moment += 2 * HOUR
        # Some nights have two merges, some have none, the first ones never.
        for _ in range(dice.randrange(3) if moment > START + 4 * HOUR else 0):
            shop.merge(moment)
            moment += HOUR / 2
    assert len(shop.view(moment)) == len(shop.visible())
    # From the middle, from the beginning, and again.
    for since in (START + 5 * HOUR, START, None):
        moment += HOUR
        shop.merge(moment, since=since)
    found, wanted = shop.reporting(), shop.oracle()
    assert len(found) == ENTITIES
    assert {key for key in wanted if found[key] != wanted[key]} == set()
    assert shop.view(moment) == shop.visible()
    assert 0 < len(shop.visible()) < ENTITIES
