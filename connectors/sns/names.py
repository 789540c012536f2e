"""ARNs of SNS topics, and the host that speaks for each."""

import re
from typing import Final

# The partitions whose topics can reach an HTTPS endpoint, and their domains:
# https://github.com/boto/botocore/blob/develop/botocore/data/partitions.json
_DOMAINS: Final = {
    "aws": "amazonaws.com",
    "aws-cn": "amazonaws.com.cn",
    "aws-us-gov": "amazonaws.com",
    "aws-eusc": "amazonaws.eu",
}
# No dot: FIFO topics, whose names end in .fifo, deliver to SQS alone. A region begins with letters and ends with a
# number: 's3-us-west-2' would make a host that anybody gets as a bucket named 'sns'.
_ARN: Final = re.compile(r"arn:([a-z\-]+):sns:([a-z]{2,5}(?:-[a-z]+)+-\d{1,2}):\d{12}:[A-Za-z0-9_\-]{1,256}")


def sns_host(topic_arn: str) -> str:
    """Return the one host whose certificates and confirmations count for a topic.

    Raises:
        ValueError: it is no ARN of an SNS topic.

    Example:
        >>> sns_host("arn:aws-cn:sns:cn-north-1:123456789012:orders")
        'sns.cn-north-1.amazonaws.com.cn'
    """
    found = _ARN.fullmatch(topic_arn)
    domain = _DOMAINS.get(found[1]) if found else None
    if found is None or domain is None:
        raise ValueError("must be the ARN of a standard topic, such as arn:aws:sns:eu-west-1:123456789012:orders")
    return f"sns.{found[2]}.{domain}"
