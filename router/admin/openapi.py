"""The OpenAPI description of all paths, and the page at `/docs` that shows it."""

from functools import lru_cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html

from router.api.endpoints import ENDPOINTS, OPEN_PATHS, Endpoint
from router.api.error_shapes import Surface, surface_of
from router.responses.ids import ID, Stored, every

#: Errors of the router itself, which any request may get.
_DOOR = {
    400: "The request cannot be understood, or asks for more than this server allows.",
    405: "The path is served, by another method.",
    408: "The request did not arrive in time.",
    413: "The request's body is too large.",
    414: "The request's URL is too long.",
    415: "The body's Content-Encoding is not taken: `accept-encoding` lists those that are.",
    417: "An expectation other than 100-continue.",
    431: "The request's header is too large.",
    500: "Internal error in the router.",
    501: "A transfer coding other than chunked.",
    503: "Nobody can take the request now; try again.",
}
#: Errors that the open paths (health probes) never return.
_BEHIND_KEYS = {
    401: "No key that opens this path, where keys are asked for.",
    404: "There is nothing at this path of this listener.",
}
#: Errors that only the inference paths return, or that have another meaning there.
_INFERENCE = {
    404: "No worker serves that model.",
    429: "Too many requests; try again.",
    502: "The worker failed after it may have begun.",
    504: "The worker did not answer in time.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field at fault."},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
_MESSAGE = {"message": {"type": "string"}}
#: The schemas of errors by the surface that a path belongs to.
_ERRORS: dict[Surface, tuple[str, dict[str, Any]]] = {
    Surface.OPENAI: ("Error", _ERROR),
    Surface.ANTHROPIC: (
        "AnthropicError",
        {
            "type": "object",
            "required": ["type", "error", "request_id"],
            "properties": {
                "type": {"const": "error"},
                "error": {
                    "type": "object",
                    "required": ["type", "message"],
                    "properties": {"type": {"type": "string"}, **_MESSAGE},
                },
                "request_id": {"type": "string"},
            },
        },
    ),
    Surface.COHERE: (
        "CohereError",
        {
            "type": "object",
            "required": ["message"],
            "properties": {**_MESSAGE, "id": {"type": "string"}},
        },
    ),
    Surface.OLLAMA: (
        "OllamaError",
        {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    ),
}
#: Where a request may carry its key; any one of them is enough.
_KEYS = {
    "Bearer": {"type": "http", "scheme": "bearer"},
    "X-Api-Key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "Api-Key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's schema plus the errors and the inference paths, which FastAPI never sees."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {}).update(_ERRORS.values())
        components["securitySchemes"] = _KEYS
        schema["paths"] |= {endpoint.path: _inference(endpoint) for endpoint in ENDPOINTS.values()}
        schema["paths"] |= {stored.path: _retrieval(stored) for stored in every("{response_id}")}
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                errors = _errors(_DOOR if path in OPEN_PATHS else _DOOR | _BEHIND_KEYS, path)
                operation["responses"] = {**errors, **operation["responses"]}
                if path not in OPEN_PATHS:  # `{}`: routers without `auth` need no key
                    operation["security"] = [{}, *({name: []} for name in _KEYS)]
        app.openapi_schema = schema
    return app.openapi_schema


def _inference(endpoint: Endpoint) -> dict[str, Any]:
    kind = "multipart/form-data" if endpoint.form else "application/json"
    return {
        "post": {
            "summary": "Relayed to a worker, body and answer unchanged.",
            "tags": ["inference"],
            "requestBody": {
                "required": True,
                "content": {kind: {"schema": {"type": "object"}}},
            },
            "responses": {
                "200": {"description": "The worker's answer."},
                **_errors(_INFERENCE, endpoint.path),
                "default": {"description": "Whatever else the worker answers."},
            },
        }
    }


def _retrieval(stored: Stored) -> dict[str, Any]:
    """Describe the path of a single response."""
    operation = {
        "summary": "Relayed to the worker that has the response.",
        "tags": ["inference"],
        "parameters": [
            {
                "name": "response_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": f"^{ID}$"},
            }
        ],
        "responses": {
            "200": {"description": "The worker's answer."},
            **_errors(_INFERENCE | {404: "The response is not known here."}, stored.path),
            "default": {"description": "Whatever else the worker answers."},
        },
    }
    return {method.lower(): dict(operation) for method in stored.methods.split(", ")}


def _errors(meanings: dict[int, str], path: str) -> dict[str, Any]:
    name, _ = _ERRORS[surface_of(path)]
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {
        str(status): {"description": meaning, "content": content}
        for status, meaning in meanings.items()
    }


def add_docs(app: FastAPI) -> None:
    """Serve the page and all of its assets from here, so that nothing is fetched from elsewhere."""

    @app.get("/docs", include_in_schema=False)
    async def page() -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url="/docs/swagger-ui-bundle.js",
            swagger_css_url="/docs/swagger-ui.css",
            swagger_favicon_url="/docs/favicon.png",
        )

    for name, kind in _ASSETS.items():
        _add_asset(app, name, kind)


def _add_asset(app: FastAPI, name: str, kind: str) -> None:
    @app.get(f"/docs/{name}", include_in_schema=False)
    async def asset() -> Response:
        return Response(_asset(name), media_type=kind)


@lru_cache
def _asset(name: str) -> bytes:
    return files("fastapi_offline").joinpath("static", name).read_bytes()
