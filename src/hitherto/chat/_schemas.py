"""Structured answers: derives a JSON schema from a type, and reads the answer by it.

A schema is a dict, or a class: a msgspec Struct, a dataclass, a TypedDict, or a pydantic model. With a class, the
answer is an instance of it.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import InvalidAnswer, InvalidArgument

Schema = Mapping[str, object] | type


def schema_of(schema: Schema) -> dict[str, object]:
    """Return the JSON schema as a dict."""
    if isinstance(schema, Mapping):
        return dict(schema)
    if schema is None:  # msgspec has a schema for None, which is never intended
        raise InvalidArgument("there is no schema", hint="give a dict, or a dataclass")
    made = getattr(schema, "model_json_schema", None)
    if made is not None:
        return dict(made())
    try:
        return _inline_definition(msgspec.json.schema(schema))
    except (TypeError, NotImplementedError) as error:
        raise InvalidArgument(f"this has no JSON schema: {error}", hint="give a dict, or a dataclass") from None


def _inline_definition(schema: dict[str, Any]) -> dict[str, object]:
    """Move the class to the top of the schema. msgspec puts it among the definitions; providers want an object at the
    top."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    if name not in definitions:
        return schema
    top = dict(definitions[name])
    others = {key: value for key, value in definitions.items() if key != name}
    return {**top, "$defs": others} if others else top


_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)  # models like to put one around JSON


def read(text: str, schema: Schema) -> object:
    """Parse an answer by its schema. Raises `InvalidAnswer`, which holds the text."""
    fenced = _FENCE.fullmatch(text.strip())
    data = fenced[1] if fenced else text
    try:
        if isinstance(schema, Mapping):
            return _check_top_level(msgspec.json.decode(data), schema, text)
        validate = getattr(schema, "model_validate_json", None)
        if validate is not None:
            return validate(data)
        return msgspec.json.decode(data, type=schema)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the answer does not fit the schema: {type(error).__name__}", text) from error


def _check_top_level(value: object, schema: Mapping[str, object], text: str) -> object:
    """Check the type of the whole value and its required fields. The providers check the rest."""
    if schema.get("type") == "object":
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        if not isinstance(value, dict):
            raise InvalidAnswer("the answer does not fit the schema: it is no object", text)
        if not all(name in value for name in names):
            raise InvalidAnswer("the answer does not fit the schema: something required is missing", text)
    if schema.get("type") == "array" and not isinstance(value, list):
        raise InvalidAnswer("the answer does not fit the schema: it is no list", text)
    return value
