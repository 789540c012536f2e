"""Tables as they should be: created, compared, evolved."""
