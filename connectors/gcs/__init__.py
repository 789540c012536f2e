"""Cloud Storage, as a folder that machines without a disk in common share."""
