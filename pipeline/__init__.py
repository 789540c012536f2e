"""The pipeline: one stream that turns JSON messages of any topic into rows of its staging table."""
