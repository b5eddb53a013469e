"""Chat templates like those of the model families in common use."""

from pathlib import Path

CHATML, LLAMA, MISTRAL, QWEN, GEMMA = (
    (Path(__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    for name in ("chatml", "llama", "mistral", "qwen", "gemma")
)

#: Writes everything it is given, so that whatever engines change or drop shows.
WITNESS = """\
{{ bos_token }}[{% if tools %}{{ tools | tojson }}{% endif %}|\
{% if documents %}{{ documents | tojson(indent=1) }}{% endif %}|{{ reasoning_effort }}|\
{{ enable_thinking }}|{{ (style if style is defined else 0) | tojson }}|\
{{ eos_token }}|{{ pad_token }}|{{ unk_token }}]
{% for message in messages %}
{% if message.role == 'skip' %}{% continue %}{% endif %}
<|im_start|>{{ message | tojson }}
{% generation %}{{ message.content }}{% endgeneration %}<|im_end|>
{% if message.role == 'stop' %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

#: The same with contents as parts, and with the role `developer`.
WITNESS_PARTS = """\
{%- macro said(given) %}{% for part in given %}{{ part | tojson }}{% endfor %}{% endmacro -%}
{{ bos_token }}[{% if tools %}{{ tools | tojson(separators=(',', ':')) }}{% endif %}|\
{% if documents %}{{ documents | tojson(indent=1) }}{% endif %}|\
{{ reasoning_effort }}|{{ (style if style is defined else 0) | tojson }}]
{% for message in messages %}
<|im_start|>{{ 'the developer' if message.role == 'developer' else message.role }}
{{ message | tojson }}{{ said(message.content) }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
