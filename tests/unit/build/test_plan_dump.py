"""Plans as JSON read back equal; damaged ones are refused."""

import json

import pytest

from legato.build.dump import dump, from_json, to_json
from legato.build.lower import lower
from legato.build.plan import Plan
from legato.build.verify import PlanError
from legato.models.find import find
from support.tiny_models import ARCHITECTURES, tiny_config, tiny_source


def make(model_type: str) -> Plan:
    source = tiny_source(tiny_config(model_type, **({"sliding_window": 8} if model_type == "mistral" else {})))
    return lower(find(source.config, "config.json"), source)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_json_round_trip(model_type: str) -> None:
    plan = make(model_type)
    again = from_json(to_json(plan))
    assert again == plan
    assert to_json(again) == to_json(plan)
    assert dump(again) == dump(plan)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", to_json(make("llama"))[:-2]])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="plan is damaged"):
        from_json(text)


@pytest.mark.parametrize("part", ["ops", "tensors", "buffers", "ropes", "groups"])
def test_unknown_fields_are_refused(part: str) -> None:
    document = json.loads(to_json(make("llama")))
    document[part][0]["extra"] = 1
    with pytest.raises(PlanError, match="extra"):
        from_json(json.dumps(document))


def test_unknown_ops_and_keys_are_refused() -> None:
    document = json.loads(to_json(make("llama")))
    with pytest.raises(PlanError, match="unknown key 'more'"):
        from_json(json.dumps({**document, "more": 1}))
    document["ops"][0]["op"] = "teleport"
    with pytest.raises(PlanError, match="teleport"):
        from_json(json.dumps(document))
