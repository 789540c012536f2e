import base64
import gzip
import hashlib
import hmac

import pytest

from tests.collector.conftest import Yard, problem_of

FAR = ("192.0.2.1", 5)
SECRET = "It's a Secret to Everybody"
GITHUB = "topics: {TOPIC: {signature: {kind: github, secret: 'env:HOOK_SECRET'}}}"
GENERIC = (
    "topics: {TOPIC: {signature: {kind: generic, secret: 'env:HOOK_SECRET', header: X-Shop-Hmac, "
    "algorithm: sha512, encoding: base64, prefix: 'v1,'}}}"
)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def sign(body: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def test_githubs_own_example_is_valid(yard: Yard) -> None:
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries: "Testing the webhook
    # payload validation" has this secret, payload and signature.
    app = yard.collector(yard.settings(GITHUB.replace("signature:", "format: raw, signature:")), is_open=False)
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    answer = yard.post(b"Hello, World!", app=app, client=FAR, x_hub_signature_256=signature)
    assert answer.status_code == 200
    assert yard.pull(1)[0].data == b"Hello, World!"


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        "sha256=",
        "sha256=" + "0" * 64,
        sign(b"{} "),
        sign(b"{}").removeprefix("sha256="),
        "sha1=" + hmac.new(SECRET.encode(), b"{}", hashlib.sha1).hexdigest(),
        "sha256=" + hashlib.sha256(b"{}").hexdigest(),
    ],
)
def test_another_signature_is_refused(yard: Yard, signature: str | None) -> None:
    app = yard.collector(yard.settings(GITHUB))
    headers = {} if signature is None else {"x_hub_signature_256": signature}
    assert problem_of(yard.post(b"{}", app=app, **headers))[:2] == (401, "unauthenticated")
    yard.pull(0)


def test_what_is_signed_is_the_body_as_it_came(yard: Yard) -> None:
    app = yard.collector(yard.settings(GITHUB))
    packed = gzip.compress(b"{}")
    answers = [
        yard.post(packed, app=app, content_encoding="gzip", x_hub_signature_256=sign(body))
        for body in (packed, b"{}")
    ]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert [value for value in yard.pull(1)[0].attributes.values() if "sha256" in value] == []


def test_a_signature_of_another_form_is_described(yard: Yard) -> None:
    app = yard.collector(yard.settings(GENERIC), is_open=False)
    digest = hmac.new(SECRET.encode(), b"{}", hashlib.sha512).digest()
    good = "v1," + base64.b64encode(digest).decode()
    assert yard.post(b"{}", app=app, client=FAR, x_shop_hmac=good).status_code == 200
    for bad in (good.lower(), good.removeprefix("v1,"), "v1," + digest.hex()):
        assert yard.post(b"{}", app=app, client=FAR, x_shop_hmac=bad).status_code == 401
    yard.pull(1)


def test_a_get_can_not_be_signed(yard: Yard) -> None:
    app = yard.collector(yard.settings(GITHUB))
    assert yard.call(lambda client: client.get(f"/{yard.topic}?a=1"), app).status_code == 401
