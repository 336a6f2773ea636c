"""Training, evaluation and their commands."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from typer import Typer
from typer.testing import CliRunner

from commands import predict
from commands.train import train
from predictor.features import NAMES, Asked, Vocabulary, featurise
from predictor.model import LengthModel
from predictor.model_file import read_model
from predictor.records import Record, RecordError, read_records
from predictor.scores import BelowLimit, below_limit, covered_by, reliability, scored
from predictor.train import GRID, Level, _targets, groups_of, split
from predictor.train import train as fit

app = Typer()
app.add_typer(predict.app, name="predict")
app.command()(train)
KEYS = {
    "n", "accuracy", "macro_f1", "majority_accuracy", "under_rate", "q90_coverage", "p50_ms", "p99_ms", "with_history",
}  # fmt: skip


def lines(count: int = 400) -> str:
    rows = []
    for index in range(count):
        long = index % 2
        prompt = f"Write an essay about topic {index}" if long else f"Is {index} prime, yes or no?"
        tokens = (500 + index % 60) if long else 20 + index % 9
        rows.append({"prompt": prompt, "output_tokens": tokens, "template": f"t{index % 3}"})
    return "\n".join(map(json.dumps, rows))


def test_eval_answers_with_the_keys_others_rely_on(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines())
    ran = CliRunner().invoke(app, ["predict", "eval", str(file), "--edges", "100,350", "--json"])
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report.keys() >= KEYS
    assert report["with_history"].keys() >= KEYS - {"with_history"}
    assert report["n"] == 400 and report["with_history"]["accuracy"] > 0.9
    assert report["baselines"].keys() == {"always_long", "majority", "max_tokens_only", "oracle"}
    assert "template only" in CliRunner().invoke(app, ["predict", "eval", str(file)]).stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [('{"prompt":"a"}', "a.jsonl:1"), ('{"prompt":"a","output_tokens":-1}', "negative"), ("", "no answers"),
     ('{"output_tokens":3}', "needs prompt or messages"), ("[" * 9000, "a.jsonl:1")],
)  # fmt: skip
def test_bad_input_is_named_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    ran = CliRunner().invoke(app, ["predict", "eval", str(file)])
    assert ran.exit_code == 2 and why in ran.stderr


def test_messages_are_read_as_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    said = [
        ("system", "Be terse."),
        ("user", "Hi"),
        ("assistant", "x" * 42),
        ("user", [{"type": "text", "text": "So?"}]),
    ]
    messages = [{"role": role, "content": content} for role, content in said]
    file.write_text(json.dumps({"messages": messages, "output_tokens": 7, "max_tokens": 7}))
    (record,) = read_records(file)
    assert record.asked.prompt == b"So?" and record.asked.turns == 2 and record.asked.last_answer_tokens == 10
    assert record.cut
    with pytest.raises(RecordError):
        read_records(tmp_path)


def test_train_writes_a_model_that_eval_reads_and_twice_the_same(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(200))
    for name in ("one.json", "two.json"):
        ran = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / name), "--json"])
        assert ran.exit_code == 0, ran.output
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    report = json.loads(ran.stdout)
    assert report["held_out"]["accuracy"] > 0.6
    one, two = ((tmp_path / f"{name}.svg").read_text() for name in ("one", "two"))
    assert report["plot"] == str(tmp_path / "two.svg") and one == two
    assert {"{http://www.w3.org/2000/svg}svg"} == {ElementTree.fromstring(one).tag} and one.count("<use") > 20
    ran = CliRunner().invoke(app, ["predict", "eval", str(file), "--model", str(tmp_path / "one.json"), "--json"])
    assert ran.exit_code == 0, ran.output


def test_held_out_prompts_and_models_are_not_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"prompt": f"p{p}", "output_tokens": 5, "model": f"m{m}-7b"} for p in range(40) for m in range(20)]
    file.write_text("\n".join(map(json.dumps, rows)))
    parts = split(read_records(file))
    assert parts.training and parts.held and parts.calibration
    assert not {r.prompt_id for r in parts.training} & {r.prompt_id for r in parts.held}
    assert not {r.model for r in parts.training} & {r.model for r in parts.held}


def test_a_cut_answer_counts_for_longer_lengths_only(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"prompt": "a", "output_tokens": 100, "max_tokens": 100}]
    rows += [{"prompt": "b", "output_tokens": tokens} for tokens in (25, 50, 100, 200, 400)]
    file.write_text("\n".join(map(json.dumps, rows)))
    records = read_records(file)
    level = Level(6.6439, 1.0)
    _, shares, _ = _targets([[(records[0], level)], [(record, level) for record in records[1:]]])
    assert shares[0][GRID.index(-1.0)] == 0.0 and shares[0][-1] > 0.9


def test_scores_of_a_known_case() -> None:
    scores = scored([0, 1, 2, 2], [0, 2, 1, 2], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 2, 4])
    assert (scores.accuracy, scores.under_rate, scores.over_rate) == (0.5, 0.25, 0.25)
    assert scores.q90_coverage == 0.75 and scores.spearman == 1.0 and scores.pinball90_tokens in (0.22, 0.23)  # 0.225


def test_an_answer_is_within_its_limit_whatever_was_said() -> None:
    assert below_limit([5, 9, 9, 9], [6, 8, 9, 9], [9, 9, 9, None]) == BelowLimit(3, 0.6667)
    assert below_limit([9], [9], [9]) is None


def test_a_service_that_changes_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [
        {"prompt": f"p{p}", "output_tokens": tokens + p % 7, "model": name}
        for name, tokens in (("long", 600), ("middle", 90), ("short", 20), ("rare", 5))
        for p in range(1 if name == "rare" else 300)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    ran = CliRunner().invoke(app, ["predict", "drift", str(file), "--pairs", "3", "--json"])
    assert ran.exit_code == 0, ran.output
    (longer,), (shorter,) = json.loads(ran.stdout).values()
    assert (longer["first"], longer["then"]) == (shorter["then"], shorter["first"]) == ("short", "long")
    assert longer["answers"] == 600 and longer["first_median_tokens"] == 23
    assert longer["covered"]["soon"] < longer["covered"]["later"] <= 1
    assert shorter["covered"]["soon"] == 1, "all of them are shorter than what was known"
    assert longer["covered"]["whole"] == pytest.approx(
        (longer["covered"]["before"] + longer["covered"]["after"]) / 2,
        abs=1e-4,  # all are rounded
    )
    assert "q90 covers" in CliRunner().invoke(app, ["predict", "drift", str(file)]).stdout


def test_one_service_has_nothing_to_change_into(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(120))
    for more, why in (((), "two services"), (("--edges", "terciles"), "two numbers")):
        ran = CliRunner().invoke(app, ["predict", "drift", str(file), *more])
        assert ran.exit_code == 2 and why in ran.stderr


def test_nothing_to_learn_from_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt":"a","output_tokens":5}')
    ran = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / "m.json")])
    assert ran.exit_code == 1 and "learn from" in ran.stderr
    assert fit  # the function that the command calls


def test_a_template_is_measured_against_its_own_level() -> None:
    """Two applications of one service, one sixteen times as wordy: what its prompts ask for would drown in that."""
    records = []
    for index in range(240):
        long, wordy = index % 2, index // 2 % 2
        prompt = (f"Write an essay about {index}" if long else f"Is {index} prime?").encode()
        tokens = round((400 if wordy else 25) * (1.6 if long else 1.0) * (1 + index % 7 / 20))
        records.append(Record(Asked(prompt, len(prompt)), prompt, "m", b"wordy" if wordy else b"terse", tokens))

    def gap(rows: list[Record]) -> float:
        trained = LengthModel(fit(rows, lambda text: None, {}))
        return trained.shape(trained.features(rows[1].asked)).mid - trained.shape(trained.features(rows[0].asked)).mid

    assert set(groups_of(records)) == {("m", b"wordy"), ("m", b"terse")}
    assert set(groups_of(records[:50])) == {("m", b"")}, "too few to be known by themselves"
    assert gap(records) > 1.2 > 3 * gap([replace(record, template=b"") for record in records])


def served(index: int, **more: object) -> dict[str, object]:
    long = index % 2
    features = {"prompt_bytes": 9.0 if long else 4.0, "last_bytes": 9.0 if long else 4.0, "questions": 1.0 - long}
    row = {
        "kind": "request", "outcome": "completed", "service": "m", "template": "00ff", "max_tokens": None, "n": 1,
        "features": {**features, "turns": index / 1000, "limit": 7.0},
        "output_tokens": (500 + index % 60) if long else 20 + index % 9,
    }  # fmt: skip
    return {**row, **more}


def test_a_run_log_trains_a_model_without_any_prompt(tmp_path: Path) -> None:
    file, model = tmp_path / "run.jsonl", tmp_path / "m.json"
    rows = [served(index) for index in range(200)]
    others = [{"kind": "tick", "actions": []}, served(1, outcome="shed", output_tokens=None), served(2, features=None)]
    file.write_text("\n".join(map(json.dumps, [*others, *rows])))
    records = read_records(file)
    assert len(records) == 200 and records[0].model == "m" and records[0].template == b"\x00\xff"
    ran = CliRunner().invoke(app, ["train", str(file), "--out", str(model), "--json"])
    assert ran.exit_code == 0, ran.output
    body = read_model(model)
    trained = LengthModel(body)
    short, long = (trained.distribution(trained.features(records[at].asked)).quantile(0.5) for at in (0, 1))
    assert long > 5 * short
    assert body.confusion is not None and body.confusion[2][2] > 0 == body.confusion[0][2] + body.confusion[2][0]


def test_of_a_run_log_that_kept_prompts_their_words_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(json.dumps(served(0, prompt="Write a poem", output_tokens=30, n=3, max_tokens=10)))
    (record,) = read_records(file)
    features = featurise(record.asked, Vocabulary([b"poem", b"write"]))
    assert (
        {b"poem", b"write"} == features.words
        and features.numbers[0] == 4.0
        and record.output_tokens == 10
        and record.cut
    )
    assert features.numbers[NAMES.index("limit")] == 0.0, "a limit is applied, not learnt"


def test_terciles_come_of_first_halves_and_second_halves_are_scored(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"prompt": f"p{at}", "output_tokens": 10 + at % 30 + (1000 if at >= 60 else 0)} for at in range(120)]
    file.write_text("\n".join(map(json.dumps, rows)))
    ran = CliRunner().invoke(app, ["predict", "eval", str(file), "--json"])
    report = json.loads(ran.stdout)
    assert report["n"] == 60 and report["edges"][""][1] < 40
    assert report["baselines"]["always_long"]["accuracy"] == 1.0
    history = report["with_history"]
    assert sum(map(sum, history["confusion"])) == 60 and history["services"] is None
    assert all(0 <= rest["q90_held"] <= 1 for rest in history["while_generating"])


def test_reliability_and_coverage_of_a_known_case() -> None:
    found = reliability([0, 0, 2, 1], [(0.9, 0.1, 0.0), (0.9, 0.1, 0.0), (0.9, 0.1, 0.0), (0.0, 1.0, 0.0)])
    assert [(one.said, one.came_true, one.n) for one in found] == [
        (0.0, 0.2, 5), (0.1, 0.0, 3), (0.925, 0.75, 4),
    ]  # fmt: skip
    names, held = ["a"] * 10 + ["b"] * 10 + ["c"], [1] * 9 + [9] + [1] * 10 + [1]
    covered = covered_by(names, held, [5] * 21, 10)
    assert covered is not None
    assert (covered.services, covered.least, covered.most, covered.within_two_points) == (2, 0.9, 1.0, 0.5)
