"""A profile's rows beside what the engine model of the same card says of the same batch. Pure comparison; judges
nothing."""

from __future__ import annotations

from profiles.engine_model import GPUS, EngineModel, engine_model_names, load_engine_model
from profiles.profile import UNKNOWN, Profile

Pairs = dict[str, list[tuple[float, float]]]  # quantity with its unit -> (profile, model)


def engine_model_of(profile: Profile) -> EngineModel | None:
    """The engine model that stands for this profile: the one that its source names, else its model's; None if there is
    none for the card."""
    gpu = next((gpu for gpu in GPUS if profile.gpu.casefold().startswith(gpu)), None)
    if gpu is None:
        return None
    known = {name.casefold(): name for name in engine_model_names(gpu)}
    for told in (profile.provenance.source, profile.model):
        name = known.get(told.casefold().rpartition("/")[2].removesuffix("-instruct"))
        if name is not None:
            return load_engine_model(name, gpu)
    return None


def against_model(profile: Profile, model: EngineModel) -> Pairs:
    """TBT p50 and watts of every held row at its mean batch, at clocks and TPs that the model covers."""
    pairs: Pairs = {"TBT p50 (ms)": [], "watts (W)": []}
    low, high = model.clocks_mhz[0], model.clocks_mhz[-1]
    for point in profile.points:
        covered = point.tp in model.points and low <= point.clock_mhz <= high
        if not covered or point.saturated or not 0 < point.running < UNKNOWN:
            continue
        running = max(1, round(point.running))
        context = point.context_tokens if point.context_tokens < UNKNOWN else model.context_tokens
        step_s = model.decode_step_s(point.tp, point.clock_mhz, running, int(running * context))
        if point.tbt_p50_s < UNKNOWN:
            pairs["TBT p50 (ms)"].append((point.tbt_p50_s * 1e3, step_s * 1e3))
        if point.watts < UNKNOWN:
            pairs["watts (W)"].append((point.watts, model.watts(point.tp, point.clock_mhz, running)))
    return {name: rows for name, rows in pairs.items() if rows}
