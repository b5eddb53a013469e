"""SageMaker's runtime API, as boto3 speaks it: invocations, sessions, errors, signatures.

Requests become ordinary ones, and go through `proxy/` like these.
"""
