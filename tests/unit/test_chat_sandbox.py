"""A chat template is foreign code: it reaches nothing, and it cannot hang or fill the process (G01)."""

import threading
from pathlib import Path
from typing import Any

import pytest

from legato.chat.budget import TemplateTooExpensive
from legato.chat.sandbox import Sandbox
from legato.chat.template import ChatTemplate
from legato.core.errors import LegatoError, RequestError
from legato.tokenizer.assets import assets_from_folder, assets_from_gguf
from legato.tokenizer.tokenizer import Tokenizer
from support.tiny_tokenizers import byte_level, byte_level_metadata, tiny_assets

TOKENIZER = byte_level()
TALK = [{"role": "user", "content": "hello"}]


def render(source: str, **variables: Any) -> str:
    sandbox = Sandbox()
    return sandbox.render(sandbox.compile_template(source), variables)


ATTACKS = [
    "{{ cycler.__init__.__globals__.os.system(COMMAND) }}",
    "{{ joiner.__init__.__globals__['os'].popen(COMMAND).read() }}",
    "{{ namespace.__init__.__globals__.__builtins__.open(FILE, 'w') }}",
    "{{ lipsum.__globals__['os'].system(COMMAND) }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os').system(COMMAND) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}{{ ''['__cl' ~ 'ass__'].__base__ }}",
    "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
    "{{ messages | attr('__class__') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ '%s' | format(raise_exception.__globals__) }}",
    "{{ raise_exception.__globals__['__builtins__'] }}",
    "{{ strftime_now.__globals__ }}{{ strftime_now.__code__ }}",
    "{{ range.__self__ }}{{ dict.__subclasses__() }}{{ dict.mro() }}",
    "{{ messages.append('x') }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].__setitem__('role', 'system') }}",
    "{% set x = messages.pop() %}{{ x }}",
    "{{ (1).to_bytes(4, 'big') }}{{ (1).__class__ }}",
    "{{ 'x'.encode() }}",
    "{% for x in messages %}{{ loop.__class__ }}{{ loop._iterator.gi_frame }}{% endfor %}",
    "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._func.__globals__ }}",
    "{% import 'os' as os %}{{ os }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ messages | tojson(default=raise_exception) }}",
    "{{ caller.__globals__ }}{{ varargs.__class__ }}",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_g01_nothing_is_reached(attack: str, tmp_path: Path) -> None:
    target = tmp_path / "touched"
    source = attack.replace("COMMAND", f"'touch {target}'").replace("FILE", f"'{target}'")
    talk = [{"role": "user", "content": "hello"}]
    try:
        ids = ChatTemplate(source, TOKENIZER).prompt(talk)
    except LegatoError:
        ids = []
    assert ids == []  # refused, or every attribute undefined
    assert not target.exists()
    assert talk == TALK


def test_g01_every_source_of_templates_is_sandboxed(tmp_path: Path) -> None:
    attack = ATTACKS[0].replace("COMMAND", f"'touch {tmp_path}/touched'")
    (tmp_path / "tokenizer.json").write_text(tiny_assets().tokenizer_json)
    (tmp_path / "chat_template.jinja").write_text(attack)
    gguf = assets_from_gguf(byte_level_metadata(**{"tokenizer.chat_template": attack}))
    for assets in (gguf, assets_from_folder(tmp_path)):
        assert assets.chat_template == attack
        with pytest.raises(RequestError, match="the chat template failed"):
            ChatTemplate(assets.chat_template, Tokenizer(assets)).prompt(TALK)
    assert not (tmp_path / "touched").exists()


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
    "{{ range(10 ** 9) | list }}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ [0] * 10 ** 10 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{% set ns = namespace(x=7) %}{% for i in range(99999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x == n.x }}",
    "{% set a = 'a' * 99999 %}{{ a.replace('a', a) }}",
    "{% set a = 'a' * 99999 %}{{ a | replace('a', a) }}",
    "{% set a = 'a' * 99999 %}{{ a.join(a) }}",
    "{% set a = 'a' * 99999 %}{{ a | join(a) }}",
    "{% set a = '\n' * 99999 %}{{ a | indent(99999) }}",
    "{% set a = '\n' * 99999 %}{{ a | indent(a) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=999999999) }}",
    "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "{{ 1.5 | round(999999999, 'ceil') }}",
    "{{ messages | tojson(indent=999999999) }}",
    "{{ strftime_now('%c' * 99999) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set r = range(99999) | list %}{% for a in r %}{% if -1 in r %}{% endif %}{% endfor %}",
    "{% set r = range(99999) | list %}{{ r | select('in', r) | list | length }}",
    "{% set r = 'a' * 9999999 %}{% for a in range(99999) %}{% if r == r[1:] %}{% endif %}{% endfor %}",
    "{% set r = 'a' * 9999999 %}{% for a in range(99999) %}{% set b = r.upper() %}{% endfor %}",
    "{% set r = ['a' * 9999] * 9999 %}{{ r | select | join }}",
    "{% set r = ['a' * 9999] * 9999 %}{{ ''.join(r | select) }}",
    "{% set r = ['a' * 9999] * 9999 %}{{ r | select | unique | list }}{{ r | select | max }}",
    "{% set a, b = 'a' * 999999, 'a' * 999998 ~ 'a' %}{% for i in range(9999) %}{{ loop.changed(a, b) }}{% endfor %}",
    "{% set r = ['a' * 9999] * 9999 %}{{ r.index('b') }}",
    "{{ ('a' * 999999) | list }}",
    "{{ ('a' * 999999) | select | list }}",
    "{{ ('a,' * 999999).split(',') }}",
    "{{ ('a ' * 999999).split() }}",
    "{{ ('a\n' * 999999).splitlines() }}",
    "{{ ('a-' * 99999) | title }}",
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_g01_work_is_limited(bomb: str) -> None:
    sandbox = Sandbox(budget=1 << 23)
    with pytest.raises((TemplateTooExpensive, OverflowError)):
        sandbox.render(sandbox.compile_template(bomb), {"messages": TALK})


@pytest.mark.parametrize("bomb", [BOMBS[0], BOMBS[3], BOMBS[8], BOMBS[14]])
def test_g01_a_hostile_template_is_a_request_error(bomb: str) -> None:
    with pytest.raises(RequestError, match="the chat template"):
        ChatTemplate(bomb, TOKENIZER).prompt(TALK)


def test_the_budget_is_per_rendering_and_thread() -> None:
    sandbox = Sandbox(budget=1 << 21)
    most = sandbox.compile_template("{% for i in range(12000) %}{% endfor %}ok")
    assert [sandbox.render(most, {}) for _ in range(3)] == ["ok"] * 3
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(sandbox.render(most, {}))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["ok", "ok"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in 'abc' %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}", "1False32False33True3"),
        ("{% for x in [3, 1, 2] | sort if x > 1 %}{{ x }}{{ ',' if not loop.last }}{% else %}-{% endfor %}", "2,3"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1"),
        ("{% for x in missing %}{% else %}none{% endfor %}", "none"),
        ("{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "01345678"),
        ("{% for x in range(9) %}{% if x > 3 %}{% break %}{% endif %}{{ x }}{% endfor %}", "0123"),
        ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ '{{\"a\": {}}} 2024'.format(1) }}", '{"a": 1} 2024'),
        ("{{ '{\"a\": {\"b\": %s}} 2024' % 1 }}", '{"a": {"b": 1}} 2024'),
        ("{% set g = [1, 2, 3] | map('string') %}{{ g | first }}{{ g | join }}", "123"),
        ("{{ '%s-%03d' % ('a', 7) }} {{ '{:>4}|{x}'.format('a', x=1) }} {{ '%d' | format(3) }}", "a-007    a|1 3"),
        ("{{ 'a,b'.split(',')[-1] }}{{ ' x '.strip() }}{{ 'Ab'.upper() }}{{ 'abc'.replace('b', '_') }}", "bxABa_c"),
        ("{{ 1 < 2 < 3 }}{{ 'a' in ['a'] }}{{ 'b' not in 'abc' }}{{ [1, 2, 3][1:] }}", "TrueTrueFalse[2, 3]"),
        ("{{ 2 ** 10 }} {{ 7 % 3 }} {{ 'ab' * 2 }} {{ [1] + [2] }}", "1024 1 abab [1, 2]"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') ~ m(1) }}", "[a][1]"),
        ("{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "3"),
        ("{% generation %}a{% endgeneration %}{{ 'x' | default('y') }}{{ missing | default('y') }}", "axy"),
        ("{{ [{'r': 'u'}, {'r': 's'}] | selectattr('r', 'equalto', 'u') | list | length }}", "1"),
        ("{{ 'a\nb' | indent(2) }}|{{ ['a', 'b'] | join(', ') }}", "a\n  b|a, b"),
        ("{{ [1, 2] | first }}{{ 2.567 | round(1) }}", "12.6"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)  # fmt: skip
def test_ordinary_templates_work(source: str, text: str) -> None:
    assert render(source) == text


def test_large_contents_are_within_the_budget() -> None:
    source = "{% for m in messages %}{{ m.role + '\n' + m.content.split('</think>')[-1].strip() | trim }}{% endfor %}"
    messages = [{"role": "user", "content": "x " * (1 << 22)}]
    assert len(render(source, messages=messages)) == (1 << 23) + 4
