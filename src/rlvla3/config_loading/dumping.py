"""Settings back to YAML text."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from rlvla3.config_loading.types import scalar

_LINE_BREAKS = "\x85\u2028\u2029"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc, unused-ignore]
    """Quotes every text that would read back as something else."""


def _represent_text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = None if isinstance(scalar(value), str) else "'"
    if any(mark in value for mark in _LINE_BREAKS):
        style = '"'  # other styles fold these into spaces
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(model: BaseModel) -> str:
    """The resolved settings as YAML; loading it gives an equal object."""
    data = _plain(model.model_dump(mode="python", serialize_as_any=True))
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)
