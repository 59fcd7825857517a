"""Which modules of a quantised checkpoint are in 16 bits, as its config.json says.

Owns the meaning of the lists that each method has for that. A forecast needs them; the loader does
not, because it looks at the tensors. Must not know files or sizes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from protocol.errors import ConfigError

_QUANTISED_BITS: Final = 4
_REGEX_SIGNS: Final = frozenset("*^$|[]()\\+?")


class KeptModules(msgspec.Struct, frozen=True):
    """Patterns over the full names of modules. A module is kept in 16 bits if a pattern of `kept`
    is found in its name, or if one of the lists in `only` has no pattern that is.
    """

    kept: tuple[re.Pattern[str], ...] = ()
    only: tuple[tuple[re.Pattern[str], ...], ...] = ()

    def has(self, names: Iterable[str]) -> bool:
        """Whether a module is kept that is called by one of these names."""
        spellings = list(names)
        if _finds(self.kept, spellings):
            return True
        return not all(_finds(patterns, spellings) for patterns in self.only)


NOTHING_KEPT: Final = KeptModules()


def read_kept(stated: Mapping[str, Any]) -> KeptModules:
    """The modules that a `quantization_config` keeps in 16 bits. Raises `ConfigError` for a
    pattern that is none.
    """
    kept: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers"):
        kept += [_part(name) for name in _names(stated.get(key))]
    kept += [_compressed(name) for name in _names(stated.get("ignore"))]
    for key, value in _table(stated.get("dynamic")).items():
        bits = value.get("bits", _QUANTISED_BITS) if isinstance(value, dict) else None
        if key.startswith("-:") or bits != _QUANTISED_BITS:
            kept.append(f"^(?:{key.removeprefix('-:').removeprefix('+:')})")
    for key, value in _table(stated.get("extra_config")).items():
        if isinstance(value, dict) and value.get("bits", _QUANTISED_BITS) != _QUANTISED_BITS:
            kept.append(f"^(?:{key})" if _is_regex(key) else f"^{re.escape(key)}$")
    groups = _table(stated.get("config_groups")).values()
    found = [group for group in groups if isinstance(group, dict)]
    for group in found:
        bits = (group.get("weights") or {}).get("num_bits", _QUANTISED_BITS)
        if len(found) > 1 and bits != _QUANTISED_BITS:
            kept += [_compressed(name) for name in _names(group.get("targets"))]
    only = [_compiled(patterns) for patterns in _only(stated, found)]
    return KeptModules(_compiled(kept), tuple(each for each in only if each))


def _only(stated: Mapping[str, Any], groups: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Lists of which each must name a module that is quantised: blocks, modules within them,
    targets.
    """
    blocks = stated.get("block_name_to_quantize")
    names = blocks.split(",") if isinstance(blocks, str) else _names(blocks)
    yield [f"^{re.escape(name.strip())}\\." for name in names]
    yield [_part(name) for group in _lists(stated) for name in _names(group)]
    targets = [name for group in groups for name in _names(group.get("targets"))]
    if all(name.startswith("re:") for name in targets):
        yield [_compressed(name) for name in targets]


def _finds(patterns: tuple[re.Pattern[str], ...], names: list[str]) -> bool:
    return any(pattern.search(name) for pattern in patterns for name in names)


def _part(name: str) -> str:
    """The pattern for an entry of a list of modules: a whole name, or some words of one."""
    return name if _is_regex(name) else rf"(?:^|\.){re.escape(name)}(?:\.|$)"


def _compressed(name: str) -> str:
    return f"^(?:{name[3:]})" if name.startswith("re:") else f"^{re.escape(name)}$"


def _is_regex(name: str) -> bool:
    return not _REGEX_SIGNS.isdisjoint(name)


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _lists(stated: Mapping[str, Any]) -> list[object]:
    """GPTQ's list of lists of modules in a block."""
    found = stated.get("modules_in_block_to_quantize")
    return found if isinstance(found, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _compiled(patterns: list[str]) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple([re.compile(pattern) for pattern in patterns])
    except re.error as error:
        raise ConfigError(
            f"the quantization_config of its config.json has a pattern {error.pattern!r} that is "
            f"none ({error}): correct it"
        ) from error
