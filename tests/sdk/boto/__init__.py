"""The real boto3, in three generations."""
