import sys

import pytest

from connectors.spark import home


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A PySpark that is imported instead of the environment's, and an environment without a home of links."""
    package = tmp_path / "packages" / "pyspark"
    for name in ("bin", "jars", "python"):
        (package / name).mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(home, "find_spec", lambda _: type("Spec", (), {"origin": str(package / "__init__.py")}))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return package


def test_without_links_it_is_the_installed_one(installed):
    assert home.find_spark_home() == installed


def test_the_home_of_links_has_all_but_the_zip_and_may_be_made_again(installed):
    linked = home.link_spark_home()
    assert home.link_spark_home() == home.find_spark_home() == linked
    assert (linked / "jars").samefile(installed / "jars")
    assert not (linked / "python").exists()
    assert home.find_spark_submit() == linked / "bin" / "spark-submit"


def test_links_to_another_pyspark_are_not_used(installed, monkeypatch):
    home.link_spark_home()
    other = installed.parents[1] / "other" / "pyspark"
    (other / "bin").mkdir(parents=True)
    monkeypatch.setattr(home, "find_spec", lambda _: type("Spec", (), {"origin": str(other / "__init__.py")}))
    assert home.find_spark_home() == other


def test_a_spark_home_of_the_environment_is_not_used(installed, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert home.find_spark_home() == installed
