"""Chat templates of families that call tools, as far as calls go: turns are those of ChatML in all of them."""

from tests.chat.speaking import FORMATS

_TURNS = """
{%- macro written(v) -%}{{ v if v is string else v | tojson }}{%- endmacro -%}
{%- macro unquoted(v) -%}
{%- if v is mapping -%}
{
{%- for k, inner in v | dictsort -%}
{{ ',' if not loop.first }}{{ k }}:{{ unquoted(inner) }}
{%- endfor -%}
}
{%- elif v is string -%}
{{ QUOTE ~ v ~ QUOTE }}
{%- elif v is sequence -%}
[
{%- for inner in v -%}
{{ ',' if not loop.first }}{{ unquoted(inner) }}
{%- endfor -%}
]
{%- else -%}
{{ v | tojson }}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{ '<|im_start|>system\\nYou may call ' ~ (tools | tojson) ~ '<|im_end|>\\n' }}
{%- endif -%}
{%- for m in messages -%}
{{ '<|im_start|>' ~ ('user' if m.role == 'tool' else m.role) ~ '\\n' ~ m.content }}
{%- if m.tool_calls -%}
CALLS
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""
_CALLS = {
    "glm": """
{%- for call in m.tool_calls -%}
{{ ('\\n' if m.content or not loop.first else '') ~ '<tool_call>' ~ call.function.name ~ '\\n' }}
{%- for k, v in call.function.arguments.items() -%}
{{ '<arg_key>' ~ k ~ '</arg_key>\\n<arg_value>' ~ written(v) ~ '</arg_value>\\n' }}
{%- endfor -%}
{{ '</tool_call>' }}
{%- endfor -%}""",
    "glm_47": """
{%- for call in m.tool_calls -%}
{{ '<tool_call>' ~ call.function.name }}
{%- for k, v in call.function.arguments.items() -%}
<arg_key>{{ k }}</arg_key><arg_value>{{ written(v) }}</arg_value>
{%- endfor -%}
{{ '</tool_call>' }}
{%- endfor -%}""",
    "minimax": """
{{- ('\\n' if m.content else '') ~ '<minimax:tool_call>\\n' }}
{%- for call in m.tool_calls -%}
{{ '<invoke name="' ~ call.function.name ~ '">\\n' }}
{%- for k, v in call.function.arguments.items() -%}
{{ '<parameter name="' ~ k ~ '">' ~ written(v) ~ '</parameter>\\n' }}
{%- endfor -%}
{{ '</invoke>\\n' }}
{%- endfor -%}
{{ '</minimax:tool_call>' }}""",
    "deepseek_v32": """
{%- set mark = '｜DSML｜' -%}
{{ '\\n\\n' if m.content }}<{{ mark }}function_calls>{{ '\\n' }}
{%- for call in m.tool_calls -%}
<{{ mark }}invoke name="{{ call.function.name }}">{{ '\\n' }}
{%- for k, v in call.function.arguments.items() -%}
<{{ mark }}parameter name="{{ k }}" string="{{ 'true' if v is string else 'false' }}">
{{- written(v) }}</{{ mark }}parameter>{{ '\\n' }}
{%- endfor -%}
</{{ mark }}invoke>{{ '\\n' }}
{%- endfor -%}
</{{ mark }}function_calls>""",
    "deepseek": """
{%- for call in m.tool_calls -%}
{{ '<｜tool▁calls▁begin｜>' if loop.first }}<｜tool▁call▁begin｜>
{{- call.function.name + '<｜tool▁sep｜>' + call.function.arguments + '<｜tool▁call▁end｜>' }}
{%- endfor -%}
{{ '<｜tool▁calls▁end｜>' }}""",
    "deepseek_fenced": """
{{- '<｜tool▁calls▁begin｜>' }}
{%- for call in m.tool_calls -%}
{{ '' if loop.first else '\n' }}<｜tool▁call▁begin｜>
{{- call.type + '<｜tool▁sep｜>' + call.function.name }}
{{- '\n' + '```json' + '\n' + call.function.arguments + '\n' + '```' + '<｜tool▁call▁end｜>' }}
{%- endfor -%}
{{ '<｜tool▁calls▁end｜>' }}""",
    "kimi": """
{{- '<|tool_calls_section_begin|>' }}
{%- for call in m.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>
{%- endfor -%}
{{ '<|tool_calls_section_end|>' }}""",
    "granite_phi": """
{%- set ns = namespace(objects=[]) -%}
{%- for call in m.tool_calls -%}
{%- set arguments = call.function.arguments | tojson -%}
{%- set ns.objects = ns.objects + ['{"name": "' ~ call.function.name ~ '", "arguments": ' ~ arguments ~ '}'] -%}
{%- endfor -%}
{{ '<|tool_call|>[' ~ ns.objects | join(', ') ~ ']<|/tool_call|>' }}""",
    "gemma": """
{%- for call in m.tool_calls -%}
{{ '<|tool_call>call:' ~ call.function.name ~ unquoted(call.function.arguments) ~ '<tool_call|>' }}
{%- endfor -%}""",
}
_CALLS["gemma_function"] = _CALLS["gemma"].replace("<|tool_call>", "<start_function_call>")
_CALLS["gemma_function"] = _CALLS["gemma_function"].replace("<tool_call|>", "<end_function_call>")
_CALLS["deepseek_v4"] = _CALLS["deepseek_v32"].replace("function_calls", "tool_calls")


# Granite's have no word for calls that come back: the format has.
_GRANITE = _TURNS.replace("{%- if m.tool_calls -%}\nCALLS\n{%- endif -%}", "{#- -#}")
_GRANITE = _GRANITE.replace("may call", "may say <|tool_call|> and call")


def calling_template(name: str) -> str:
    """The template of a family, by its name in `FORMATS`."""
    name = name.removesuffix("_special")
    source = _GRANITE if name == "granite" else _TURNS.replace("CALLS", _CALLS[name])
    return source.replace("QUOTE", "'<escape>'" if name == "gemma_function" else "'<|\"|>'").strip()


TEMPLATED = [name for name in FORMATS if name.removesuffix("_special") in (*_CALLS, "granite")]
