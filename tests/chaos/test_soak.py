import os

from tests.chaos.soak import Memory, resident_bytes

MIB = 1024 * 1024


def test_what_grows_after_the_warm_up_is_told_from_what_breathes():
    breathing = [300 + number % 7 for number in range(100)]
    warming = [min(400, 100 + 10 * number) for number in range(100)]
    leaking = [300 + 2 * number for number in range(100)]
    memory = Memory(
        {
            name: [size * MIB for size in sizes]
            for name, sizes in {"breathing": breathing, "warming": warming, "leaking": leaking}.items()
        }
    )
    assert {name: found["grew"] for name, found in memory.growth().items()} == {
        "breathing": False,
        "warming": False,
        "leaking": True,
    }


def test_memory_is_read_of_processes_that_are_there():
    assert resident_bytes(os.getpid()) > 10 * MIB
    assert resident_bytes(2**22 + 1) == 0
