"""What an error of a bucket's client says of the bucket."""

import pytest

from connectors.lake.errors import error_from
from model.errors import WarehousePermissionError

PUT = "Error performing PUT http://127.0.0.1:1/b/x/g in 1ms - Server returned non-2xx status code: 403 Forbidden: "
BODY = '<?xml version="1.0" encoding="utf-8"?>\n<Error><Code>{}</Code><Message>No.</Message></Error>'


def test_a_request_that_is_denied_names_the_right():
    found = error_from(OSError(PUT + BODY.format("AccessDenied")), "writing a file")
    assert isinstance(found, WarehousePermissionError)
    assert "needs s3:PutObject" in found.message


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidAccessKeyId"])
def test_a_key_or_a_clock_that_is_wrong_is_no_missing_right(code):
    found = error_from(OSError(PUT + BODY.format(code)), "writing a file")
    assert isinstance(found, WarehousePermissionError)
    assert code in found.message
    assert "clock" in found.message
    assert "s3:" not in found.message
