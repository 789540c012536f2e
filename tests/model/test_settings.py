import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import time
from pathlib import Path

import pytest

from model.errors import SettingsError
from model.principal import UPLOAD_SCOPES
from model.settings import read_settings
from model.unknown_settings import describe_unknown


def test_an_empty_environment_gives_defaults_under_the_users_home():
    settings = read_settings({"HOME": "/home/ada"})
    assert settings.home == Path("/home/ada/.refeed")
    assert settings.lake == "/home/ada/.refeed/lake"
    assert settings.archive_table == "backup.messages"
    assert not settings.is_embedded


def test_every_fault_is_reported_at_once_with_what_would_be_right():
    with pytest.raises(SettingsError) as raised:
        read_settings(
            {
                "REFEED_ACK_DEADLINE_SECONDS": "5",
                "REFEED_ARCHIVE_PARTITIONING": "week",
                "REFEED_PROJECT": "Not A Project",
                "REFEED_BACKUP_BATCH_SECONDS": "nan",
            }
        )
    text = raised.value.message
    assert "REFEED_ACK_DEADLINE_SECONDS='5': must be a whole number from 10 to 600" in text
    assert "REFEED_ARCHIVE_PARTITIONING='week': must be one of day, hour" in text
    assert "REFEED_PROJECT" in text
    assert "REFEED_BACKUP_BATCH_SECONDS" in text
    assert raised.value.code == "settings_invalid"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"GOOGLE_CLOUD_PROJECT": "My Shop"}, "GOOGLE_CLOUD_PROJECT='My Shop': must be a Google Cloud project id"),
        ({"GOOGLE_CLOUD_PROJECT": "My Shop", "REFEED_PROJECT": "-"}, "REFEED_PROJECT='-': must be a Google Cloud"),
    ],
)
def test_a_wrong_project_is_the_fault_of_the_variable_that_was_set(env, said):
    with pytest.raises(SettingsError) as raised:
        read_settings(env)
    assert raised.value.message.startswith(f"Wrong settings: {said}")
    assert read_settings({**env, "REFEED_PROJECT": "shop-1"}).project == "shop-1"
    assert read_settings({"GOOGLE_CLOUD_PROJECT": "shop-2", "REFEED_PROJECT": ""}).project == "shop-2"


@pytest.mark.parametrize(
    ("name", "part"), [("a%20b", "%20"), ("%2Fx", "%2F"), ("a\\b", "\\"), ("a?b", "?")], ids=repr
)
def test_a_home_whose_lake_or_database_would_lie_elsewhere_is_refused(name, part):
    with pytest.raises(SettingsError) as raised:
        read_settings({"REFEED_HOME": f"/tmp/{name}"})
    said = (
        f"/tmp/{name}: its lake or its database would be in another place because of {part!r}; choose another home"
    )
    assert raised.value.message.startswith(said)


def test_a_lake_that_delta_lake_would_look_for_elsewhere_is_refused_and_other_names_are_not():
    with pytest.raises(SettingsError, match="REFEED_LAKE='/tmp/a%20b': must be a folder without '%20'"):
        read_settings({"REFEED_LAKE": "/tmp/a%20b"})
    for lake in ("/tmp/100% #1 [x] ä", "/lake ", "gs://bucket/a%20b"):
        assert read_settings({"REFEED_LAKE": lake}).lake == lake


def test_a_lake_is_the_same_folder_for_a_driver_that_works_in_another_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert read_settings({"REFEED_LAKE": "lake/"}).lake == str(tmp_path / "lake")
    assert read_settings({"REFEED_LAKE": "~/lake"}).lake == "/home/ada/lake"
    with pytest.raises(SettingsError, match=r"REFEED_LAKE='~nobody-here/x': .* of a user who exists"):
        read_settings({"REFEED_LAKE": "~nobody-here/x"})


