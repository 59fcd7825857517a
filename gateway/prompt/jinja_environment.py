"""Where a chat template runs.

Owns Jinja's environment, compatible with the one that models' authors test in (transformers'
`apply_chat_template`): sandboxed, trimmed blocks, loop controls, plain `tojson`. Must not know
messages. What is done here for speed gives the same output: templates read fields of plain
dicts, and Jinja's sandbox looks for a Python attribute of that name first, at 2 us each.
"""

from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.api import JsonForm, ToolSchema, json_text

_DICT_ATTRIBUTES: Final = frozenset(dir(dict))
_LOOP_FACTS: Final = {
    "first": "index0 == 0",
    "index": "index0 + 1",
    "index0": "index0",
    "last": "last",
    "length": "length",
}
"""Of a loop, what are plain numbers: how to have them without a call, where that is possible."""
_NEIGHBOURS: Final = frozenset({"previtem", "nextitem"})

_MAX_VERDICTS: Final = 1024
"""More than the attributes that templates name; a filter may ask for names of the client's."""


def template_environment() -> jinja2.Environment:
    """A fresh environment."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


class _Code(jinja2.compiler.CodeGenerator):
    """Templates' code, which reads a field of a plain dict without a call."""

    def visit_Getattr(  # noqa: N802 (Jinja's own name)
        self, node: jinja2.nodes.Getattr, frame: jinja2.compiler.Frame
    ) -> None:
        """As `_Environment.getattr` has it: `a.b` is no attribute of a dict unless all have it."""
        if node.attr in _DICT_ATTRIBUTES:
            super().visit_Getattr(node, frame)
            return
        name = repr(node.attr)
        self.write(f"(_of[{name}] if type(_of := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {name} in _of else ")
        if node.attr in _LOOP_FACTS:
            self.write(f"_of.{_LOOP_FACTS[node.attr]} if type(_of) is LoopContext else ")
        self.write(f"environment.getattr(_of, {name}))")

    def visit_Getitem(  # noqa: N802 (Jinja's own name)
        self, node: jinja2.nodes.Getitem, frame: jinja2.compiler.Frame
    ) -> None:
        """The first of a list is what templates look at most."""
        at = node.arg.value if isinstance(node.arg, jinja2.nodes.Const) else None
        if type(at) is not int or at != 0:
            super().visit_Getitem(node, frame)
            return
        self.write("(_in[0] if type(_in := ")
        self.visit(node.node, frame)
        self.write(") is list and _in else environment.getitem(_in, 0))")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to what templates read most."""

    code_generator_class = _Code

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (Jinja's own options)
        super().__init__(**options)
        self._verdicts: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 (Jinja's own signature)
        """A field of a dict is no attribute, unless a method of dicts has its name."""
        kind = type(obj)
        if (kind is dict or kind is ToolSchema) and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if kind is LoopContext and attribute in _NEIGHBOURS:
            value = getattr(obj, attribute)
            if type(value) is dict:
                return value
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        """The sandbox judges by the type of `obj` and the name alone, at 1.5 us each time."""
        key = (type(obj), attr)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = super().is_safe_attribute(obj, attr, value)
            if len(self._verdicts) < _MAX_VERDICTS:
                self._verdicts[key] = verdict
        return verdict


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what training counts; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own, which escapes for HTML; a faster encoder would write other characters."""
    if type(value) is str and not ensure_ascii:
        return encode_basestring(value)
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        return value.text_in() if type(value) is ToolSchema else json_text(value)
    form = JsonForm(ensure_ascii, indent, separators, sort_keys)
    return value.text_in(form) if type(value) is ToolSchema else json_text(value, form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
