"""The picture of a model's report, as SVG text: do probabilities come true, and what fewer under-predictions cost.

Imports matplotlib only when it draws; decides nothing. The same figures give the same text: no date in it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from predictor.evaluate import Report

AIM = 0.15  # of answers under-predicted, at most


def report_svg(reports: Mapping[str, Report]) -> str:
    """`reports` by what they are called. Left: probabilities of a size as they were said, and how often they came true,
    larger where more were said. Right: routed by each confidence, accuracy against the share under-predicted."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "joulegate"}):
        figure = Figure(figsize=(9.5, 4.2), layout="constrained")
        said, price = figure.subplots(1, 2)
        said.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        price.axvline(AIM, color="grey", linewidth=0.8, linestyle=":")
        for name, report in reports.items():
            most = max(one.n for one in report.reliability)
            (line,) = said.plot(
                [one.said for one in report.reliability], [one.came_true for one in report.reliability],
                linewidth=0.8, label=name,
            )  # fmt: skip
            said.scatter(
                [one.said for one in report.reliability], [one.came_true for one in report.reliability],
                s=[4 + 60 * one.n / most for one in report.reliability], color=line.get_color(),
            )  # fmt: skip
            scores = report.routing.values()
            price.plot([s.under_rate for s in scores], [s.accuracy for s in scores], marker=".", label=name)
            for confidence, score in report.routing.items():
                price.annotate(confidence, (score.under_rate, score.accuracy), fontsize=6, xytext=(2, 3),
                               textcoords="offset points")  # fmt: skip
        said.set(xlabel="probability of a size, as said", ylabel="came true", xlim=(0, 1), ylim=(0, 1))
        price.set(xlabel="under-predicted", ylabel="accuracy", xlim=(0, None))
        price.legend(fontsize=8, title="routed by confidence", title_fontsize=8)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
