"""What is said of the models that are served, by one server or by several together."""

from hypothesis import given
from hypothesis import strategies as st

from hotloop.wire.models import ServedModel, merge_models, parse_model, render_model, render_models

VLLM = {
    "id": "org/name",
    "object": "model",
    "created": 1_795_000_000,
    "owned_by": "vllm",
    "root": "/models/name",
    "max_model_len": 32768,
    "permission": [{"id": "modelperm-1", "allow_view": True}],
}
json = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)


def test_nothing_of_what_is_listed_is_lost() -> None:
    shown = render_model(parse_model("ours", VLLM), for_anthropic=False)
    assert shown == {**VLLM, "id": "ours"}
    shown = render_model(parse_model("ours", VLLM), for_anthropic=True)
    assert (shown["id"], shown["created_at"], shown["max_input_tokens"]) == ("ours", "2026-11-18T11:06:40Z", 32768)


def test_what_several_say_of_a_model_is_put_together() -> None:
    """Its context is what each of them has room for."""
    small = {"id": "m", "created": 1_700_000_000, "owned_by": "hotloop", "max_model_len": 4096}
    models = [parse_model("m", {**VLLM, "id": "m"}), ServedModel("m"), parse_model("m", small), ServedModel("a")]
    [first, merged] = merge_models(models)
    assert first == ServedModel("a")
    assert (merged.created_at, merged.max_context) == (1_700_000_000, 4096)
    shown = render_model(merged, for_anthropic=False)
    assert {"root", "permission"} <= shown.keys()
    assert (shown["owned_by"], shown["created"], shown["max_model_len"]) == ("vllm", 1_700_000_000, 4096)
    assert [each["id"] for each in render_models([first, merged], for_anthropic=False)["data"]] == ["a", "m"]


def test_contexts_have_many_names() -> None:
    for listed in ({"context_length": 9}, {"context_window": 9}, {"meta": {"n_ctx": 9}}, {"max_input_tokens": 9}):
        assert render_model(parse_model("m", listed), for_anthropic=False)["max_model_len"] == 9


def test_what_is_not_known_is_not_made_up() -> None:
    for listed in (
        {},
        {"created": -1, "max_model_len": 0},
        {"created": 10**18, "max_model_len": True},
        {"created": "1"},
    ):
        model = parse_model("m", listed)
        assert (model.created_at, model.max_context) == (0, None)
        assert render_model(model, for_anthropic=True)["created_at"] == "1970-01-01T00:00:00Z"


@given(st.dictionaries(st.sampled_from([*VLLM, "meta", "context_length"]), json))
def test_whatever_is_listed_can_be_shown(listed: dict[str, object]) -> None:
    for for_anthropic in (False, True):
        assert render_model(parse_model("m", listed), for_anthropic=for_anthropic)["id"] == "m"
