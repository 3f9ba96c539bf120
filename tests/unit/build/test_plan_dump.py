"""Plans as JSON read back equal; damaged ones are refused."""

import json

import pytest

from legato.build.dump import dump, from_json, to_json
from legato.build.lower import lower
from legato.build.plan import Plan
from legato.models.find import find
from support.tiny_models import ARCHITECTURES, tiny_config, tiny_source


def make(model_type: str) -> Plan:
    source = tiny_source(tiny_config(model_type, **({"sliding_window": 8} if model_type == "mistral" else {})))
    return lower(find(source.config, "config.json"), source)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_json_round_trip(model_type: str) -> None:
    plan = make(model_type)
    again = from_json(json.loads(json.dumps(to_json(plan))))
    assert again == plan
    assert to_json(again) == to_json(plan)
    assert dump(again) == dump(plan)


@pytest.mark.parametrize("document", [None, [], {}, 1, "plan", {"ops": []}, {**to_json(make("llama")), "ropes": 3}])
def test_other_documents_are_refused(document: object) -> None:
    with pytest.raises(ValueError, match="plan is damaged"):
        from_json(document)


@pytest.mark.parametrize("part", ["ops", "tensors", "buffers", "ropes", "groups"])
def test_unknown_fields_are_refused(part: str) -> None:
    document = to_json(make("llama"))
    document[part][0]["extra"] = 1
    with pytest.raises(ValueError, match="extra"):
        from_json(document)


def test_unknown_ops_and_keys_are_refused() -> None:
    document = to_json(make("llama"))
    with pytest.raises(ValueError, match="unknown key 'more'"):
        from_json({**document, "more": 1})
    document["ops"][0]["op"] = "teleport"
    with pytest.raises(ValueError, match="teleport"):
        from_json(document)
