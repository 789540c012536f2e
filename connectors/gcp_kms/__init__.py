"""Google's Cloud KMS: decrypts what one of its keys has encrypted."""
