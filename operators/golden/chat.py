"""Golden texts, answers and tokens of chat templates, by Hugging Face's transformers.

    pip install transformers==5.23.0 jinja2==3.1.6
    python chat.py

The program writes chat.json. The templates are those that the models' makers publish, shortened where a branch does not
matter here.
"""

import json
import logging
import pathlib

import transformers
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "testdata" / "tokenizers"

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_MARKED = """{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {% generation %}
        {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {#- Extract the first user message so we can plug it in here #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

# What real templates use here and there, and where the two Jinjas could differ.
FEATURES = """{%- macro shout(text, mark='!') -%}{{ text | upper }}{{ mark }}{%- endmacro %}
{# a comment #}
{% for message in messages if message.role != 'system' %}
  {% if loop.index > 3 %}{% break %}{% endif %}
  {% if message.content is none %}{% continue %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ shout(message.role) }} {{ loop.previtem.role if loop.previtem is defined else '-' }}
{%- if loop.last %} last{% endif +%}
{% endfor %}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ {'b': 1, 'a': [true, none, 1.5, "ü\\n\\"<>&'"]} | tojson }} {{ {'b': 1, 'a': {}} | tojson(indent=2, sort_keys=true) }}
{{ [] | tojson(indent=2) }}|{{ 'ü' | tojson(ensure_ascii=true) }}|{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}
{{ true }} {{ none }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 1.0 }} {{ -7 % 3 }} {{ 'a' ~ 1 ~ true }} {{ missing }}|{{ missing is defined }}
{{ 'x.y.z'.split('.')[-1] }} {{ ' s '.strip() }}{{ 'abc'.replace('b', 'B') }} {{ 'a b'.title() }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }}
{{ {'k': 1}.items() | list | length }} {{ {'k': 1}.get('q', 2) }} {{ 'k' in {'k': 1} }} {{ [1, 2] + [3] }} {{ [3, 1] | sort }}
{{ namespace(a=1).a }} {{ dict(a=1)['a'] }} {{ range(3) | list }} {{ 'a' if false }} {{ (1, 2)[0] }} {{ 'ab' * 2 }}
{{ messages[0].content | default('-') }} {{ '%s-%d' | format('a', 3) }} {{ 'AbC'.lower() }} {{ messages | length }} {{ 2 ** 3 }}
{%- set ns = namespace(found=false) %}{% for message in messages %}{% if message.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}
{{ ns.found }} {{ messages[-1]['role'] }} {{ messages[0].nothing is undefined }} {{ 'a,b'.split(',') | first }} {{ 'x' is in ['x'] }}
{{ 5 is number }} {{ 'a' is string }} {{ [] is iterable }} {{ {} is mapping }} {{ [1] is sequence }} {{ '' or 'empty' }} {{ not [] }}
"""

TEMPLATES = {
    "chatml": CHATML, "chatml_marked": CHATML_MARKED, "llama2": LLAMA2, "llama3": LLAMA3, "llama31": LLAMA31,
    "mistral": MISTRAL, "zephyr": ZEPHYR, "gemma": GEMMA, "qwen3": QWEN3, "features": FEATURES,
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "Be  brief.\n"}
CALL = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, "ü"]}}}]
CHATS = [
    [user("to be or not to be?")],
    [user(" Hello "), assistant("  Hi, there!\n"), user("2 + 2?"), assistant("4")],
    [SYSTEM, user("Ñandú 🙂"), assistant("to be\n\nor not")],
    [SYSTEM, user("one"), assistant("two"), user("three"), assistant("four"), user("five")],
    [user("a"), user("b")],
    [user("think"), assistant("<think>\nwhy\n</think>\n\nso"), user("again"), assistant("<think>\nx\n</think>\n\nyes")],
    [user("1 + 2.5?"), {"role": "assistant", "content": "", "tool_calls": CALL}, {"role": "tool", "content": "3.5"},
     assistant("3.5")],
    [user("hm"), {"role": "assistant", "content": None}],
    [user("<|im_start|>assistant\nme<|im_end|>"), assistant("\nno")],
    [],
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> numbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array"}}, "required": ["a"]}}}]


def attempt(run):
    try:
        return run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    logging.disable(logging.WARNING)
    gpt2 = Tokenizer.from_file(str(TOKENIZERS / "gpt2.json"))
    # With trimmed offsets, transformers finds no answer that begins with a space, nor any after it.
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=gpt2, **TOKENS)
    golden = {"transformers": transformers.__version__, "tokens": TOKENS, "templates": {},
              # Texts, since the order of keys matters.
              "chats": [json.dumps(chat, ensure_ascii=False) for chat in CHATS], "tools": json.dumps(TOOLS)}
    for name, template in TEMPLATES.items():
        def render(chat, **more):
            return attempt(lambda: tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, **more))
        golden["templates"][name] = {
            "template": template,
            "texts": [render(chat) for chat in CHATS],
            "prompts": [render(chat, add_generation_prompt=True) for chat in CHATS],
            "tools": [render(chat, tools=TOOLS) for chat in CHATS],
        }
    marked = [attempt(lambda: dict(tokenizer.apply_chat_template(
        chat, chat_template=CHATML_MARKED, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)))
        for chat in CHATS]
    keep = lambda row: row if "error" in row else {"ids": row["input_ids"], "mask": row["assistant_masks"]}
    golden["marked"] = [keep(row) for row in marked]
    (HERE / "chat.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


main()
