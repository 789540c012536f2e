import gc

from connectors.worker import freeze_loaded


def test_what_is_loaded_is_frozen_once_and_garbage_is_still_collected():
    try:
        freeze_loaded()
        frozen = gc.get_freeze_count()
        assert frozen > 0
        later = [[]]
        freeze_loaded()
        assert gc.get_freeze_count() <= frozen
        later[0].append(later)
        del later
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