def test_the_nightly_merge_has_a_time_of_day_and_can_be_off():
    assert read_settings({}).merge_at == time(0, 15)
    assert read_settings({"REFEED_MERGE_AT": "23:59"}).merge_at == time(23, 59)
    # Set and empty is off, not the default.
    assert [read_settings({"REFEED_MERGE_AT": text}).merge_at for text in ("", "off")] == [None, None]
    with pytest.raises(SettingsError, match="REFEED_MERGE_AT='24:00': must be a time of day"):
        read_settings({"REFEED_MERGE_AT": "24:00"})


def test_the_home_that_is_given_wins_over_the_variable(tmp_path):
    assert read_settings({"REFEED_HOME": "/elsewhere"}, home=tmp_path).home == tmp_path


@pytest.mark.parametrize("text", ["{", '{"a":' * 100_000, '{"a": 1}'], ids=["cut", "deep", "number"])
def test_a_spark_conf_that_is_no_object_of_texts_is_refused_with_what_it_takes(text):
    with pytest.raises(
        SettingsError, match=r"REFEED_SPARK_CONF=.*: must be a JSON object with strings as values, such as"
    ):
        read_settings({"REFEED_SPARK_CONF": text})


def test_an_emulator_host_makes_it_embedded():
    assert read_settings({"PUBSUB_EMULATOR_HOST": "127.0.0.1:8085"}).is_embedded


@pytest.mark.parametrize("text", ["localhost", "http://127.0.0.1:8085", "127.0.0.1:99999", "::1:8085"])
def test_an_emulator_host_without_a_port_of_its_own_is_refused(text):
    with pytest.raises(SettingsError, match=r"PUBSUB_EMULATOR_HOST=.*: must be host:port"):
        read_settings({"PUBSUB_EMULATOR_HOST": text})


def test_the_secret_is_made_once_and_for_its_owner_only(tmp_path):
    settings = read_settings({}, home=tmp_path / "home")
    first = settings.replay_secret()
    assert settings.replay_secret() == first
    assert stat.S_IMODE((tmp_path / "home" / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["secret"]


def test_two_first_users_of_a_home_get_one_secret(tmp_path):
    settings = read_settings({}, home=tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: settings.replay_secret(), range(32)))) == 1


def test_the_secret_is_on_the_disk_before_anybody_uses_it(tmp_path, monkeypatch):
    synced = []

    def sync(descriptor):
        found = os.fstat(descriptor)
        synced.append("folder" if stat.S_ISDIR(found.st_mode) else found.st_size)

    monkeypatch.setattr(os, "fsync", sync)
    secret = read_settings({}, home=tmp_path).replay_secret()
    assert synced == [len(secret), "folder"]


def test_a_file_of_the_secret_that_lost_it_is_no_secret(tmp_path):
    (tmp_path / "secret").touch()
    with pytest.raises(SettingsError, match=r"secret, is empty.*from a copy"):
        read_settings({}, home=tmp_path).replay_secret()


def test_a_secret_from_the_environment_is_not_written_down(tmp_path):
    settings = read_settings({"REFEED_SECRET": "s3cret"}, home=tmp_path / "home")
    assert settings.replay_secret() == "s3cret"
    assert not (tmp_path / "home").exists()


def test_bigquerys_settings_have_defaults_and_their_faults_are_reported_like_all_others():
    found = read_settings({"HOME": "/home/ada"})
    assert found.warehouse == "lake"
    assert (found.bigquery.location, found.bigquery.host, found.bigquery.labels) == ("US", None, ())
    given = read_settings(
        {
            "BIGQUERY_EMULATOR_HOST": "127.0.0.1:9050",
            "REFEED_BIGQUERY_LABELS": "team=data,cost=a_1",
            "REFEED_BIGQUERY_REGIONAL_ENDPOINTS": "true",
        }
    ).bigquery
    assert given.host == "http://127.0.0.1:9050"
    assert given.labels == (("cost", "a_1"), ("team", "data"))
    assert given.is_regional
    with pytest.raises(SettingsError) as raised:
        read_settings(
            {
                "REFEED_WAREHOUSE": "snowflake",
                "REFEED_BIGQUERY_LABELS": "Team=data",
                "REFEED_BIGQUERY_KMS_KEY": "mykey",
                "REFEED_BIGQUERY_LOCATION": "europe west",
                "REFEED_BIGQUERY_REQUIRE_PARTITION_FILTER": "yes",
            }
        )
    for name in (
        "WAREHOUSE",
        "BIGQUERY_LABELS",
        "BIGQUERY_KMS_KEY",
        "BIGQUERY_LOCATION",
        "REQUIRE_PARTITION_FILTER",
    ):
        assert name in raised.value.message


