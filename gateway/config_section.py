"""What every section of the configuration is made of: its base, the types of its values, and checks that many share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

NAME = r"^[A-Za-z0-9._:/-]{1,128}$"
HASH = r"^sha256:[0-9a-f]{64}$"
VARIABLE = r"^([A-Za-z_][A-Za-z0-9_]*)?$"

T = TypeVar("T")
Items = Annotated[tuple[T, ...], Field(strict=False)]  # YAML has lists, the frozen value a tuple
Name = Annotated[str, Field(pattern=NAME)]
Hash = Annotated[str, Field(pattern=HASH)]
Count = Annotated[int, Field(ge=1, le=1 << 40)]
Amount = Annotated[int, Field(ge=0, le=1 << 40)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Millis = Annotated[float, Field(gt=0, le=86_400_000)]
Problems = Iterator[tuple[tuple[str | int, ...], str]]  # where below the section, and a sentence


class Section(BaseModel):
    """A part of the configuration. Unknown keys and wrong types are refused: "8000" is no number here.
    `check` yields what is wrong between keys; it runs once every key for itself is right."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def check(self) -> Problems:
        yield from ()

    @model_validator(mode="after")
    def _checked(self) -> Self:
        problems = [
            InitErrorDetails(type=PydanticCustomError("check", "{reason}", {"reason": sentence}), loc=where, input=None)
            for where, sentence in self.check()
        ]
        if problems:  # raised as one, so that each problem keeps its own place and all are told at once
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self


def repeated(where: tuple[str, ...], key: str, values: Sequence[str], what: str, show: bool = True) -> Problems:
    for index, value in enumerate(values):
        if (first := values.index(value)) < index:
            yield (*where, index, key), f"{what}{f' {value!r}' if show else ''} is already used by number {first + 1}"
