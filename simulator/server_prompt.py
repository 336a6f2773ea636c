"""From a request body to prompt ids. Owns the emulated chat template and the forced answers (tool calls, JSON)."""

from __future__ import annotations

import json
from typing import Any

from simulator.server_errors import bad_request, invalid, missing, summary
from simulator.tokens import ASSISTANT_ID, END_ID, SYSTEM_ID, TOOL_ID, USER_ID, Tokenizer

ROLES = {"system": SYSTEM_ID, "developer": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID, "tool": TOOL_ID}
SCHEMA_DEPTH = 8


def chat_prompt(tokenizer: Tokenizer, body: dict[str, Any]) -> list[int]:
    """Each message is its role's id, its text and the end id; tools come first as one system message."""
    messages = body.get("messages")
    if messages is None:
        raise invalid([missing("body.messages", body)])
    if not isinstance(messages, list):
        message = "Input should be a valid list"
        raise invalid([{"type": "list_type", "loc": "body.messages", "msg": message, "input": summary(messages)}])
    if not messages:
        raise bad_request("No messages provided: at least one message is required.")
    goes_on = bool(body.get("continue_final_message"))
    if goes_on and body.get("add_generation_prompt"):
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    ids: list[int] = []
    if body.get("tools") and body.get("tool_choice") != "none":
        ids += [SYSTEM_ID, *tokenizer.encode(json.dumps(body["tools"], ensure_ascii=False)), END_ID]
    for message in messages:
        ids += [_role_id(message), *tokenizer.encode(_message_text(message)), END_ID]
    if goes_on:
        return ids[:-1]
    return [*ids, ASSISTANT_ID] if body.get("add_generation_prompt", True) else ids


def text_prompts(tokenizer: Tokenizer, body: dict[str, Any]) -> list[list[int]]:
    """The prompts of /v1/completions: a text, a list of texts, token ids, or a list of id lists."""
    prompt = body.get("prompt")
    if prompt is None or prompt == "" or prompt == []:
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)]
    if isinstance(prompt, list) and all(isinstance(one, int) for one in prompt):
        return [_checked(tokenizer, prompt)]
    if isinstance(prompt, list) and all(isinstance(one, str) and one for one in prompt):
        return [tokenizer.encode(one) for one in prompt]
    if isinstance(prompt, list) and all(isinstance(one, list) and one for one in prompt):
        return [_checked(tokenizer, one) for one in prompt]
    message = "Input should be a valid string"
    raise invalid([{"type": "string_type", "loc": "body.prompt", "msg": message, "input": summary(prompt)}])


def tool_name(body: dict[str, Any]) -> str | None:
    """The function that must be called: the one named, or the first of the tools when a call is required."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    if isinstance(choice, dict):
        return str((choice.get("function") or {}).get("name") or choice.get("name") or "")
    if choice == "required":
        if not tools:
            raise bad_request("When using `tool_choice`, `tools` must be set.")
        return str((tools[0].get("function") or tools[0]).get("name", ""))
    return None


def forced_text(body: dict[str, Any]) -> str | None:
    """The text of an answer whose form the request fixes; None where the model speaks freely."""
    if tool_name(body) is not None:
        return "{}"
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_object":
        return json.dumps({"answer": "the data is here", "count": 1})
    schema = (wanted.get("json_schema") or {}).get("schema") if wanted.get("type") == "json_schema" else None
    structured = body.get("structured_outputs") or {}
    if structured.get("choice"):
        return str(structured["choice"][0])
    schema = schema or structured.get("json")
    return None if schema is None else json.dumps(_instance(schema, 0))


def _role_id(message: Any) -> int:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise bad_request(f"Unknown role or malformed message: {summary(message)}")
    return ROLES[message["role"]]


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(map(_part_text, content or []))
    if message.get("tool_calls"):
        text += json.dumps(message["tool_calls"], ensure_ascii=False)
    return text


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text", "refusal"):
        return str(part.get("text") or part.get("refusal") or "")
    raise bad_request(f"This model takes text only; a content part of type {kind!r} is not supported.")


def _checked(tokenizer: Tokenizer, ids: list[Any]) -> list[int]:
    if not all(isinstance(one, int) for one in ids):
        message = "Input should be a valid integer"
        raise invalid([{"type": "int_type", "loc": "body.prompt", "msg": message, "input": summary(ids)}])
    worst = max(ids)
    if worst >= tokenizer.size or min(ids) < 0:
        raise bad_request(f"Token id {worst if worst >= tokenizer.size else min(ids)} is out of vocabulary")
    return ids


def _instance(schema: Any, depth: int) -> Any:
    """The smallest value that suits the common parts of a JSON schema."""
    if not isinstance(schema, dict) or depth > SCHEMA_DEPTH:
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return _instance(schema[union][0], depth + 1)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: _instance(part, depth + 1) for name, part in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [_instance(schema.get("items"), depth + 1)] * int(schema.get("minItems", 0))
    return {"string": "the", "integer": 1, "number": 1, "boolean": True}.get(str(kind))