def test_dataproc_names_all_that_its_batches_would_miss(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({"REFEED_LAUNCHER": "dataproc", "REFEED_JOBS_FOLDER": "/mnt/jobs"}, home=tmp_path)
    for name in ("REFEED_DATAPROC_REGION", "REFEED_DATAPROC_IMAGE", "REFEED_JOBS_FOLDER", "REFEED_WAREHOUSE"):
        assert name in refused.value.message
    settings = read_settings(
        {
            "REFEED_LAUNCHER": "dataproc",
            "REFEED_JOBS_FOLDER": "gs://shop-refeed-jobs/refeed",
            "REFEED_WAREHOUSE": "bigquery",
            "REFEED_DATAPROC_REGION": "europe-west1",
            "REFEED_DATAPROC_IMAGE": "europe-docker.pkg.dev/shop/refeed/dataproc:1",
        },
        home=tmp_path,
    )
    assert settings.dataproc.ttl_seconds == 86400


@pytest.mark.parametrize(("runtime", "is_refused"), [("2.3", False), ("3.0", True), ("3.1", True), ("10.0", True)])
def test_a_history_server_goes_with_runtimes_before_3_0(tmp_path: Path, runtime: str, is_refused: bool) -> None:
    given = {
        "REFEED_LAUNCHER": "dataproc",
        "REFEED_JOBS_FOLDER": "gs://shop-refeed-jobs/refeed",
        "REFEED_WAREHOUSE": "bigquery",
        "REFEED_DATAPROC_REGION": "europe-west1",
        "REFEED_DATAPROC_IMAGE": "europe-docker.pkg.dev/shop/refeed/dataproc:1",
        "REFEED_DATAPROC_HISTORY_SERVER": "projects/shop/regions/europe-west1/clusters/history",
        "REFEED_DATAPROC_RUNTIME": runtime,
    }
    if is_refused:
        with pytest.raises(SettingsError, match="REFEED_DATAPROC_HISTORY_SERVER"):
            read_settings(given, home=tmp_path)
    else:
        assert read_settings(given, home=tmp_path).dataproc.history_server


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REFEED_JOBS_FOLDER", "jobs"),
        ("REFEED_JOBS_FOLDER", "gs://"),
        ("REFEED_MANIFESTS", "s3://"),
        ("REFEED_TEMPLATES", "azure://templates/of"),
        ("REFEED_DATAPROC_REGION", "Europe"),
    ],
)
def test_where_jobs_run_and_lie_is_checked(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=name):
        read_settings({name: value}, home=tmp_path)


def test_folders_may_be_in_buckets_of_either_cloud_but_batches_and_notifications_are_google_s(tmp_path):
    names = ("REFEED_JOBS_FOLDER", "REFEED_MANIFESTS", "REFEED_TEMPLATES")
    amazon = {name: f"s3://shop-{name[7:].lower().replace('_', '-')}/refeed" for name in names}
    settings = read_settings(amazon, home=tmp_path)
    assert (settings.jobs_folder, settings.manifests, settings.templates) == tuple(amazon.values())
    with pytest.raises(SettingsError, match="REFEED_MANIFESTS is not gs://bucket/prefix"):
        read_settings({**amazon, "REFEED_MANIFESTS_SUBSCRIPTION": "manifest-changes"}, home=tmp_path)
    with pytest.raises(SettingsError, match="REFEED_JOBS_FOLDER is not gs://bucket/prefix"):
        read_settings({**amazon, "REFEED_LAUNCHER": "dataproc"}, home=tmp_path)


