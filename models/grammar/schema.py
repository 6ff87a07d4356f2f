"""Reads a JSON schema as the standard says: annotations constrain nothing, and wrappers of requests are taken off."""

import json
from collections.abc import Mapping
from typing import Any, Final

_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""The formats that llguidance constrains; the standard calls all others annotations."""
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_CONSTRAINTS: Final = frozenset((
    "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const",
    "properties", "patternProperties", "required", "additionalProperties", "minProperties", "maxProperties",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "items",
    "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
    "unevaluatedItems", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf",
))  # fmt: skip
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
_WRAPPERS: Final = (
    *("schema", "json_schema", "response_format", "format", "text", "parameters", "input_schema", "inputSchema"),
    *("function", "response_schema", "responseSchema", "response_json_schema", "responseJsonSchema"),
)
"""Keys under which the requests of other programs hold a schema."""
_DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})  # their values are no schemas
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_NO_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    **{"uniqueItems": (False,), "not": (False,), "minContains": (0,)},
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "propertyNames"), (True, {})),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), ({},)),
}
"""Values with which a keyword that llguidance lacks allows everything."""


def readable(text: str) -> str:
    """The schema as llguidance reads it; a ``ValueError`` says that the text is no schema, and would allow anything."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # llguidance names the place
        return text
    schema = _unwrapped({} if found is True else found)
    if isinstance(schema, dict) and schema and "type" not in schema and not (_is_schema(schema) or _annotates(schema)):
        names = ", ".join(list(schema)[:4])
        raise ValueError(f"no key of it is a keyword of JSON Schema ({names}), so it would allow any answer")
    plain = _plain(schema)
    return text if plain == found else json.dumps(plain)


def _is_schema(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    typed = kind.lower() in _TYPES if isinstance(kind, str) else isinstance(kind, list)
    return typed or isinstance(schema.get("format"), str) or not _CONSTRAINTS.isdisjoint(schema)


def _annotates(schema: Mapping[str, Any]) -> bool:
    return any(key in _ANNOTATIONS or key.startswith(("$", "x-")) for key in schema)


def _unwrapped(schema: Any) -> Any:
    while isinstance(schema, dict) and not _is_schema(schema):
        inner = [schema[key] for key in _WRAPPERS if isinstance(schema.get(key), dict)]
        if len(inner) != 1:
            break
        (schema,) = inner
    return schema


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    conditional = "if" in schema and not {"then", "else"}.isdisjoint(schema)
    found: dict[str, Any] = {}
    for key, value in schema.items():
        unknown = key == "format" and not (isinstance(value, str) and value in _FORMATS)
        dialect = key == "$schema" and not str(value).startswith(("http://json-schema.org", "https://json-schema.org"))
        idle = key in ("if", "then", "else") and not conditional
        idle |= key in ("minContains", "maxContains") and "contains" not in schema
        if unknown or dialect or idle or any(value == each for each in _NO_EFFECT.get(key, ())):
            continue
        if key in _NAMED and isinstance(value, dict):
            found[key] = {name: _plain(each) for name, each in value.items()}
        elif key == "type" and isinstance(value, str) and value.lower() in _TYPES:  # Google writes "STRING"
            found[key] = value.lower()
        else:
            found[key] = value if key in _DATA else _plain(value)
    return found
