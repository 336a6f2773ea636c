"""The part of a service's configuration that says what foretells its answers' lengths."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from core.service import PredictorSpec
from gateway.config_section import Problems, Section


class PredictorConfig(Section):
    kind: Literal["model", "running"] = Field(
        default="model",
        description="model = reads requests, learns of answers; running = only each template's answers.",
    )
    model: str = Field(default="", description="A model file of `joulegate train`. Empty = the shipped one.")
    challenger: str = Field(default="", description="A model file that takes over once it foretold 500 answers better.")
    keep_prompts: bool = Field(default=False, description="The run log keeps the ends of each prompt, for training.")

    def check(self) -> Problems:
        if self.kind == "running":
            for key in ("model", "challenger"):
                if getattr(self, key):
                    yield (key,), "is not used: kind is running"

    def spec(self) -> PredictorSpec:
        return PredictorSpec(self.kind, self.model, self.challenger, self.keep_prompts)
