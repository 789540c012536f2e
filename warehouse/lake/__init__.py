"""Tables as Delta Lake folders, on a disk or in an object store."""
