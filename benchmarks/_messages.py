"""Between the plain dicts that the benchmarks deal in, shaped as providers do, and messages of ours."""

from typing import Any

from hitherto import Block, Message, Saved

Plain = dict[str, Any]


def to_message(given: Plain) -> Message:
    role, content = given["role"], given["content"]
    if role == "user":
        return Message.user(content)
    if role == "tool":
        return Message.tool_result(given["tool_call_id"], Block.text(content, name=given["name"]))
    calls = given.get("tool_calls")
    if calls is None:
        return Message.assistant(content)
    blocks = [Block.text(content)] if content else []
    blocks += [Block.tool_call(call["id"], call["name"], call["arguments"]) for call in calls]
    return Message.assistant(blocks)


def to_dict(message: Saved) -> Plain:
    if message.role == "tool_result":
        block = message.blocks[0]
        return {"role": "tool", "tool_call_id": block.id, "name": block.extra["name"], "content": block.content}
    found: Plain = {"role": message.role, "content": message.text}
    calls = [block for block in message.blocks if block.type == "tool_call"]
    if calls:
        found["tool_calls"] = [{"id": c.id, "name": c.tool_name, "arguments": c.arguments} for c in calls]
    return found
