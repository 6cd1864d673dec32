"""A study as the text of a file; `read_study` reads it back."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from descend.study.design.study import Study

__all__ = ["to_toml"]


def to_toml(study: Study) -> str:
    """The text of a study file: every field that is not what it is by default, and all arms.

    Raises:
        ConfigurationError: A setting is None, which TOML has no word for.
    """
    plain = study.plain()
    usual = {name: field.default for name, field in type(study).model_fields.items()}
    target, arms = plain.pop("target"), plain.pop("arms")
    lines = [
        f"{name} = {_value(value)}"
        for name, value in plain.items()
        if value not in (None, {}) and (value != usual[name] or name in ("name", "trials", "searches", "seed"))
    ]
    if target:
        lines += ["", "[target]", *(f"{name} = {_value(value)}" for name, value in target.items())]
    for name, arm in arms.items():
        head = f"arms.{_key(name)}"
        lines += ["", f"[{head}]"]
        lines += [f"{key} = {_value(value)}" for key, value in arm.items() if key not in ("fixed", "space")]
        for part in ("fixed", "space"):
            if arm[part]:
                lines += [f"[{head}.{part}]", *(f"{_key(k)} = {_value(v)}" for k, v in arm[part].items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # inf, -inf, nan; JSON has other words
    if isinstance(value, (datetime.date, datetime.time)):  # a datetime is a date
        return value.isoformat()
    if value is None:
        raise ConfigurationError("a study has a setting that is None, which no TOML file can hold: leave it out")
    return json.dumps(value)
