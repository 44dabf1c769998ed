"""The base class of everything a user can set."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen group of settings; an unknown key is an error, never ignored, and so is a number that
    is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
