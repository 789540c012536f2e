"""Amazon SNS: who signs its messages, and how a subscription is confirmed."""
