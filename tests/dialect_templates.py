"""Chat templates that write calls as models' published ones do, shortened to what matters for that."""

from __future__ import annotations

HEAD = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}{% endfor %}<|end_system|>{% endif %}"
    "{% for m in messages %}<|turn|>{{ m.role }}\n{% if m.role != 'assistant' %}{{ m.content }}<|done|>{% else %}"
    "{{ m.content or '' }}"
)
TAIL = "<|done|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"


def _each(body: str, before: str = "", after: str = "", between: str = "") -> str:
    """A template that writes `body` for each call, in which c is its function."""
    between = f"{{% if not loop.last %}}{between}{{% endif %}}" if between else ""
    each = f"{{% for call in m.tool_calls %}}{{% set c = call.function %}}{body}{between}{{% endfor %}}"
    return f"{HEAD}{{% if m.tool_calls %}}{before}{each}{after}{{% endif %}}{TAIL}"


_JSON = "{{ c.arguments | tojson }}"
_OBJECT = '{"name": "{{ c.name }}", "arguments": ' + _JSON + "}"
_END = "</parameter>\n"
_SOLAR = "<|tool_call:begin|>{{ call.id }}<|tool_call:name|>{{ c.name }}<|tool_call:args|>"
_VALUE = "{{ v if v is string else v | tojson }}"


def _tags(body: str) -> str:
    """`body` for each argument, with k its name and v its value."""
    return "{% for k, v in c.arguments.items() %}" + body + "{% endfor %}"


_QWEN = _tags("<parameter={{ k }}>\n" + _VALUE + "\n</parameter>\n")
_DSML = _tags(
    "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
    + _VALUE
    + "</｜DSML｜parameter>\n"
)
_PYTHON = (
    "{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}="
    "{% if v is none or v is boolean %}{{ v }}{% else %}{{ v | tojson }}{% endif %}"
    "{% if not loop.last %}, {% endif %}{% endfor %})"
)
_GEMMA = (
    "{%- macro lit(v) -%}{%- if v is string -%}{{ '<|\"|>' + v + '<|\"|>' }}{%- elif v is boolean -%}"
    "{{ 'true' if v else 'false' }}{%- elif v is mapping -%}{{ '{' }}{%- for k, w in v | dictsort -%}"
    "{{ k }}:{{ lit(w) }}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{ '}' }}{%- elif v is none -%}null"
    "{%- elif v is sequence -%}{{ '[' }}{%- for w in v -%}{{ lit(w) }}{%- if not loop.last %},{% endif -%}"
    "{%- endfor -%}{{ ']' }}{%- else -%}{{ v }}{%- endif -%}{%- endmacro -%}"
)

TEMPLATES = {
    "hermes": _each(f"\n<tool_call>\n{_OBJECT}\n</tool_call>"),
    "qwen-xml": _each(f"\n<tool_call>\n<function={{{{ c.name }}}}>\n{_QWEN}</function>\n</tool_call>"),
    "glm": _each(
        "\n<tool_call>{{ c.name }}\n"
        + _tags("<arg_key>{{ k }}</arg_key>\n<arg_value>" + _VALUE + "</arg_value>\n")
        + "</tool_call>"
    ),
    "deepseek-v3": _each(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.name }}\n```json\n" + _JSON + "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "\n",
    ),
    "deepseek-v3.1": _each(
        "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>" + _JSON + "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.2": _each(
        '<｜DSML｜invoke name="{{ c.name }}">\n' + _DSML + "</｜DSML｜invoke>\n",
        "\n\n<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>",
    ),
    "deepseek-v4": _each(
        '<｜DSML｜invoke name="{{ c.name }}">\n' + _DSML + "</｜DSML｜invoke>\n",
        "\n\n<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>",
    ),
    "gemma": _GEMMA + _each(
        "<|tool_call>call:{{ c.name }}{{ '{' }}" + "{%- for k, v in c.arguments | dictsort -%}{{ k }}:{{ lit(v) }}"
        "{%- if not loop.last %},{% endif -%}{%- endfor -%}" + "{{ '}' }}<tool_call|>"
    ),
    "kimi": _each(
        "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>" + _JSON + "<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    ),
    "minimax-m2": _each(
        '<invoke name="{{ c.name }}">\n' + _tags('<parameter name="{{ k }}">' + _VALUE + _END) + "</invoke>\n",
        "\n<minimax:tool_call>\n", "</minimax:tool_call>",
    ),
    "minimax-m1": _each(_OBJECT + "\n", "\n<tool_calls>\n", "</tool_calls>"),
    "llama": _each('{"name": "{{ c.name }}", "parameters": ' + _JSON + "}"),
    "pythonic": _each(_PYTHON, "[", "]", ", "),
    "lfm2": _each(_PYTHON, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "seed": _each(
        "\n<seed:tool_call>\n<function={{ c.name }}>\n" + _tags("<parameter={{ k }}>" + _VALUE + "</parameter>\n")
        + "</function>\n</seed:tool_call>"
    ),
    "apertus": _each('{"{{ c.name }}": ' + _JSON + "}", "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    "command": _each(
        '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", "parameters": ' + _JSON + "}",
        "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    ",
    ),
    "hunyuan": _each(_OBJECT, "\n<tool_calls>[", "]</tool_calls>", ", "),
    "hunyuan-3": _each(
        "<tool_call:opensource>{{ c.name }}<tool_sep:opensource>\n" + _tags(
            "<arg_key:opensource>{{ k }}</arg_key:opensource>\n<arg_value:opensource>" + _VALUE
            + "</arg_value:opensource>\n"
        ) + "</tool_call:opensource>\n",
        "<tool_calls:opensource>\n", "</tool_calls:opensource>",
    ),
    "nemotron": _each(_OBJECT, "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "granite": _each(_OBJECT, "<|tool_call|>[", "]", ", "),
    "phi": _each(_OBJECT, "<|tool_call|>[", "]<|/tool_call|>", ", "),
    "functools": _each(_OBJECT, "functools[", "]", ", "),
    "mistral": _each(_OBJECT[:-1] + ', "id": "{{ call.id }}"}', "[TOOL_CALLS] [", "]", ", "),
    "mistral-named": _each("[TOOL_CALLS]{{ c.name }}[CALL_ID]{{ call.id }}[ARGS]" + _JSON),
    "functionary": _each("<function={{ c.name }}>" + _JSON + "</function>"),
    "solar": _each(
        _SOLAR + _JSON + "<|tool_call:end|>",
        "<|tool_calls|>", "<|calls|>",
    ),
    "gigachat": _each("<|function_call|>" + _OBJECT),
    "minicpm": _each(
        '\n<function name="{{ c.name }}">' + _tags('<param name="{{ k }}">' + _VALUE + "</param>") + "</function>"
    ),
    "harmony": (
        "<|start|>system<|message|>{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<|end|>{% for m in messages %}"
        "{% if m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% elif m.tool_calls %}"
        "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
        "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|channel|>final"
        "<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant"
    ),
}  # fmt: skip
