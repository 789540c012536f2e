import pytest

from collector.settings import read_collector_settings
from model.errors import SettingsError
from model.message import matches
from tests.standin.kms_server import KEY, KmsServer


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("SHOP_KEY", "a-secret-of-the-shop")


def read(folder, text, *topics):
    path = folder / "collector.yaml"
    path.write_text(text)
    return read_collector_settings(topics or ("orders", "shop.*"), path)


def faults_of(folder, text, *topics):
    with pytest.raises(SettingsError) as caught:
        read(folder, text, *topics)
    return caught.value.details.get("faults", [caught.value.message])


def test_all_faults_are_told_at_once(tmp_path):
    text = """
        max_body_bytes: 5
        colour: red
        topics:
          orders: {format: xml, public: perhaps}
          members: {}
        keys:
          - {name: a, secret: in-the-open}
          - {name: b, secret: "env:NOT_THERE"}
    """
    found = faults_of(tmp_path, text, "orders", "metrics", "1")
    for part in (
        *("topics.members", "max_body_bytes", "colour", "topics.orders.format", "topics.orders.public"),
        *("keys.0", "keys.1"),
    ):
        assert any(fault.startswith(part) for fault in found), part
    assert any("metrics is a path of the collector itself" in fault for fault in found)
    assert any("'1' is not a valid topic id" in fault for fault in found)
    assert not any("in-the-open" in fault for fault in found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("topics: {orders: {}, orders: {}}", "line 1, column 22: 'orders' comes twice"),
        ("topics: {members: {}}", "topics.members: is not in REFEED_COLLECTOR_TOPICS"),
        ("keys: []\ntopics:\n  orders: {colour: red}", "Extra inputs are not permitted (line 3, column 12)"),
        ("topics: {'sho*': {}}", "topics.sho*: is not in REFEED_COLLECTOR_TOPICS"),
        ("topics: {orders: {cors: ['shop.example']}}", "must be an origin"),
        ("topics: {orders: {signature: {kind: generic, secret: 'env:SHOP_KEY'}}}", "needs the field header"),
        (
            "topics: {orders: {signature: {kind: github, secret: 'env:SHOP_KEY', header: X}}}",
            "allows only the field secret",
        ),
        ("rate_limits: {key_per_minute: -1}", "rate_limits.key_per_minute"),
        ("- 1", "the file: Input should be"),
        ("{", "collector.yaml"),
        ("topics: 2024-13-01", "month must be in 1..12"),
        pytest.param("[" * 2000, "collector.yaml: line 1, column 1: maximum recursion depth", id="deep"),
        ("keys: [{name: a, secret: 'env:SHOP_KEY'}, {name: a, secret: 'env:SHOP_KEY'}]", "two have the same name"),
        ("keys: [{name: a, secret: 'env:SHOP_KEY'}, {name: b, secret: 'env:SHOP_KEY'}]", "the same secret"),
    ],
)
def test_a_fault_is_named(tmp_path, text, fault):
    assert fault in "; ".join(faults_of(tmp_path, text))


def test_a_file_that_is_not_there_and_no_topics_are_faults(tmp_path):
    with pytest.raises(SettingsError, match=r"gone\.yaml"):
        read_collector_settings(["orders"], tmp_path / "gone.yaml")
    with pytest.raises(SettingsError, match="REFEED_COLLECTOR_TOPICS"):
        read_collector_settings([], None)


def test_a_secret_may_be_encrypted_with_a_key_of_cloud_kms(tmp_path, monkeypatch):
    with KmsServer() as kms:
        monkeypatch.setenv("REFEED_KMS_ENDPOINT", kms.endpoint)
        (tmp_path / "key.enc").write_bytes(kms.encrypt(b"a-secret-of-the-shop\n"))
        text = f"keys: [{{name: a, secret: 'gcp-kms:{KEY}:file:{tmp_path}/key.enc'}}]"
        assert read(tmp_path, text).keys[0].secret == "a-secret-of-the-shop"


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "key").write_text("another-secret-key\n")
    text = f"keys: [{{name: a, secret: 'file:{tmp_path}/key'}}, {{name: b, secret: 'env:SHOP_KEY'}}]"
    found = read(tmp_path, text)
    assert [key.secret for key in found.keys] == ["another-secret-key", "a-secret-of-the-shop"]
    assert "secret-key" not in repr(found)


def test_a_topic_s_own_section_wins_over_a_pattern_s(tmp_path):
    text = "topics: {'shop.*': {format: raw}, shop.carts: {source: carts}}"
    found = read(tmp_path, text)
    assert [found.section(topic).format for topic in ("orders", "shop.carts", "shop.x")] == ["json", "json", "raw"]
    assert found.section("members") is None


@pytest.mark.parametrize(
    ("text", "is_safe"),
    [
        ("", False),
        ("topics: {orders: {public: true}}", False),
        ("topics: {orders: {public: true}, 'shop.*': {public: true}}", True),
        ("keys: [{name: a, secret: 'env:SHOP_KEY'}]", True),
        ("topics: {orders: {signature: {kind: github, secret: 'env:SHOP_KEY'}}, 'shop.*': {public: true}}", True),
    ],
)
def test_another_host_needs_a_key_or_public_topics(tmp_path, text, is_safe):
    found = read(tmp_path, text)
    found.check_host("localhost")
    if is_safe:
        found.check_host("0.0.0.0")
    else:
        with pytest.raises(SettingsError, match="--host"):
            found.check_host("0.0.0.0")


def test_a_pattern_stands_for_the_whole_name():
    assert matches(["shop.*"], "shop.")
    assert not matches(["shop.*"], "workshop.a")
    assert not matches(["shop.*"], "shopXa")
    assert not matches(["a[bc]"], "ab")


def test_faults_of_sns_topics_are_named(tmp_path):
    arn = "arn:aws:sns:eu-west-1:123456789012"
    text = f"""
        sns:
          max_age_seconds: 60
          topics:
            "{arn}:orders.fifo": {{topics: [orders]}}
            "arn:aws:sns:s3-us-west-2:123456789012:orders": {{topics: [orders]}}
            "arn:aws:sqs:eu-west-1:123456789012:orders": {{topics: [orders]}}
            "{arn}:a": {{topics: []}}
            "{arn}:b": {{topics: ["shop.*"]}}
            "{arn}:c": {{topics: [orders], username: sns}}
            "{arn}:d": {{topics: [orders], username: sns, password: in-the-open}}
    """
    found = "; ".join(faults_of(tmp_path, text))
    for part in (
        *("max_age_seconds", "orders.fifo", "s3-us-west-2", "arn:aws:sqs", ":a.topics", "not a pattern"),
        *("belong together", "env:NAME"),
    ):
        assert part in found
    text = f"sns: {{topics: {{'{arn}:orders': {{topics: [orders, members]}}}}}}"
    assert faults_of(tmp_path, text) == ["sns.topics: members is not in REFEED_COLLECTOR_TOPICS"]
