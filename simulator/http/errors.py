"""A worker's error answers, worded and shaped as vLLM's (`ErrorResponse` in `vllm/entrypoints`)."""

from typing import Any


class DisconnectedError(Exception):
    """The client has disconnected, so no answer is needed."""


class ApiError(Exception):
    """An error that is answered with `status` and `body`."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": status}
        }


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400: malformed, or more than the model accepts."""
    return ApiError(400, message, "BadRequestError", param)


def unknown_model(model: str) -> ApiError:
    """404: a model this worker does not serve."""
    return ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def queue_full() -> ApiError:
    """503: the limit on queued requests is reached."""
    message = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    return ApiError(503, message, "Service Unavailable")
