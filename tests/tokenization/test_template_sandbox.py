"""Chat templates of strangers: no single operation of one may hold up the process, and no other is refused."""

from __future__ import annotations

import time

import pytest
from jinja2.exceptions import SecurityError

from ipex_assist.tokenization.chat_template import render
from ipex_assist.tokenization.time_limit import TimeLimitExceeded, run_within

pytestmark = pytest.mark.one_stack


@pytest.mark.parametrize(
    "template",
    [
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x=99) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 10) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ messages | tojson(indent=10 ** 10) }}",
        "{{ messages | tojson(separators=('a' * 10 ** 6, 'b')) }}",
        "{{ ('a\\n' * 10 ** 6) | indent(10 ** 6) }}",
        "{{ ('a\\t' * 10 ** 6).expandtabs(10 ** 6) }}",
        "{{ ('{:999999}' * 10 ** 5).format(1) }}",
        "{{ ('a' * 10 ** 6).replace('', 'b' * 10 ** 6) | length }}",
        "{{ ('a' * 10 ** 6) | replace('a', 'b' * 10 ** 6) | length }}",
        "{{ ('a' * 10 ** 6).join(range(99999) | map('string') | list) | length }}",
        "{{ range(99999) | list | join('a' * 10 ** 6) | length }}",
        "{{ (1).to_bytes(10 ** 10, 'big') | length }}",
        "{{ (1).from_bytes(('a' * 10 ** 6).encode(), 'big') // 3 }}",
        "{{ ('f' * 10 ** 6) | int(0, 16) // 3 }}",
        "{{ ('a' + ')' * 10 ** 6 + 'a') | urlize }}",
        "{{ ('-' * 10 ** 6) | wordwrap(3) }}",
        "{{ (' ' * 10 ** 6) | wordwrap(3) }}",
        "{{ ('a' * 10 ** 7).strip('b' * 10 ** 7 + 'a') }}",
        "{{ ('a' * 10 ** 7) | trim('b' * 10 ** 7 + 'a') }}",
        "{{ ('a' * 10 ** 7).rfind('ac' + 'a' * 10 ** 6) }}",
        "{{ ('a' * 10 ** 7).rsplit('ac' + 'a' * 10 ** 6) }}",
        "{{ ('a' * 10 ** 6).translate({97: 'b' * 10 ** 6}) }}",
        "{{ ('{0}' * 10 ** 5).format('a' * 10 ** 6) }}",
        "{{ ('%(a)s' * 10 ** 5) % {'a': 'a' * 10 ** 6} }}",
        "{{ ('%(a)s' * 10 ** 5) | format(a='a' * 10 ** 6) }}",
        "{{ ([[1] * 1000] * 10 ** 6) | sum(start=[]) }}",
        "{{ (['a' * 10 ** 6] * 10 ** 6) | sort | length }}",
        "{{ [['a' * 10 ** 6] * 10 ** 6] | tojson }}",
        "{{ ['a' * 10 ** 7] * 10 ** 6 }}",
    ],
)
def test_a_template_whose_one_operation_never_ends(template: str) -> None:
    """A thread that computes it holds Python's lock: the time limit, and all other threads, would wait for it."""
    with pytest.raises(SecurityError, match=r"a chat template may not make .* in one step"):
        render(template, [{"role": "user", "content": "a"}], {})


NESTED = (
    "{% set n = namespace(a=[1], b=[1], t=(1,)) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.b = [n.b, n.b] %}{% set n.t = (n.t, n.t) %}{% endfor %}"
)


@pytest.mark.parametrize(
    "use",
    [
        *("{{ n.a }}", "{{ n.a ~ '' }}", "{{ n.a | string }}", "{{ n.a | pprint }}", "{{ n.a | tojson }}"),
        *("{{ '%s' % n.a }}", "{{ '%s' | format(n.a) }}", "{{ '{}'.format(n.a) }}", "{{ [n.a] | join('a') }}"),
        *("{{ n.a == n.b }}", "{{ n.a in [n.b] }}", "{{ n.a is eq(n.b) }}", "{{ [n.a] | select('in', [n.b]) | list }}"),
        *("{{ [n.a, n.b] | sort }}", "{{ [n.a, n.b] | max }}", "{{ [n.a, n.b] | unique | list }}"),
        *("{{ [n.a].index(n.b) }}", "{{ [n.a].count(n.b) }}", "{{ {n.t: 1} }}", "{{ {}[n.t] }}", "{{ {}.get(n.t) }}"),
        *(
            "{{ dict.fromkeys([n.t]) }}",
            "{{ dict([(n.t, 1)]) }}",
            "{{ raise_exception(n.a) }}",
            "{{ n.a | urlencode }}",
        ),
        "{% for i in [1, 2] %}{{ loop.changed(n.a if i == 1 else n.b) }}{% endfor %}",
    ],
)
def test_lists_that_hold_the_same_ones_many_times(use: str) -> None:
    """Sixty lists make 2 ** 60 items for whoever prints, compares or hashes them."""
    with pytest.raises(SecurityError, match=r"a chat template may not make .* in one step"):
        render(NESTED + use, [{"role": "user", "content": "a"}], {})


