"""The real boto3, of three generations."""
