"""Translates a template of Ollama's store, written in Go's template language, into a Jinja template.

Sources: https://github.com/ollama/ollama/blob/main/docs/template.md and ``template/template.go``.
"""

import json
import re
from typing import Final

_TEXT: Final = r'"(?:\\.|[^"\\])*"|`[^`]*`'
_ACTION: Final = re.compile(
    rf"\{{\{{(?P<left>-?)\s*(?P<inside>/\*.*?\*/|(?:{_TEXT}|[^\"`}}]|\}}(?!\}}))*?)\s*(?P<right>-?)\}}\}}", re.DOTALL
)
_WORD: Final = re.compile(rf"\s*({_TEXT}|-?\d+|[$.\w]+|:?=|[(),])")
_OPERATORS: Final = {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or"}
_ROOT: Final = {name: name.lower() for name in ("System", "Prompt", "Response", "Messages")}
_ABSENT: Final = frozenset(
    {
        *("Tools", "ToolCalls", "ToolName", "ToolCallID", "Images"),
        *("Thinking", "Think", "ThinkLevel", "IsThinkSet", "Suffix"),
    }
)
_NOTHING: Final = "''"
_CUT: Final = "\0"  # stands before the reply; no character of a message, since those are replaced
_LIST: Final = (
    "{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}"
    "{%- set prompt = '' -%}{%- set response = '' -%}{%- set v = namespace() -%}"
)
_TURN: Final = "{%- macro turn(system, prompt, response) -%}{%- set v = namespace() -%}"
_TURNS: Final = (  # as ``Template.Execute`` of Ollama: the last turn ends where the reply begins
    "{%- endmacro -%}{%- set now = namespace(system='', prompt='', response='') -%}{%- for m in messages -%}"
    "{%- if m.role != 'assistant' and (now.response or (m.role == 'system' and now.prompt)) -%}"
    "{{ turn(now.system, now.prompt, now.response)|replace('\\0', '') }}"
    "{%- set now.system = '' -%}{%- set now.prompt = '' -%}{%- set now.response = '' -%}{%- endif -%}"
    "{%- if m.role == 'system' -%}{%- set now.system = m.content -%}"
    "{%- elif m.role == 'user' -%}{%- set now.prompt = m.content -%}"
    "{%- elif m.role == 'assistant' -%}{%- set now.response = m.content -%}{%- endif -%}{%- endfor -%}"
    "{{ turn(now.system, now.prompt, now.response).split('\\0')[0] }}"
)


def from_go(source: str) -> str:
    """The Jinja template that writes the same text; raises ``ValueError`` for what is not known of the language."""
    body = _Translation(source).text
    if "messages" in body:
        return _LIST + body.replace(_literal(_CUT), "")
    return _TURN + body + ("" if "response" in body else "{{ response }}") + _TURNS


class _Translation:
    def __init__(self, source: str) -> None:
        self.text, self._words = "", list[str]()
        self._open: list[tuple[str, str]] = [("", "")]  # each block's end, and what a dot means in it
        at, trim = 0, ""
        for found in _ACTION.finditer(source):
            self._write(source[at : found.start()], trim, found["left"])
            self._act(found["inside"])
            at, trim = found.end(), found["right"]
        self._write(source[at:], trim, "")
        if len(self._open) > 1:
            raise ValueError("a block has no end")

    def _write(self, text: str, left: str, right: str) -> None:
        text = text.lstrip() if left else text
        text = text.rstrip() if right else text
        if "{{" in text:
            raise ValueError("an action has no end")
        self.text += _literal(text) if text else ""

    def _act(self, inside: str) -> None:
        if not inside or inside.startswith("/*"):
            return
        self._words = _WORD.findall(inside)[::-1]
        if "".join(self._words[::-1]) != "".join(re.sub(rf"({_TEXT})|\s+", r"\1", inside)):
            raise ValueError(f"{inside[:60]}")
        match self._words[-1]:
            case "if" | "with" | "range" as kind:
                self._words.pop()
                self._begin(kind)
            case "else" if self._words[-2:-1] == ["if"]:
                del self._words[-2:]
                self.text += f"{{%- elif {self._value()} -%}}"
            case "else" | "break" | "continue":
                self.text += f"{{%- {self._words.pop()} -%}}"
            case "end" if len(self._open) > 1:
                self._words.pop()
                self.text += f"{{%- {self._open.pop()[0]} -%}}"
            case name if self._words[-2:-1] in ([":="], ["="]):
                del self._words[-2:]
                self.text += f"{{%- set {self._named(name)} = {self._value()} -%}}"
            case _:
                self._show(self._value(), "{{{{ {} }}}}")
        if self._words:
            raise ValueError(f"{inside[:60]}")

    def _show(self, value: str, form: str) -> None:
        self.text += (_literal(_CUT) if "response" in value else "") + form.format(value)

    def _begin(self, kind: str) -> None:
        if kind != "range":
            value = self._value()
            self._show(value, "{{%- if {} -%}}")
            self._open.append(("endif", value if kind == "with" else self._open[-1][1]))
            return
        names = list[str]()
        while ":=" in self._words:
            word = self._words.pop()
            names += [word] if word.startswith("$") else []
        value, item = self._value(), f"m{len(self._open)}"
        self.text += f"{{%- for {item} in {value} -%}}"
        self._open.append(("endfor", _NOTHING if value == _NOTHING else item))
        for name, value in zip(names[::-1], (item, "loop.index0"), strict=False):
            self.text += f"{{%- set {self._named(name)} = {value} -%}}"

    def _value(self) -> str:
        word = self._words[-1] if self._words else ""
        if not word.isalpha() or word in ("true", "false"):
            return self._term()
        self._words.pop()
        terms = list[str]()
        while self._words and self._words[-1] != ")":
            terms.append(self._term())
        if word == "not" and len(terms) == 1:
            return f"(not {terms[0]})"
        if word == "eq" and len(terms) > 1:
            return f"({terms[0]} in [{', '.join(terms[1:])}])"
        if word == "len" and len(terms) == 1:
            return f"({terms[0]}|length)"
        if word in ("slice", "index") and 1 < len(terms) < 4:
            return f"{terms[0]}[{':'.join(terms[1:])}{':' if word == 'slice' and len(terms) == 2 else ''}]"
        if word in _OPERATORS and len(terms) > 1:
            return f"({f' {_OPERATORS[word]} '.join(terms)})"
        raise ValueError(f"the function {word}")

    def _term(self) -> str:
        word = self._words.pop() if self._words else ""
        if word == "(":
            value = self._value()
            if not self._words or self._words.pop() != ")":
                raise ValueError("a bracket has no end")
            return value
        if word[:1] in ('"', "`"):
            return _quoted(word[1:-1] if word[0] == "`" else str(json.loads(word)))
        if word.lstrip("-").isdecimal() or word in ("true", "false"):
            return word
        start, _, path = word.partition(".")
        value = self._open[-1][1] if not start else "" if start == "$" else self._named(start)
        for name in filter(None, path.split(".")):
            if name in _ABSENT or value == _NOTHING:
                return _NOTHING
            if name not in ({"Role", "Content"} if value else _ROOT):
                raise ValueError(f"the field {name}")
            value = f"{value}.{name.lower()}" if value else _ROOT[name]
        if not value:
            raise ValueError(f"{word or 'nothing'}")
        return value

    def _named(self, word: str) -> str:
        if not re.fullmatch(r"\$\w+", word):
            raise ValueError(f"the name {word}")
        return f"v.n_{word[1:]}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> str:
    return f"{{{{ {_quoted(text)} }}}}"