# Of the rest, the largest arguments that can be had in a template, nearly.
@pytest.mark.parametrize(
    "use",
    [
        *("'a-' | title", "'a ' | wordcount", "'<' | striptags", "'<!--' | striptags", "'a ' | truncate(9)"),
        *(
            "'<' | escape | length",
            "'<' | urlencode | length",
            "'<' | forceescape | length",
            "'9' | float",
            "' ' | trim",
        ),
        *(
            "'aß' | capitalize | length",
            "'b' | replace('a', 'b') | length",
            "'a' | lower | length",
            "'b' | list | length",
        ),
        *(
            "'b' | reverse | length",
            "'b' | first",
            "'b' | last",
            "'a b' | indent(2) | length",
            "'b' | batch(9) | list | length",
        ),
    ],
)
def test_filters_that_need_no_bound(use: str) -> None:
    """Their time grows as their text does: ten times the text, not a hundred times the time."""
    text, rest = use.split(" | ", 1)
    times = []
    for count in (20_000, 200_000):
        started = time.thread_time()
        render(f"{{{{ ({text} * {count}) | {rest} }}}}", [], {})
        times.append(time.thread_time() - started)
    assert times[1] < 40 * times[0] + 0.5, times


@pytest.mark.parametrize("use", ["lipsum(10 ** 6)", "lipsum(1, False, 10 ** 8, 10 ** 9)", "(['a'] * 10 ** 6) | pprint"])
def test_loops_in_python_end_by_the_time_limit(use: str) -> None:
    with pytest.raises(TimeLimitExceeded):
        run_within(0.1, lambda: render(f"{{{{ {use} }}}}", [], {}))


def test_dates_are_short() -> None:
    with pytest.raises(SecurityError, match="more than 1,000 characters"):
        render("{{ strftime_now('%c' * 10 ** 6) }}", [], {})


def test_templates_compute_as_ever_below_the_bounds() -> None:
    template = (
        "{{ 2 ** 10 }} {{ 2.5 ** 2 }} {{ 3 * 4 }} {{ '-' * 3 }} {{ [1] * 2 }} {{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none }} "
        "{{ '%03d' % 7 }} {{ '%s-%s' | format(1, 2) }} {{ '{:>3}'.format(5) }} {{ 7 % 4 }} {{ [1, 2] | join(', ') }} "
        "{{ '|'.join(['x', 'y']) }} {{ '{}'.format(10 ** 12) }} {{ none | default(10 ** 12) }} "
        "{{ 'abc' | replace('b', 'B') }} {{ 'abc'.replace('c', '') }} {{ 'x' | center(3) }}"
        "{{ '{1234567890: {%s' % 'x' }} {{ 'a b' | wordwrap(1) | length }} {{ [[1], [2]] | sum(start=[]) }} "
        "{{ 'user' in ['user', 'system'] }} {{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ {'a': [1]} == {'a': [1]} }} "
        "{{ ' <b>'.strip(' <') }} {{ 'a</x>b'.rsplit('</x>') }} {{ [3, 1] | sort }} {{ 'a' is in('abc') }} "
        "{{ {'a': {'b': [1]}} | tojson }} {{ [1, 2] | map('string') | join }} {{ '7' | int + 1 }}"
    )
    expected = "1024 6.25 12 --- [1, 1] ab a1None 007 1-2   5 3 1, 2 x|y 1000000000000 None aBc ab  x {1234567890: {x"
    expected += " 3 [1, 2] True True False True b> ['a', 'b'] [1, 3] True {\"a\": {\"b\": [1]}} 12 8"
    assert render(template, [{"role": "user", "content": "a"}], {}) == expected
