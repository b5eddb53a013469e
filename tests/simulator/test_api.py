"""Every endpoint over real HTTP: the response formats that clients of vLLM rely on."""

import base64
import struct
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread

HELLO = [{"role": "user", "content": "Hello there, how are you today?"}]


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    """Return the JSON response to a JSON body; the request must succeed."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_chat_is_answered(client: httpx.Client) -> None:
    """Model, message, finish reason and usage are where clients look for them."""
    answer = post(client, "/v1/chat/completions", model="toy", messages=HELLO, max_tokens=5)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "toy"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 20
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


def test_an_answer_ends_by_itself_when_no_length_is_given(client: httpx.Client) -> None:
    """Then a prompt always gets the same answer, of moderate length."""
    one, two = (post(client, "/v1/chat/completions", messages=HELLO) for _ in range(2))
    assert one["choices"] == two["choices"]
    assert one["choices"][0]["finish_reason"] == "stop"
    assert 32 <= one["usage"]["completion_tokens"] <= 256


def test_the_next_turn_finds_the_previous_answer_in_the_cache(client: httpx.Client) -> None:
    """The second turn's cached tokens are the first turn's prompt and answer, in full blocks."""
    question = [{"role": "user", "content": "multi-turn " * 50}]
    first = post(client, "/v1/chat/completions", messages=question, max_tokens=100)
    turns = [*question, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    second = post(client, "/v1/chat/completions", messages=turns, max_tokens=5)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    computed = first["usage"]["total_tokens"] - 1  # the last token was never computed
    assert cached == computed // 16 * 16


def test_salts_and_adapters_do_not_share_prefixes(client: httpx.Client) -> None:
    """Equal prompts hit only with the same salt and the same adapter."""
    messages = [{"role": "user", "content": "whose is it? " * 30}]

    def cached(**more: str) -> bool:
        body = {"messages": messages, "max_tokens": 1, **more}
        answer = post(client, "/v1/chat/completions", **body)
        return bool(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    for who in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "tuned"}):
        assert not cached(**who)
        assert cached(**who)
    assert cached(model="alias")


def test_router_tokens_replace_the_rendered_prompt(client: httpx.Client) -> None:
    """If `kv_transfer_params.prompt_token_ids` is given, these tokens are the prompt."""
    ids = {"prompt_token_ids": list(range(40))}
    body = {"messages": HELLO, "max_tokens": 1, "kv_transfer_params": ids}
    assert post(client, "/v1/chat/completions", **body)["usage"]["prompt_tokens"] == 40


@pytest.mark.parametrize(
    ("prompt", "choices", "tokens"),
    [
        ("abcdefgh", 1, 2),
        (["abcd", "abcdefgh"], 2, 3),
        ([1, 2, 3], 1, 3),
        ([[1, 2], [3]], 2, 3),
    ],
)
def test_a_completion_takes_prompts_of_every_kind(
    client: httpx.Client, prompt: object, choices: int, tokens: int
) -> None:
    """A text, several texts, token ids, or several lists of token ids."""
    answer = post(client, "/v1/completions", prompt=prompt, max_tokens=3)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
    assert all(len(choice["text"]) == 12 for choice in answer["choices"])
    assert answer["usage"]["prompt_tokens"] == tokens
    assert answer["usage"]["completion_tokens"] == 3 * choices


def test_a_request_id_is_echoed(client: httpx.Client) -> None:
    """In the header, on errors too, and in the body's id."""
    for body, status in (({"messages": HELLO, "max_tokens": 1}, 200), ({"messages": 1}, 400)):
        headers = {"X-Request-Id": "rid-42"}
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == status
        assert answer.headers["x-request-id"] == "rid-42"
        if status == 200:
            assert answer.json()["id"] == "chatcmpl-rid-42"


