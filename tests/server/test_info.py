"""The endpoints that only tell."""

import openai
import pytest
from tests.server.calls import TOOLS
from tests.server.serving import HELLO, MODEL, TOKENIZER, Serving, check_error

from hotloop import __version__
from hotloop.core.config import ServerConfig


def test_version(serving: Serving) -> None:
    assert serving.http.get("/version").json() == {"version": __version__}


def test_what_clients_ask_for_first() -> None:
    """Claude Code asks whether anybody is there before it sends its key; others look at the root, or at the models."""
    with Serving(ServerConfig(port=0, api_key="k")) as serving:
        for path in ("/", "/api/hello"):
            head, answer = serving.http.head(path), serving.http.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert answer.json() == {"status": "ok"}
        assert serving.http.head("/v1/models").status_code == 401
        for path in ("/v1/models", f"/v1/models/{MODEL}"):
            head = serving.http.head(path, headers={"x-api-key": "k"})
            assert (head.status_code, head.content) == (200, b"")


def test_models(serving: Serving) -> None:
    [model] = serving.http.get("/v1/models").json()["data"]
    assert model == serving.http.get(f"/v1/models/{MODEL}").json()
    assert model["max_model_len"] == serving.engine.max_context
    check_error(serving.http.get("/v1/models/a/b"), 404, "model_not_found")


def test_another_name_for_the_model() -> None:
    with Serving(ServerConfig(port=0, served_name="our/model")) as serving:
        assert serving.http.get("/v1/models/our/model").json()["id"] == "our/model"
        assert serving.chat(model="our/model").json()["model"] == "our/model"
        check_error(serving.chat(model=MODEL), 404, "model_not_found")


def test_no_model_name_means_the_only_one(serving: Serving) -> None:
    assert serving.chat().json()["model"] == MODEL


def test_tokenize_text_and_back(serving: Serving) -> None:
    answer = serving.http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    ids = TOKENIZER.encode("hé")
    assert answer == {
        "count": 3,
        "max_model_len": serving.engine.max_context,
        "tokens": ids,
        "token_strs": [TOKENIZER.token_text(token_id) for token_id in ids],
    }
    assert serving.http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "hé"}


def test_tokenize_messages_as_chat_would(serving: Serving) -> None:
    answer = serving.http.post("/tokenize", json={"messages": HELLO}).json()
    assert answer["token_strs"] is None
    usage = serving.chat().json()["usage"]
    assert answer["count"] == usage["prompt_tokens"]
    short = serving.http.post("/tokenize", json={"messages": HELLO, "add_generation_prompt": False}).json()
    assert short["tokens"] == answer["tokens"][: short["count"]]


def test_tokenize_tools_as_chat_would(serving: Serving) -> None:
    fields = {"messages": HELLO, "tools": TOOLS}
    plain, shown = (serving.http.post("/tokenize", json=body).json()["count"] for body in ({"messages": HELLO}, fields))
    assert shown == serving.chat(**fields).json()["usage"]["prompt_tokens"] > plain


@pytest.mark.parametrize(
    "body", [{"prompt": "x", "messages": HELLO}, {"messages": []}, {"prompt": 1}, {"model": "gpt-9"}]
)
def test_what_cannot_be_tokenized(serving: Serving, body: dict[str, object]) -> None:
    response = serving.http.post("/tokenize", json=body)
    check_error(response, 404 if "model" in body else 400)


def test_tokens_that_do_not_exist(serving: Serving) -> None:
    assert check_error(serving.http.post("/detokenize", json={"tokens": [10**6]}), 400)["param"] == "tokens"


def test_a_model_without_a_template_completes_but_does_not_chat() -> None:
    with Serving(has_template=False) as serving:
        error = check_error(serving.chat(), 400)
        assert "chat template" in error["message"]
        assert serving.complete().status_code == 200
        assert "/v1/completions" in serving.curl


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}"])
def test_anthropic_clients_find_the_id_of_the_request_at_the_models(serving: Serving, path: str) -> None:
    answer = serving.http.get(path, headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 200
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert "request-id" not in serving.http.get(path).headers


def test_who_looks_for_embeddings_is_told_where_there_are_some(serving: Serving) -> None:
    answer = serving.http.post("/v1/embeddings", json={"model": MODEL, "input": "hello"})
    message = check_error(answer, 404, "api_not_served")["message"]
    assert "computes no embeddings" in message
    assert "hotloop route" in message
    with serving.openai() as client, pytest.raises(openai.NotFoundError, match="computes no embeddings"):
        client.embeddings.create(model=MODEL, input="hello")


def test_anthropic_clients_hear_of_an_unknown_model_in_their_shape(serving: Serving) -> None:
    answer = serving.http.get("/v1/models/other", headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "not_found_error"
