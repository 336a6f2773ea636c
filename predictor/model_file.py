"""A length model as a file: JSON with a schema number, a training card and a checksum.

Owns reading and writing it. Refuses a file that is damaged, of another schema or of other features than this code's:
data is read, nothing in it runs."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from pathlib import Path

import msgspec
from msgspec import Struct

from core.files import write_whole
from predictor.features import NAMES
from predictor.sealed import SealError, seal, unseal

SCHEMA = 2
SHIPPED = Path(__file__).parent / "data" / "shipped.json"
LARGEST_FILE = 64 << 20
WIDEST = 1.5  # of the logarithm of a width: no request is more certain or less than e**1.5 times the others


class ModelFileError(ValueError):
    """A model file that cannot be used; its text names the file and the fault."""


class Body(Struct, frozen=True):
    """In standard lengths an answer lies at `mid_bias` + `mid` x features and words, and exp(`width_bias` + `width` x
    features) is how wide; `cumulative[i]` = probability of no more than `grid[i]` such widths beyond that. Features are
    centred on `means` and divided by `scales`; a word is 1 where it occurs.
    `level`, `level_spread` and `spread` in log2 tokens: what a service never seen is taken for, how far services lie
    apart, and how far answers of one lie apart.
    `terciles`: of all answers, in standard lengths. `confusion[true][said]`: answers of the held-out part by true and
    likeliest size, with history, at the default edges; None without a held-out part."""

    features: list[str]
    words: list[str]
    grid: list[float]
    cumulative: list[float]
    means: list[float]
    scales: list[float]
    mid: list[float]
    mid_bias: float
    width: list[float]
    width_bias: float
    level: float
    level_spread: float
    spread: float
    terciles: tuple[float, float]
    card: dict[str, str | int | float]
    confusion: list[list[int]] | None = None


def dump(body: Body) -> bytes:
    return seal(msgspec.json.encode(body), SCHEMA)


def write_model(path: Path, body: Body) -> None:
    write_whole(path, dump(body))


def read_model(path: Path) -> Body:
    """Raises ModelFileError, or OSError where the file cannot be read."""
    if path.stat().st_size > LARGEST_FILE:
        raise ModelFileError(f"{path}: larger than {LARGEST_FILE >> 20} MiB, which no length model is")
    return load(path.read_bytes(), str(path))


def load(data: bytes, name: str) -> Body:
    try:
        body = msgspec.json.decode(unseal(data, SCHEMA), type=Body)
    except SealError as error:
        raise ModelFileError(f"{name}: not a length model: {error}") from None
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"{name}: not a length model: {error}") from None
    except (UnicodeDecodeError, RecursionError):
        raise ModelFileError(f"{name}: not a length model") from None
    if problem := _problem(body):
        raise ModelFileError(f"{name}: {problem}")
    return body


def _problem(body: Body) -> str:
    if body.features != list(NAMES):
        return "its features are not those of this version; train it anew"
    if len(body.grid) < 2 or any(b <= a for a, b in pairwise(body.grid)):
        return "its grid does not rise"
    if len(body.cumulative) != len(body.grid) or any(b < a for a, b in pairwise([0.0, *body.cumulative, 1.0])):
        return "its distribution falls, or has not the shape of its grid"
    if len(body.mid) != len(body.features) + len(body.words) or len(body.width) != len(body.features):
        return "its weights have not the shape of its features and words"
    if len(body.means) != len(body.features) or len(body.scales) != len(body.features):
        return "its means and scales do not fit its features"
    if len(set(body.words)) != len(body.words):
        return "a word stands in it twice"
    numbers = [*body.grid, *body.means, *body.scales, *body.mid, *body.width, body.mid_bias, body.width_bias]
    if not all(map(isfinite, [*numbers, body.level, body.level_spread, body.spread])):
        return "a number in it is not finite"
    if body.spread <= 0 or body.level_spread < 0 or any(scale <= 0 for scale in body.scales):
        return "a spread or scale in it is not positive"
    if not body.terciles[0] < body.terciles[1]:
        return "its terciles do not rise"
    if body.confusion is not None and [len(row) for row in body.confusion] != [3, 3, 3]:
        return "its confusion is not three by three"
    return ""
