"""The base class of everything a user can set."""

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

_MOST = 2**63


class Settings(BaseModel):
    """A frozen group of settings; an unknown key is an error, never ignored, and so is a number that
    is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _of_64_bits(cls, value: Any) -> Any:
        """Refuse integers that no array and no message can hold."""
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and not -_MOST <= number < _MOST:
                raise ValueError("must be an integer of at most 64 bits")
        return value
