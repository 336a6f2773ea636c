"""What DynamoLLM (Stojkovic et al., HPCA 2025) reports: numbers of its text, or read off the vector geometry of its
figures (about +-1 %). Owns published numbers only; every ratio is to SinglePool of the same experiment."""

SIX = ("singlepool", "multipool", "scaleinst", "scaleshard", "scalefreq", "dynamollm")


def to_single(*kwh: float) -> dict[str, float]:
    return {name: one / kwh[0] for name, one in zip(SIX, kwh, strict=True)}


HOUR = to_single(32.8, 39.5, 32.0, 30.9, 26.5, 21.3)  # the one-hour experiment, kWh
LOADS = {  # Fig. 13, Poisson
    "low": to_single(11.7, 13.6, 6.7, 9.2, 8.1, 5.0),
    "medium": to_single(16.4, 17.8, 13.1, 14.2, 12.8, 9.4),
    "high": to_single(20.6, 22.5, 20.0, 19.7, 18.1, 17.5),
}
ACCURACIES = {  # Fig. 12, DynamoLLM
    "1.0": 20.0 / 32.8,
    "0.9": 21.3 / 32.8,
    "0.8": 22.8 / 32.8,
    "0.6": 25.3 / 32.8,
    "0.5": 27.7 / 32.8,
}
POOLS = {2: 26.2 / 32.8, 4: 24.3 / 32.8, 6: 22.6 / 32.8, 9: 21.3 / 32.8, 12: 22.0 / 32.8, 16: 22.8 / 32.8}  # Fig. 14
DAY = {"singlepool": 1.0, "dynamollm": 0.58}  # -42 % as its text states
WEEK = {  # Fig. 15, Conversation, its own simulator
    "singlepool": 1.0, "multipool": 1.15, "scaleinst": 0.68, "scaleshard": 0.77, "scalefreq": 0.72, "dynamollm": 0.53,
}  # fmt: skip
