import pytest


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://refeed", "http://"])
def test_an_address_that_is_none_is_a_fault_of_the_option(refeed, url):
    result = refeed("console", "--api-url", url)
    assert (result.code, "--api-url" in result.err) == (2, True)
