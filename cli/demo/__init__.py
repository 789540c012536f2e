"""``refeed demo``: the main job end to end, with a verdict."""
