"""The example of docs/cost.md, computed again from the page's own assumptions and prices."""

import re
from collections import Counter
from pathlib import Path

import pytest

from backfill.plan import price
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import SubscriptionInfo
from tests.connectors.lake.bucket_archive import append
from tests.worlds.bucket import Proxy
from warehouse.figures import SELECTION_KEPT_DAYS, QueryFigures

PAGE = (Path(__file__).parents[1] / "docs" / "cost.md").read_text()
GIB, TIB = 2**30, 2**40
DAY = 86_400


def numbers(heading: str) -> dict[str, float]:
    """The first number of each row of the table under a heading, by the row's first cell."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,.]+)[^|]* \|", section, re.MULTILINE)
    return {name.strip(): float(number.replace(",", "")) for name, number in rows}


def lines(heading: str) -> dict[str, tuple[float, float]]:
    """The quantity and the US dollars of each row of an example's table."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,.]+) [^|]+ \| [^|]+ \| ([\d,.]+) \|", section, re.MULTILINE)
    return {name.strip(): (float(q.replace(",", "")), float(usd.replace(",", ""))) for name, q, usd in rows}


ASSUMED = numbers("The example")
PRICES = numbers("Prices")
EACH_MONTH = lines("What a month costs")
A_REPLAY = lines("What a replay costs")


def a_month() -> dict[str, tuple[float, float]]:
    seconds = ASSUMED["days of a month"] * DAY
    messages = ASSUMED["messages a second"] * seconds
    volume = messages * ASSUMED["bytes of a message in Pub/Sub"] / TIB
    archived = messages * ASSUMED["bytes of a message's row in the archive"] / GIB
    staged = messages * ASSUMED["bytes of a message's row in staging"] / GIB
    noted = 2 * messages * ASSUMED["bytes of a message's id in an attempt record"] / GIB
    throughput = PRICES["Pub/Sub throughput"]
    write, storage = PRICES["Storage Write API"], PRICES["active logical storage"]
    free = PRICES["Storage Write API, free a month"] * 1024
    written = archived + staged + noted - free
    merged = ASSUMED["days of a month"] * ASSUMED["TiB that the merge of one night reads"]
    return {
        "delivery to the backup subscription": (volume, volume * throughput),
        "delivery to the pipeline's subscription": (volume, volume * throughput),
        "Storage Write: archive, staging and attempt records, less the free 2 TiB": (written, written * write),
        "storage of one month of the archive, for each month that it is kept": (archived, archived * storage),
        "storage of one month of staging, for each month that it is kept": (staged, staged * storage),
        "queries of the nightly merges": (merged, merged * PRICES["on-demand queries"]),
    }


def a_replay() -> dict[str, tuple[float, float]]:
    day = ASSUMED["messages a second"] * DAY
    messages = day * ASSUMED["share of the replayed topic"]
    size = messages * ASSUMED["bytes of a message's row in the archive"] / TIB
    volume = messages * ASSUMED["bytes of a replayed message in Pub/Sub"] / TIB
    throughput = PRICES["Pub/Sub throughput"]
    days = ASSUMED["days that a selection is kept"]
    kept = size * 1024 * days / ASSUMED["days of a month"]
    staged = messages * ASSUMED["bytes of a message's row in staging"] / GIB
    dcu = PRICES["Dataproc DCUs of a batch"] * ASSUMED["hours of the batch"]
    return {
        "the query: the topic's clusters of one day": (size, size * PRICES["on-demand queries"]),
        "the selection's table, three days": (kept, kept * PRICES["active logical storage"]),
        "Storage Read of the selection": (size, size * PRICES["Storage Read API"]),
        "publishing": (volume, volume * throughput),
        "delivery to the pipeline's subscription": (volume, volume * throughput),
        "delivery to the backup subscription (its filter drops the messages)": (volume, volume * throughput),
        "Storage Write of staging": (staged, staged * PRICES["Storage Write API"]),
        "one Dataproc batch": (dcu, dcu * PRICES["Dataproc DCU hour"]),
    }


@pytest.mark.parametrize(("found", "compute"), [(EACH_MONTH, a_month), (A_REPLAY, a_replay)])
def test_every_line_of_the_example_is_its_quantity_times_its_price(found, compute):
    wanted = compute()
    assert found.keys() - {"**together**"} == wanted.keys()
    for name, (quantity, usd) in wanted.items():
        # As the page shows them: three digits of a quantity, whole cents.
        assert found[name] == (pytest.approx(quantity, rel=0.006, abs=0.005), pytest.approx(usd, abs=0.006)), name


@pytest.mark.parametrize(("heading", "compute"), [("a month", a_month), ("a replay", a_replay)])
def test_the_sums_are_those_of_the_lines(heading, compute):
    said = re.search(rf"{heading.capitalize()} of this example costs about ([\d,.]+) USD", PAGE)
    assert float(said[1].replace(",", "")) == pytest.approx(sum(usd for _, usd in compute().values()), rel=0.005)


