"""What docs/security.md shows is what Refeed does."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from api.auth import is_public
from jobs.notify import sign
from model.settings import read_settings

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text()


def test_the_page_s_verification_takes_what_is_sent_and_nothing_else():
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(snippet, "security.md", "exec"), names)
    secret, body, now = "whsec_" + "QUJD" * 8, b'{"type": "backfill.failed"}', datetime.now(UTC)
    headers = sign(secret, message_id="bf_1.1", at=now, body=body)

    names["verify"](secret, headers, body)

    old = sign(secret, message_id="bf_1.1", at=now - timedelta(minutes=10), body=body)
    wrong = [
        (secret, headers, body + b" "),
        ("whsec_" + "QUJE" * 8, headers, body),
        (secret, {**headers, "webhook-id": "bf_2.1"}, body),
        (secret, {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}, body),
        (secret, old, body),
    ]
    for given in wrong:
        with pytest.raises(ValueError, match=r"not from Refeed|too old"):
            names["verify"](*given)


def test_the_page_s_settings_are_taken():
    given = dict(re.findall(r"^    (REFEED_OIDC_\w+)=(.+)$", PAGE, re.MULTILINE))
    settings = read_settings({"HOME": "/somewhere", **given})

    assert settings.oidc_issuer == "https://accounts.google.com"
    assert {grant.claim for grant in settings.oidc_grants} == {"email", "hd"}


def test_the_page_names_every_public_path():
    said = re.search(r"^`/healthz`.*?contain no user data", PAGE, re.MULTILINE | re.DOTALL)
    assert said is not None
    paths = [path.replace("...", "unauthenticated") for path in re.findall(r"`(/[^`]+)`", said[0])]
    assert len(paths) == 6
    assert all(is_public(path) for path in paths)
