"""Google Pub/Sub: channels, pulling into Arrow, publishing from Arrow."""