def test_plans_count_with_the_prices_of_the_page() -> None:
    tagged = ASSUMED["bytes of a replayed message in Pub/Sub"] - ASSUMED["bytes of a message in Pub/Sub"]
    assert {
        "Pub/Sub throughput": price.PUBSUB_USD_PER_TIB,
        "Storage Read API": price.STORAGE_READ_USD_PER_TIB,
        "Storage Write API": price.STORAGE_WRITE_USD_PER_GIB,
        "active logical storage": price.STORAGE_USD_PER_GIB_MONTH,
    }.items() <= PRICES.items()
    assert (tagged, ASSUMED["days that a selection is kept"]) == (price.TAGS_BYTES, SELECTION_KEPT_DAYS)


def test_the_plan_of_the_example_has_the_prices_of_its_lines() -> None:
    messages = int(ASSUMED["messages a second"] * DAY * ASSUMED["share of the replayed topic"])
    size = int(messages * ASSUMED["bytes of a message's row in the archive"])
    figures = QueryFigures(bytes_scanned=size, bytes_billed=size, rows=messages, message_bytes=size)
    names = ("pipeline", "refeed-backup.orders")
    subscriptions = [SubscriptionInfo(name, "orders", "", 60) for name in names]
    made = price.price_replay(figures, subscriptions, price.Billing(6.25, is_pubsub_billed=True))
    found = {part.what: part.usd for part in made.parts}
    lines = {name: usd for name, (_, usd) in a_replay().items()}
    for what, line in (
        ("query", "the query: the topic's clusters of one day"),
        ("selection storage", "the selection's table, three days"),
        ("selection read", "Storage Read of the selection"),
    ):
        assert found[what] == pytest.approx(lines[line], rel=0.001)
    # A row of the archive has the topic and the subscription too: a plan is a little above.
    for what in ("publish", "delivery to pipeline", "delivery to refeed-backup.orders"):
        assert lines["publishing"] <= found[what] <= 1.05 * lines["publishing"]
    assert found["staging write"] >= lines["Storage Write of staging"]
    assert made.usd == made.at_least_usd == pytest.approx(sum(found.values()))


def test_every_price_names_its_source() -> None:
    section = PAGE.split("## Prices\n", 1)[1].split("\n## ", 1)[0]
    rows = [row for row in section.splitlines() if row.startswith("| ") and re.search(r"\| [\d.]+ ", row)]
    assert len(rows) == len(PRICES)
    assert all("https://cloud.google.com/" in row for row in rows)


def test_what_pubsub_keeps_is_as_large_and_as_dear_as_the_page_says() -> None:
    day = ASSUMED["messages a second"] * DAY * ASSUMED["bytes of a message in Pub/Sub"] / GIB
    # It grows from nothing to seven days' messages.
    usd = 7 * day / 2 * PRICES["Pub/Sub storage"] * 7 / ASSUMED["days of a month"]
    said = re.search(
        r"one day have ([\d,]+) GiB.*?grows\s+to\s+([\d,]+) GiB\..*?costs\s+about\s+([\d,]+) USD", PAGE, re.DOTALL
    )
    assert [int(number.replace(",", "")) for number in said.groups()] == [round(day), round(7 * day), round(usd)]


def by_price(proxy: Proxy) -> Counter[str]:
    """Count the requests that passed by how they are billed; that objects are deleted costs nothing."""
    kinds = [request.partition(" ")[0] for request in proxy.requests if "list-type" not in request]
    lists = len(proxy.requests) - len(kinds)
    found = Counter("reads" if kind in ("GET", "HEAD") else "writes" for kind in kinds if kind != "DELETE")
    return found + Counter(writes=lists)


def test_the_requests_of_commits_and_leases_are_those_of_the_page(bucket_lake: str, bucket_proxy: Proxy) -> None:
    archive = LakeArchive(bucket_lake, "backup.messages")
    archive.create()
    archive.take_lease("l")
    leases = archive.leases()
    leases.write_lease("l", 1, b"0")
    for number in range(1, 101):
        append(archive, number)
    recorded = dict(re.findall(r"^\| (\d+ [^|]+) \| (\d+ \| \d+) \|$", PAGE, re.MULTILINE))
    bucket_proxy.forget()
    for number in range(101, 201):
        append(archive, number)
    found = [by_price(bucket_proxy)]
    bucket_proxy.forget()
    for number in range(10):
        leases.write_lease("l", 1, b"%d" % number)
    found.append(by_price(bucket_proxy))
    assert list(recorded.values()) == [f"{each['writes']} | {each['reads']}" for each in found]


def test_the_requests_of_a_bucket_cost_what_the_page_says() -> None:
    recorded = numbers("What the requests of a bucket cost")
    a_commit = recorded["100 commits of one file each, with their checkpoint"] / 100
    renewals = recorded["10 renewals of a lease, in 100 s"] * ASSUMED["days of a month"] * DAY / 100
    wanted = {
        "a month of a stream without messages: renewals of its lease": renewals,
        "a million messages at 8,000 a second: files, commits, checkpoints": 1e6 / 8000 * a_commit,
        "a million messages at 100 a second: files, commits, checkpoints": 1e6 / 100 * a_commit,
    }
    found = lines("What the requests of a bucket cost")
    assert found.keys() == wanted.keys()
    for name, (thousands, usd) in found.items():
        assert thousands == pytest.approx(wanted[name] / 1000, rel=0.006)
        assert usd == pytest.approx(wanted[name] / 1000 * PRICES["writes and lists of a bucket"], rel=0.02)
