from datetime import UTC, datetime

from app.backfills import find_changes

MONDAY, TUESDAY = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)


class Knowledge:
    """What the registry and the streams say, each asked once."""

    def __init__(self, published, starts):
        self.changed_at = iter([published]).__next__
        self.source_groups = iter([{"orders": "shop", "members": "shop", "hooks": "web"}]).__next__
        self.find_starts = iter([starts]).__next__


def changes(published, **starts):
    known = Knowledge(published, starts)
    return find_changes(known, known, ["orders", "members", "hooks", "gone"])


def test_a_source_has_changed_with_the_registry_or_the_start_of_its_pipeline_whichever_was_later():
    assert changes(MONDAY, shop=TUESDAY) == {"orders": TUESDAY, "members": TUESDAY}
    assert changes(TUESDAY, shop=MONDAY, web=TUESDAY) == dict.fromkeys(("orders", "members", "hooks"), TUESDAY)


def test_a_change_is_unknown_where_the_files_do_not_say_when_they_were_written():
    assert changes(None, shop=TUESDAY) == {}
