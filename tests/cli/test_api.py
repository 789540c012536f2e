"""Where the terminal finds the API."""

import pytest

from cli.api import check_api_url
from model.errors import SettingsError


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "http://", "http://[::1", "http://api.example:99999", "http://api.example:x", "ftp://a"],
)
def test_what_is_no_address_is_an_error_of_the_setting(url: str) -> None:
    with pytest.raises(SettingsError, match=r"REFEED_API_URL=.* is not an address"):
        check_api_url(url, "REFEED_API_URL")


@pytest.mark.parametrize("url", ["http://[::1]:8080", "https://refeed.shop.example/", "http://127.0.0.1:8080"])
def test_an_address_is_taken_as_it_is(url: str) -> None:
    assert check_api_url(url, "REFEED_API_URL") == url
