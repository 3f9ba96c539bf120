"""Grammars to masks: what may come next, where an answer ends, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from legato.core.config import GrammarConfig
from legato.core.errors import QueueFullError, RequestError
from legato.core.grammar import Grammar, StructuredOutputsParams
from legato.sampling.compiler import GrammarCompiler, Vocabulary
from legato.sampling.trial import Trial
from support.byte_level import EOS, TOKENIZER, VOCAB, byte_tokens
from support.grammars import allowed, compiled, compiler, ends_after, make_compiler, schema, spell

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def refused(grammar: Grammar) -> str:
    with pytest.raises(RequestError) as caught:
        compiler().compile(grammar)
    assert caught.value.param == grammar.param
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def test_masks_are_bits_over_the_vocabulary_and_no_control_token_is_text() -> None:
    matcher = compiled(Grammar("regex", ".*")).matcher(frozenset({EOS}))
    assert len(matcher.mask) == (VOCAB + 7) // 8
    assert set(range(3)) & set(allowed(matcher.mask)) == {EOS}
    assert set(byte_tokens("a<|{ ")) <= set(allowed(matcher.mask))
    without = compiled(Grammar("regex", ".*")).matcher(frozenset())
    assert set(allowed(matcher.mask)) - set(allowed(without.mask)) == {EOS}, "under ignore_eos the end is not allowed"


@pytest.mark.parametrize(
    ("grammar", "whole", "not_whole"),
    [
        (schema(PERSON), '{"name":"Ann","age":7}', '{"name":"Ann","age":'),
        (schema(PERSON), '{\n  "name": "Ann",\n\t"age": 7\n}', '{"name": "'),
        (schema({}), "[null, 1.5]", "["),
        (schema(True), '"x"', '"x'),
        (Grammar("json_object"), '{"a": [1, {"b": null}]}', "{"),
        (Grammar("regex", "[a-c]{2,3}"), "ab", "a"),
        (Grammar("regex", "^x+$"), "xx", ""),
        (Grammar("choice", '["Paris", "Par", "a\\"/\\\\b\\n\\u00e9"]'), "Paris", "Pari"),
        (Grammar("choice", '["Paris", "Par", "a\\"/\\\\b\\n\\u00e9"]'), 'a"/\\b\né', 'a"'),
        (Grammar("lark", 'start: "yes" | "no" " never"?'), "no never", "no n"),
        (Grammar("lark", 'root ::= ("a" | "b")+ "."'), "abba.", "abba"),
        (Grammar("lark", 'start: "<call>" %json {"type": "integer"} "</call>"'), "<call>12</call>", "<call>12"),
    ],
)
def test_kinds(grammar: Grammar, whole: str, not_whole: str) -> None:
    assert ends_after(grammar, whole)
    assert not ends_after(grammar, not_whole)


def test_nothing_else_can_follow_is_complete_even_where_a_longer_answer_was_possible() -> None:
    paris = Grammar("choice", '["Paris", "Par"]')
    assert not spell(paris, "Par").complete
    assert spell(paris, "Paris").complete
    assert spell(schema(PERSON), '{"name":"Ann","age":7}').complete
    assert not spell(Grammar("regex", "a*"), "aaa").complete


def test_b01_white_space_is_bounded() -> None:
    """B01: between the tokens of JSON one space, or a new line with its indentation; none outside."""
    grammar = schema(PERSON)
    assert spell(grammar, "{\n" + " " * 16 + '"name" : "')
    for text in ("{  ", "{\n\n", "{" + "\n" + " " * 17, " ", '{"name":"Ann","age":7} ', "{\r"):
        with pytest.raises(AssertionError, match=r"may not follow|complete before"):
            spell(grammar, text)


def test_white_space_as_asked() -> None:
    def grammar(**options: Any) -> Grammar:
        return StructuredOutputsParams(json=PERSON, **options).to_grammar()

    assert ends_after(grammar(disable_any_whitespace=True), '{"name":"Ann","age":7}')
    with pytest.raises(AssertionError, match="may not follow"):
        spell(grammar(disable_any_whitespace=True), "{ ")
    assert ends_after(grammar(whitespace_pattern=" {1,3}"), '{   "name":"Ann",  "age":7}')
    with pytest.raises(AssertionError, match="may not follow"):
        spell(grammar(whitespace_pattern=" {1,3}"), "{\n")


def test_additional_properties_can_be_closed() -> None:
    open_ = {"properties": {"a": {"type": "array", "items": {"properties": {"b": {}}}}, "c": {"patternProperties": {}}}}
    closed = json.loads(StructuredOutputsParams(json=open_, disable_additional_properties=True).to_grammar().source)
    inner = closed["properties"]["a"]["items"]
    assert closed["additionalProperties"] is False
    assert inner["additionalProperties"] is False
    assert "additionalProperties" not in closed["properties"]["c"]


def test_b03_what_comes_after_the_end_is_refused_without_an_error_elsewhere() -> None:
    """B03: tokens behind the end, as a draft may propose them, end this matcher and nothing else."""
    matcher = spell(schema(PERSON), '{"name":"Ann","age":7}')
    assert (matcher.complete, matcher.failure) == (True, None)
    matcher.accept(byte_tokens("}")[0])
    assert matcher.failure
    assert spell(schema(PERSON), '{"name":"Ann","age":7}').complete


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (schema({"type": "object", "properties": {"a": "string"}}), "schema must be an object or boolean"),
        (schema({"type": "frob"}), "Invalid type: frob"),
        (schema({"$ref": "#/$defs/gone"}), "does not exist"),
        (schema({"$ref": "#"}), "nothing but the empty text"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "nothing"),
        (schema({"$ref": "http://localhost/schema"}), "not present in a registry"),
        (schema(False), "no value fits"),
        (schema([1]), "must be an object"),
        (schema({"not": {}}), 'Unimplemented keys: ["not"]'),
        (schema({"format": "frob", "type": "string"}), "Unknown format: frob"),
        (schema({"pattern": "*a", "type": "string"}), "repetition operator missing expression"),
        (schema({"minimum": 5, "maximum": 1, "type": "integer"}), "minimum"),
        (Grammar("regex", "*a"), "repetition operator missing expression"),
        (Grammar("regex", "(" * 3000 + "a" + ")" * 3000), "regex"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", "(|)"), "nothing but the empty text"),
        (Grammar("lark", "start: ("), "Expected token"),
        (Grammar("lark", "root ::= ("), "Expected"),
        (Grammar("lark", "root ::= " + "(" * 5000), "recursion"),
    ],
    ids=range(19),
)
def test_b05_what_cannot_be_used_is_refused_with_the_reason(grammar: Grammar, reason: str) -> None:
    """B05: schemas and expressions that are wrong, unsatisfiable or go in circles. An empty schema is any JSON."""
    assert reason in refused(grammar)
    assert ends_after(schema({}), "{}")


def chain(rule: str, first: str = "") -> Grammar:
    """A grammar whose rules refer to each other 10,000 levels deep."""
    rules = "\n".join(f'{rule}{i}: {rule}{i + 1} "x"' for i in range(10_000))
    return Grammar("lark", f'start: {rule}0\n{rules}\n{rule}10000: "a"')


@pytest.mark.parametrize(
    "grammar",
    [
        chain("r"),
        chain("T"),
        schema(
            {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(7000)} | {"7000": {}}}
        ),
    ],
    ids=["rules", "terminals", "refs"],
)
def test_b05_what_overflows_the_stack_kills_a_process_that_is_there_for_it(grammar: Grammar) -> None:
    """B05: the process that tries grammars dies, the next grammar gets a new one."""
    assert "memory or stack" in refused(grammar)
    assert compiler().compile(schema(PERSON))


def nested(depth: int, values: int) -> Any:
    leaf = {"enum": [f"value number {i}" for i in range(values)]}
    inner: Any = leaf
    for i in range(depth):
        inner = {"type": "object", "properties": {f"p{i}": inner, f"q{i}": leaf}, "required": [f"p{i}", f"q{i}"]}
    return inner


def test_b06_what_is_large_but_fine_compiles() -> None:
    """B06: nested objects with wide enums, long strings, nested repetitions."""
    for grammar in (
        schema(nested(20, 20)),
        schema({"type": "string", "maxLength": 100_000}),
        Grammar("regex", "((a{1,1000}){1,1000}){1,1000}"),
    ):
        assert compiler().compile(grammar)


def test_b06_what_costs_too_much_is_refused() -> None:
    """B06: limits on length, depth, time and memory, each with its flag in the message."""
    assert "max_grammar_bytes" in refused(schema({"enum": [f"value {i}" for i in range(50_000)]}))
    assert "max_grammar_depth" in refused(schema(nested(40, 2)))
    deep = '{"items":' * 100_000 + "{}" + "}" * 100_000
    with pytest.raises(RequestError, match=r"nested too deeply|max_grammar_depth"):
        compiler().compile(StructuredOutputsParams(json=deep).to_grammar())


def test_b06_a_token_takes_a_bounded_time() -> None:
    """B06: a grammar that is ever more ambiguous ends its own answer; one that is so from the start is refused."""
    strict = make_compiler(max_grammar_items=300)
    matcher = strict.compile(Grammar("lark", "start: start start | /[a-z]/")).matcher(frozenset())
    letter = byte_tokens("a")[0]
    for _ in range(200):
        matcher.accept(letter)
        if matcher.failure is not None:
            break
    assert "Too many items" in (matcher.failure or "")
    wide = schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}})
    with pytest.raises(RequestError, match="items"):
        strict.compile(wide)
    strict.close()


def test_b06_compiling_takes_a_bounded_memory() -> None:
    """B06: what needs more than it may have is refused, and what follows is not."""
    small = make_compiler(max_grammar_memory=64 << 20)
    with pytest.raises(RequestError, match="max_grammar_memory"):
        small.compile(Grammar("regex", "(a|b*)" * 8000))
    assert small.compile(Grammar("regex", "a+"))
    small.close()


def test_b06_compiling_ends_after_its_time() -> None:
    """B06: the CPU time of a grammar is bounded, whatever the machine does beside it."""
    slow = schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}})
    impatient = make_compiler(grammar_timeout=0.05)
    with pytest.raises(RequestError, match="grammar_timeout"):
        impatient.compile(slow)
    assert impatient.compile(Grammar("regex", "a+"))
    impatient.close()
    with pytest.raises(QueueFullError, match="shutting down"):
        impatient.compile(Grammar("regex", "a+"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": [""]}, "structured_outputs.choice"),
        ({"regex": "a\0"}, "structured_outputs.regex"),
        ({"regex": ""}, "structured_outputs.regex"),
        ({"grammar": ""}, "structured_outputs.grammar"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": {"x-guidance": {}}}, "structured_outputs.json"),
        ({"json": {"const": float("nan")}}, "structured_outputs.json"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        ({"regex": "a", "disable_any_whitespace": True}, "structured_outputs.disable_any_whitespace"),
        ({"regex": "a", "disable_additional_properties": True}, "structured_outputs.disable_additional_properties"),
        (
            {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "},
            "structured_outputs.whitespace_pattern",
        ),
    ],
)
def test_descriptions_that_say_nothing_or_too_much(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputsParams(**fields).to_grammar()
    assert caught.value.param == param


def test_forced_text_is_written_in_the_tokens_of_the_tokenizer() -> None:
    matcher = compiled(Grammar("regex", "hello!")).matcher(frozenset())
    assert allowed(matcher.mask) == TOKENIZER.encode("hello")


def test_forced_texts_that_come_again_are_encoded_once() -> None:
    """Long ones are encoded each time: what is kept is bounded."""
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return TOKENIZER.encode_further(text)

    tokens = Vocabulary(VOCAB, TOKENIZER.token_bytes, TOKENIZER.special_tokens.values(), encode)
    compiler = GrammarCompiler(tokens, GrammarConfig())
    grammar = compiler.compile(Grammar("regex", "hello!"))
    first = grammar.matcher(frozenset()).mask
    asked.clear()
    matcher = compiler.compile(Grammar("regex", "hello!")).matcher(frozenset())
    assert (matcher.mask, asked) == (first, [])
    for _ in range(2):
        asked.clear()
        compiler.compile(Grammar("regex", f"{'long' * 20}!"))
        assert asked
    compiler.close()


def test_b06_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B06: one that takes no CPU time does not run into the limit on that. The next grammar gets a new one."""
    program = tmp_path / "hangs.py"
    program.write_text("import signal\nsignal.pause()\n")
    tried = Trial(lambda: {"seconds": 1}, limit_s=0.1)
    monkeypatch.setattr("legato.sampling.trial._PROGRAM", program)
    for _ in range(2):
        with pytest.raises(QueueFullError, match="hangs") as caught:
            tried.run("regex", "a")
        assert caught.value.status == 503
    tried.close()


def test_f03_a_process_that_was_killed_between_two_grammars_is_replaced() -> None:
    """F03: whoever ended it, for instance the kernel for want of memory, the next grammar is not to blame."""
    compiler = make_compiler()
    compiler.compile(Grammar("regex", "a+"))
    first = compiler._trial._child
    assert first is not None
    first.kill()
    first.wait()
    compiler.compile(Grammar("regex", "b+"))
    assert compiler._trial._child is not first
    compiler.close()
