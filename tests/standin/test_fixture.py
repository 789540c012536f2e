import os
from concurrent.futures import ThreadPoolExecutor

from google.cloud import bigquery

from tests.chaos.soak import resident_bytes
from tests.standin.fixture import PROJECT
from tests.standin.writer import Writer, batch, request


def test_large_rows_that_were_appended_leave_the_memory(standin):
    client = standin.client()
    client.create_dataset("shop")
    columns = [bigquery.SchemaField("data", "BYTES"), bigquery.SchemaField("message_id", "STRING")]
    client.create_table(bigquery.Table(f"{PROJECT}.shop.large", columns))

    def append(first):
        writer = Writer(standin, "shop.large")
        for number in range(first, first + 4):
            stream = writer.create()
            rows = batch(str(number), data=os.urandom(9_500_000)).select(["data", "message_id"])
            writer.append(request(stream, rows, 0))
            writer.finalise(stream)
            writer.commit(stream)

    before = resident_bytes(standin.pid)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(0, 16, 4)))
    assert client.get_table("shop.large").num_rows == 16
    # Of 152 MB; each thread's arena kept 40 MB and more.
    assert resident_bytes(standin.pid) - before < 80_000_000
