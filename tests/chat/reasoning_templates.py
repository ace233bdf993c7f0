"""Chat templates of models that reason, in each family's marks; tools as Hermes has them."""

_TURNS = """
{%- set ns = namespace(last=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- if tools -%}
{{ '<|im_start|>system\\nYou may call ' ~ (tools | tojson) }}
{{- ' like this: <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- endif -%}
{%- for m in messages -%}
{{ '<|im_start|>' ~ ('user' if m.role == 'tool' else m.role) ~ '\\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and (loop.index0 > ns.last or KEEPS) -%}
{{ 'OPENING\\n' ~ m.reasoning_content ~ '\\nCLOSING\\n\\n' }}
{%- endif -%}
{{ m.content }}
{%- for call in m.tool_calls or [] -%}
{{ ('\\n' if m.content or not loop.first else '') ~ '<tool_call>\\n{"name": "' ~ call.function.name }}
{{- '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}BEGINNING
{%- endif -%}
"""
_OPEN = "{{- 'OPENING\\n' if enable_thinking is not defined or enable_thinking else 'OPENING\\n\\nCLOSING\\n\\n' }}"


def thinking_template(
    opening: str = "<think>", closing: str = "</think>", *, is_opened: bool = False, keeps: bool = False
) -> str:
    """`is_opened`: the prompt ends with the opening, or with an empty thought. `keeps`: also thoughts of old turns."""
    source = _TURNS.replace("BEGINNING", _OPEN if is_opened else "").replace("KEEPS", str(keeps).lower())
    return source.replace("OPENING", opening.replace("\n", "")).replace("CLOSING", closing).strip()


STYLES = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "gemma": ("<|channel>thought\n", "<channel|>"),
    "minimax": ("<mm:think>", "</mm:think>"),
}
