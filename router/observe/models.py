"""The base model of what operators' paths return as JSON."""

from pydantic import BaseModel, ConfigDict


class Shown(BaseModel):
    """One thing that is told of; `/docs` explains its fields by their docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=True)