@pytest.mark.parametrize(
    ("location", "key_location", "is_refused"),
    [
        ("US", "us", False),
        ("EU", "europe", False),
        ("europe-west1", "europe-west1", False),
        ("EU", "eu", True),
        ("EU", "europe-west1", True),
        ("US", "us-east1", True),
    ],
)
def test_a_key_has_to_lie_where_the_dataset_does(location: str, key_location: str, is_refused: bool) -> None:
    environment = {
        "HOME": "/somewhere",
        "REFEED_BIGQUERY_LOCATION": location,
        "REFEED_BIGQUERY_KMS_KEY": f"projects/p/locations/{key_location}/keyRings/r/cryptoKeys/k",
    }
    if not is_refused:
        assert read_settings(environment).bigquery.kms_key == environment["REFEED_BIGQUERY_KMS_KEY"]
        return
    with pytest.raises(SettingsError, match=f"is in {key_location}"):
        read_settings(environment)


def test_who_uploads_manifests_has_the_scopes_that_a_setting_names() -> None:
    assert read_settings({}).manifests is None
    assert read_settings({}).manifests_scopes == UPLOAD_SCOPES
    given = read_settings(
        {"REFEED_MANIFESTS": "gs://ours/manifests", "REFEED_MANIFESTS_SCOPES": "schedules.apply, backfills.run"}
    )
    assert given.manifests == "gs://ours/manifests"
    assert given.manifests_scopes == {"schedules.apply", "backfills.run"}
    with pytest.raises(SettingsError, match="REFEED_MANIFESTS_SCOPES='all': no such scope: all"):
        read_settings({"REFEED_MANIFESTS_SCOPES": "all"})
    bucket = {"REFEED_MANIFESTS": "gs://ours/m", "REFEED_MANIFESTS_SUBSCRIPTION": "manifest-changes"}
    assert read_settings(bucket).manifests_subscription == "manifest-changes"
    with pytest.raises(SettingsError, match="REFEED_MANIFESTS is not gs://bucket/prefix"):
        read_settings({**bucket, "REFEED_MANIFESTS": "/etc/manifests"})
    with pytest.raises(
        SettingsError, match="REFEED_MANIFESTS_SUBSCRIPTION='a/b': must be the id of a subscription"
    ):
        read_settings({**bucket, "REFEED_MANIFESTS_SUBSCRIPTION": "a/b"})


@pytest.mark.parametrize("name", ["REFEED_LAKE", "REFEED_REGISTRY", "REFEED_JOBS_FOLDER", "REFEED_MANIFESTS"])
@pytest.mark.parametrize(("written", "read"), [("S3://b-1/X", "s3://b-1/X"), ("Gs://b-1", "gs://b-1")])
def test_the_scheme_of_a_bucket_may_be_in_capitals(name: str, written: str, read: str) -> None:
    found = read_settings({"REFEED_HOME": "/tmp/x", name: written})
    assert getattr(found, name.removeprefix("REFEED_").lower()) == read


def test_every_variable_of_the_example_is_a_setting_and_others_are_named_with_those_that_may_be_meant():
    example = re.findall(r"^# ([A-Z_]+)=", Path(".env.example").read_text(), re.MULTILINE)
    assert describe_unknown(dict.fromkeys([*example, "HOME", "REFEED_FAILPOINTS"], "")) == {}
    said = describe_unknown({"REFEED_APPROVE_ROWS": "abc", "REFEED_": "", "REFEED_MERGE_AT": "off"})
    assert list(said) == ["REFEED_", "REFEED_APPROVE_ROWS"]
    assert "Did you mean REFEED_APPROVAL_ROWS" in said["REFEED_APPROVE_ROWS"]


def test_a_variable_that_a_reference_names_or_that_kubernetes_sets_for_a_service_is_not_unknown():
    environment = {"REFEED_SECRET": "env:REFEED_SHOP_TOKEN", "REFEED_SHOP_TOKEN": "s3cret"}
    links = ("REFEED_API_SERVICE_HOST", "REFEED_API_PORT", "REFEED_API_PORT_8080_TCP_ADDR")
    assert describe_unknown(environment | dict.fromkeys(links, "")) == {}
