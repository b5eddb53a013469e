"""SageMaker's runtime API, as boto3 speaks it."""
