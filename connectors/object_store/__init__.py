"""Object stores, Amazon S3 and Cloud Storage, by one client: a bucket's objects, and a folder of files in it."""
