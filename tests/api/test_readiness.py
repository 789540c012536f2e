from concurrent.futures import ThreadPoolExecutor

from api.readiness import MAX_AGE_SECONDS, Readiness
from backfill.steer.service import BackfillService


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_look_serves_all_who_ask_within_two_seconds() -> None:
    looks: list[int] = []
    clock = Clock()

    def check() -> dict[str, str]:
        looks.append(1)
        return {} if len(looks) == 1 else {"pubsub": "away"}

    readiness = Readiness(check, clock=clock)
    assert [readiness.problems() for _ in range(100)] == [{}] * 100
    clock.now = MAX_AGE_SECONDS
    assert readiness.problems() == {}
    clock.now = MAX_AGE_SECONDS + 0.1
    assert readiness.problems() == {"pubsub": "away"}
    assert len(looks) == 2


def test_a_hundred_probes_cost_pubsub_and_the_store_a_look_or_two(start_api, monkeypatch):
    looks = []
    check = BackfillService.check_readiness
    # Before the service is made: it keeps the method.
    monkeypatch.setattr(BackfillService, "check_readiness", lambda service: looks.append(1) or check(service))
    with ThreadPoolExecutor(10) as pool, start_api().client() as client:
        answers = [call.result() for call in [pool.submit(client.get, "/readyz") for _ in range(100)]]
    assert {answer.status_code for answer in answers} == {200}
    # A look every two seconds, however slow the machine is.
    assert 0 < len(looks) < 10
