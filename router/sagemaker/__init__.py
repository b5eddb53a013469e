"""SageMaker's runtime API, as boto3 speaks it.

`paths` parses its paths and says who may ask for them, `sigv4` checks signatures. `invocation`
reads what a call asks for; `handler` makes an ordinary request of it, which goes through `proxy/`
like any other; `response` writes the answer in SageMaker's form, event streams included.
`sessions` opens and closes sessions, also at workers that keep these themselves.

How errors look to boto3 is in `api/error_shapes`; what a session is, in `sessions/`.
"""