def test_an_unknown_model_is_not_found(client: httpx.Client) -> None:
    """The error is worded as in vLLM."""
    answer = client.post("/v1/chat/completions", json={"model": "no", "messages": HELLO})
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "message": "The model `no` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/v1/chat/completions", b"{", "truncated"),
        ("/v1/chat/completions", b'{"messages":[{"content":"\xff"}]}', "utf-8"),
        ("/v1/chat/completions", b"{}", "messages"),
        ("/v1/chat/completions", b'{"messages":[]}', "messages"),
        ("/v1/chat/completions", b'{"messages":[{}],"max_tokens":0}', "at least 1"),
        ("/v1/chat/completions", b'{"messages":[{}],"n":0}', "n"),
        ("/v1/chat/completions", b'{"messages":[{}],"cache_salt":""}', "cache_salt"),
        ("/v1/completions", b'{"prompt":"a","max_tokens":999999}', "too large"),
        ("/v1/completions", b'{"prompt":""}', "empty"),
        ("/v1/completions", b'{"prompt":[]}', "empty"),
        ("/v1/completions", b'{"prompt":[1,-2]}', "out of vocabulary"),
        ("/v1/completions", b'{"prompt":[[]]}', "empty"),
        ("/v1/completions", b'{"prompt":[{}]}', "token ids"),
        (
            "/v1/chat/completions",
            b'{"messages":[{}],"kv_transfer_params":{"prompt_token_ids":[]}}',
            "empty",
        ),
        ("/v1/embeddings", b"{}", "input"),
        ("/tokenize", b"{}", "prompt"),
        ("/rerank", b'{"query":"a","documents":[]}', "document"),
        ("/score", b'{"text_1":"a"}', "texts"),
        ("/score", b'{"text_1":["a","b"],"text_2":["a","b","c"]}', "1:N"),
        ("/score", b'{"text_1":[],"text_2":["a"]}', "side"),
        ("/simulator/fault", b'{"kind":"odd"}', "kind"),
        ("/v1/audio/transcriptions", b"nothing", "multipart"),
    ],
)
def test_what_is_malformed_is_refused_with_a_reason(
    client: httpx.Client, path: str, body: bytes, word: str
) -> None:
    """Status 400 in vLLM's error format, naming what is wrong."""
    answer = client.post(path, content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "BadRequestError"
    assert error["code"] == 400
    assert word in error["message"]


def test_a_response_is_answered(client: httpx.Client) -> None:
    """OpenAI's Responses API."""
    body = {"input": "Hello", "instructions": "Be kind.", "max_output_tokens": 4}
    answer = post(client, "/v1/responses", **body)
    assert (answer["object"], answer["status"]) == ("response", "completed")
    assert len(answer["output"][0]["content"][0]["text"]) == 16
    assert answer["usage"]["output_tokens"] == 4
    again = post(client, "/v1/responses", input=[{"role": "user", "content": "Hello"}])
    assert again["output"][0]["role"] == "assistant"


def test_a_message_is_answered(client: httpx.Client) -> None:
    """Anthropic's Messages API, and its token count."""
    body = {"model": "toy", "messages": HELLO, "system": "Be kind.", "max_tokens": 4}
    answer = post(client, "/v1/messages", **body)
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["stop_reason"] == "max_tokens"
    counted = post(client, "/v1/messages/count_tokens", **body)["input_tokens"]
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted


def test_invocations_are_chats_or_completions(client: httpx.Client) -> None:
    """SageMaker's single path takes both kinds of body."""
    chat = post(client, "/invocations", messages=HELLO, max_tokens=1)
    assert chat["object"] == "chat.completion"
    assert post(client, "/invocations", prompt="a", max_tokens=1)["object"] == "text_completion"


def test_embeddings_come_as_numbers_or_base64(client: httpx.Client) -> None:
    """The same vector either way; the official client asks for base64 by default."""
    plain = post(client, "/v1/embeddings", input=["a", "b"], dimensions=8)
    assert [item["index"] for item in plain["data"]] == [0, 1]
    packed = post(
        client, "/v1/embeddings", input=["a", "b"], dimensions=8, encoding_format="base64"
    )
    for one, two in zip(plain["data"], packed["data"], strict=True):
        floats = struct.unpack("<8f", base64.b64decode(two["embedding"]))
        assert floats == pytest.approx(one["embedding"], rel=1e-6)
    assert plain["usage"]["prompt_tokens"] == 2


def test_the_other_numbers_have_their_shapes(client: httpx.Client) -> None:
    """Pooling, classification, scores and rankings."""
    assert post(client, "/pooling", input="a")["data"][0]["object"] == "pooling"
    assert post(client, "/pooling", messages=HELLO)["data"][0]["index"] == 0
    classes = post(client, "/classify", input=["a", "b"])["data"]
    assert all(sum(item["probs"]) == pytest.approx(1.0) for item in classes)
    for path in ("/score", "/v1/score"):
        scores = post(client, path, text_1="a", text_2=["b", "c"])["data"]
        assert [item["object"] for item in scores] == ["score", "score"]
    assert len(post(client, "/score", text_1=["a", "b"], text_2=["c", "d"])["data"]) == 2
    for path in ("/rerank", "/v1/rerank"):
        ranking = post(client, path, query="a", documents=["b", "c", "d"], top_n=2)["results"]
        assert len(ranking) == 2
        assert ranking[0]["relevance_score"] >= ranking[1]["relevance_score"]


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_sound_is_heard(client: httpx.Client, path: str) -> None:
    """A form with a file is answered with a text, as JSON or plain."""
    file = {"file": ("a.wav", b"RIFF" * 9000, "audio/wav")}
    answer = client.post(path, files=file, data={"model": "toy"}).json()
    assert answer["text"]
    assert answer["usage"] == {"type": "duration", "seconds": 2}
    plain = client.post(path, files=file, data={"model": "toy", "response_format": "text"})
    assert plain.text == answer["text"]
    assert client.post(path, files=file, data={"model": "no"}).status_code == 404
    assert client.post(path, files={"other": b""}, data={"model": "toy"}).status_code == 400


def test_the_worker_tells_about_itself(client: httpx.Client, shared: FleetThread) -> None:
    """Health, version, load, models, and event sources."""
    for path in ("/health", "/ping"):
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.get("/version").json()["version"]
    assert client.get("/load").json() == {"server_load": 0}
    models = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["toy", "alias", "tuned"]
    assert models[0]["owned_by"] == "vllm"
    assert models[0]["max_model_len"] == 16_384
    assert [model["parent"] for model in models] == [None, None, "toy"]
    source = client.get("/kv_event_sources").json()["0"]
    assert source["endpoint"] == shared.workers[0].kv_events
    assert source["topic"] == "kv@sim-1@toy"


def test_unknown_paths_and_methods_are_refused(client: httpx.Client) -> None:
    """With the status codes FastAPI uses."""
    assert client.get("/nothing").status_code == 404
    assert client.get("/v1/chat/completions").status_code == 405
    assert client.delete("/health").status_code == 405
