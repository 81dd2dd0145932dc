"""Advice: each rule speaks where something is wrong, and none on a good recipe."""

import dataclasses
import re
import shutil

import keras
import numpy as np
import pandas as pd
import pytest
import short_searches
from result_records import keep, record

import kbatch
from kbatch import Recipe, advise, errors
from kbatch.memory._max_batch import Row, Table
from kbatch.records import project
from kbatch.results._advice_rules import RULES, unchecked
from kbatch.results.advice import evidence_of
from kbatch.results.loading import load, rows
from kbatch.runtime import device
from kbatch.space import Combination

EXAMPLES = 2000  # on which a value of 0.8 has a standard error of 0.009


def table(*records, examples=EXAMPLES):
    """What kbatch.results.load gives of these records."""
    trials = rows(records)
    trials["validation_examples"] = examples
    return trials


def trial(number, held, batch_size, rate_at_32=0.001, speed=1000.0, changes=None, **recipe):
    """A trial that held an accuracy, at a speed in examples per second."""
    one = record(number, held, batch_size=batch_size, **recipe)
    measured = {
        "value": held,
        "examples": int(10 * speed),
        "train_seconds": 10.0,
        "updates": int(10 * speed / batch_size),
        "learning_rate": one.recipe.learning_rate,
        **(changes or {}),
    }
    outcome = dataclasses.replace(one.outcome, **measured)
    score = (held - 0.5) / 10
    return dataclasses.replace(one, outcome=outcome, score=score, learning_rate_at_32=rate_at_32)


TWELVE = {"examples": 1200, "epochs": 12}  # 57 updates of 256


def convnet(frozen=False, normalized=True, synchronized=False, momentum=0.99):
    layers = [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)]
    if normalized:
        normalization = keras.layers.BatchNormalization(
            momentum=momentum, synchronized=synchronized
        )
        layers.append(normalization)
    layers += [keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.layers[0].trainable = not frozen
    return model


def limits(batch_size, recipe):
    row = Row(Combination.of(recipe), batch_size, batch_size, 1, None, 1)
    return Table((row,), 10**9, "none", 1, 0, 1.0)


def points(seed, count=100):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 5)), rng.integers(0, 2, count)


SCALED = Recipe(256, "sgd", 0.08, warmup_updates=20)
GROWING = dataclasses.replace(SCALED, batch_schedule="exponential:8")
BY_NOISE = Recipe(64, "sgd", 0.02, micro_batch_size=32, batch_schedule="noise:8")
SLOW_LARGE = (trial(0, 0.80, 32), trial(1, 0.76, 256, speed=4000.0))
SPLIT = Recipe(64, micro_batch_size=32)
MIXED = Recipe(64, policy="mixed_float16")
GOOD_TRIAL = trial(0, 0.8, 64, changes={"input_examples_per_second": 9000.0})
WAITING = trial(0, 0.8, 64, changes={"input_examples_per_second": 1100.0})
CPU = {"device": "CPU any, 2 cores"}
RTX = {"device": "NVIDIA RTX"}
MIXED_TOO = ("float32", "mixed_float16")
AVERAGED = Recipe(ema=0.999)


def on(recipe, model=None, results=None, **arguments):
    """The arguments of `advise`; a model is made when the case is run."""
    return recipe, model, results, arguments


# by rule: cases that trigger it, and cases that must not
CASES = {
    "evaluated_on_training_data": (
        [
            on(Recipe(), training_data=points(0), validation_data=points(0)),
            # of 100 examples 10 are in both
            on(
                Recipe(),
                training_data=points(0),
                validation_data=tuple(
                    np.concatenate([a[:10], b[:90]])
                    for a, b in zip(points(0), points(1), strict=True)
                ),
            ),
        ],
        [
            on(Recipe(), training_data=points(0), validation_data=points(1)),
            # no information: all examples are alike
            on(
                Recipe(),
                training_data=(np.zeros((9, 2)), np.zeros(9)),
                validation_data=(np.zeros((9, 2)), np.zeros(9)),
            ),
        ],
    ),
    "largest_not_best": (
        [
            on(Recipe(256), results=table(trial(0, 0.85, 32), trial(1, 0.75, 256))),
            on(Recipe(96), max_batch=96),
            on(Recipe(96), max_batch=limits(96, Recipe(96))),
        ],
        [
            on(Recipe(32), results=table(trial(0, 0.85, 32), trial(1, 0.75, 256))),
            # within noise, with many examples and with few
            on(Recipe(256), results=table(trial(0, 0.81, 32), trial(1, 0.80, 256))),
            on(Recipe(256), results=table(trial(0, 0.9, 32), trial(1, 0.8, 256), examples=40)),
            on(Recipe(96), results=table(trial(0, 0.8, 96)), max_batch=96),
            on(Recipe(64), max_batch=96),
            on(Recipe(16), max_batch=16),
        ],
    ),
    "rate_not_scaled": (
        [
            on(Recipe(128)),
            on(Recipe(512, "sgd", 0.01)),
            on(Recipe(256, "adamw", 3e-4)),
            # one odd rate for all batch sizes
            on(
                Recipe(256, "sgd", 0.037),
                results=table(
                    *(
                        trial(i, 0.8, 16 * 4**i, optimizer="sgd", learning_rate=0.037)
                        for i in (0, 1, 2)
                    )
                ),
            ),
            on(Recipe(512, "compiled", None), lambda: compiled("adam")),
        ],
        [
            on(Recipe(64)),
            on(SCALED),
            on(Recipe(128, "lars", 1.0)),
            # which is to be lowered
            on(Recipe(128), lambda: convnet(frozen=True)),
            on(Recipe(512, "compiled", None)),
            on(Recipe(512, "compiled", None), lambda: compiled(keras.optimizers.Adam(4e-3))),
            # a raised rate was tried: the results decide
            on(
                Recipe(128),
                results=table(trial(0, 0.8, 128), trial(1, 0.8, 128, learning_rate=0.002)),
            ),
        ],
    ),
    "no_warmup": (
        [
            on(Recipe(256, "sgd", 0.08)),
            on(Recipe(512, "adam", 0.004)),
            on(Recipe(256, "lamb", 1e-3)),
        ],
        [
            on(SCALED),
            on(Recipe(128, "sgd", 0.04)),
            on(Recipe(256, "sgd", 0.0141)),
            # it begins at batch 64
            on(Recipe(512, "sgd", 0.16, batch_schedule="linear:8")),
            on(Recipe(512, "compiled", None)),
        ],
    ),
    "long_warmup": (
        [on(dataclasses.replace(SCALED, warmup_updates=60), examples=2560, epochs=10)],
        [
            on(SCALED, examples=25_600, epochs=10),
            on(SCALED),
            # of 17 updates, were the batch constant
            on(GROWING, examples=2560, epochs=1.7),
        ],
    ),
    "too_few_updates": (
        [
            on(SCALED, examples=2000, epochs=5),
            on(GROWING, examples=2560, epochs=2),
            on(Recipe(64), results=table(trial(0, 0.8, 64, speed=100.0))),
        ],
        [
            on(SCALED, examples=20_000, epochs=5),
            # small batches make most of the updates, or nobody knows how many
            on(GROWING, examples=2560, epochs=6),
            on(dataclasses.replace(GROWING, batch_schedule="plateau:8"), examples=2560, epochs=6),
            on(SCALED),
            on(Recipe(16), examples=16, epochs=5),
            # it did no harm
            on(
                Recipe(64),
                results=table(trial(0, 0.8, 64, speed=100.0), trial(1, 0.7, 32, speed=100.0)),
            ),
        ],
    ),
    "generalisation_gap": (
        [
            on(Recipe(256), results=table(*SLOW_LARGE)),
            on(Recipe(32), results=table(*SLOW_LARGE)),
            # two rates at the large batch, neither that of the small one
            on(
                Recipe(32),
                results=table(
                    trial(0, 0.80, 32),
                    trial(1, 0.75, 256, 0.004, 4000.0, learning_rate=0.011),
                    trial(2, 0.76, 256, 0.0001, 4000.0, learning_rate=0.0003),
                ),
            ),
        ],
        [
            on(Recipe(32), results=table(trial(0, 0.8, 32), trial(1, 0.79, 256, speed=4000.0))),
            on(Recipe(32), results=table(*SLOW_LARGE, examples=100)),
            # it saw fewer examples
            on(Recipe(32), results=table(trial(0, 0.8, 32), trial(1, 0.7, 256, speed=500.0))),
            # it is not faster
            on(Recipe(32), results=table(trial(0, 0.8, 32), trial(1, 0.7, 256, speed=1010.0))),
            # one bad rate is no gap
            on(
                Recipe(32),
                results=table(trial(0, 0.8, 32), trial(1, 0.7, 256, 0.01, speed=4000.0)),
            ),
            # nothing is left to try
            on(
                Recipe(32),
                results=table(
                    trial(0, 0.8, 32),
                    trial(
                        *(1, 0.7, 256, 0.001, 4000.0),
                        warmup_updates=9,
                        weight_decay=0.1,
                        training="sam:0.05",
                        augmentation="flip",
                    ),
                ),
            ),
        ],
    ),
    "needless_accumulation": (
        [
            on(SPLIT, max_batch=64),
            on(SPLIT, max_batch=limits(100, SPLIT)),
            on(SPLIT, results=table(trial(0, 0.8, 128))),
        ],
        [
            on(SPLIT, max_batch=63),
            on(SPLIT),
            # its passes measure the noise
            on(BY_NOISE, max_batch=64),
            on(Recipe(64), max_batch=128),
            # of another optimizer, of smaller passes, and of a wider model
            on(SPLIT, results=table(trial(0, 0.8, 128, optimizer="sgd", learning_rate=0.01))),
            on(SPLIT, results=table(trial(0, 0.8, 128, micro_batch_size=32))),
            on(
                SPLIT,
                results=table(
                    *(dataclasses.replace(trial(i, 0.8, 128), values={"width": i}) for i in (1, 2))
                ),
            ),
        ],
    ),
    "small_micro_batch": (
        [
            on(Recipe(64, micro_batch_size=8), convnet),
            on(Recipe(8), convnet),
            on(Recipe(64), convnet, devices=8),
            on(Recipe(64, micro_batch_size=32, batch_schedule="exponential:8"), convnet),
            on(Recipe(64, micro_batch_size=8), lambda: convnet(synchronized=True)),
        ],
        [
            on(Recipe(64, micro_batch_size=16), convnet),
            on(Recipe(64, batch_schedule="linear:4"), convnet),
            on(Recipe(64, micro_batch_size=8), lambda: convnet(normalized=False)),
            on(Recipe(64, micro_batch_size=8, normalization="group"), convnet),
            on(Recipe(64), lambda: convnet(synchronized=True), devices=8),
            on(Recipe(8), lambda: frozen_normalization()),
        ],
    ),
    "fine_tuning": (
        [
            on(Recipe(256, learning_rate=3e-3, warmup_updates=9), lambda: convnet(frozen=True)),
            on(SCALED, pretrained=True),
            # the batch alone, and the rate alone
            on(Recipe(512, "adam", 1e-4), pretrained=True),
            on(Recipe(512, "adam", 1e-4), pretrained=True, examples=2000, epochs=9),
            on(Recipe(32, "adam", 1e-3), pretrained=True),
            on(Recipe(32, "sgd", 0.01), pretrained=True),
            on(Recipe(32, "compiled", None), lambda: moved()),
            on(Recipe(1024, "lamb", 1e-3, warmup_updates=9), pretrained=True),
        ],
        [
            on(SCALED, convnet),
            # a new head on frozen layers
            on(Recipe(32, "adam", 1e-3), lambda: headed(), pretrained=True),
            on(Recipe(32, "compiled", None), lambda: compiled("adam")),
            # enough updates for a batch of 512
            on(Recipe(512, "adam", 1e-4), pretrained=True, examples=50_000, epochs=9),
            on(Recipe(16, "adam", 5e-5), pretrained=True),
            on(Recipe(1, "adamw", 5e-5), pretrained=True),
            on(Recipe(256, "sgd", 0.01), pretrained=True),
            *(
                on(kbatch.starting_recipe("fine-tuning", optimizer=name), pretrained=True)
                for name in ("sgd", "adam", "adamw", "lars", "lamb")
            ),
            on(Recipe(32, learning_rate=5e-5), lambda: convnet(frozen=True)),
            on(Recipe(256, learning_rate=1e-4), pretrained=True),
        ],
    ),
    "input_bound": (
        [on(Recipe(64), results=table(WAITING))],
        [on(Recipe(64), results=table(GOOD_TRIAL)), on(Recipe(32), results=table(WAITING))],
    ),
    "slow_mixed_policy": (
        [
            on(
                MIXED,
                results=table(
                    trial(0, 0.8, 64, speed=500.0, policy="mixed_float16"),
                    trial(1, 0.8, 64, speed=1000.0, learning_rate=0.003),
                ),
            ),
            on(MIXED, results=table(dataclasses.replace(trial(0, 0.8, 32), **CPU))),
        ],
        [
            on(
                MIXED,
                results=table(
                    trial(0, 0.8, 64, speed=1500.0, policy="mixed_float16"),
                    trial(1, 0.8, 64, speed=1000.0),
                ),
            ),
            # another batch is no pair
            on(
                MIXED,
                results=table(
                    *(
                        dataclasses.replace(one, **RTX)
                        for one in (
                            trial(0, 0.8, 64, speed=500.0, policy="mixed_float16"),
                            trial(1, 0.8, 32, speed=1000.0),
                        )
                    )
                ),
            ),
            on(Recipe(64, policy="mixed_bfloat16")),
            on(Recipe(64)),
        ],
    ),
    "slow_statistics": (
        [on(Recipe(256, "adam", 0.003, 4), convnet, **TWELVE)],
        [
            on(Recipe(256, "adam", 0.003, 4), convnet, examples=12_000, epochs=12),
            on(Recipe(256, "adam", 0.003, 4), lambda: convnet(normalized=False), **TWELVE),
            on(
                Recipe(256, "adam", 0.003, 4, normalization="group"),
                convnet,
                **TWELVE,
            ),
            on(Recipe(256, "adam", 0.003, 4), lambda: convnet(momentum=0.9), **TWELVE),
            on(Recipe(256, "adam", 0.003, 4), convnet),
        ],
    ),
    "long_average": (
        [on(AVERAGED, examples=3200, epochs=10)],
        [
            on(AVERAGED, examples=32_000, epochs=10),
            on(AVERAGED),
            on(Recipe(), examples=32, epochs=1),
        ],
    ),
}
SPACE = kbatch.Space(
    learning_rate={"adam": [0.0014, 0.0015]},
    **{"batch_size": 64, "optimizer": "adam", "policy": "float32", "jit_compile": False},
)
FOLDER_RULES = {"edge_of_rates", "edge_of_batch_sizes"}  # tested below, with a project


def compiled(optimizer):
    model = convnet()
    model.compile(optimizer, "mse")
    return model


def frozen_normalization():
    model = convnet()
    model.layers[1].trainable = False
    return model


def moved():
    """A compiled model whose weights were trained elsewhere."""
    model = compiled("adam")
    model.layers[1].moving_mean.assign([0.0, 0.1, 0.2, 0.3])
    return model


def headed():
    """Frozen layers and a new head."""
    body = [keras.layers.Dense(5) for _ in range(4)]
    for layer in body:
        layer.trainable = False
    head = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((8,)), *body, *head])


def said(case):
    recipe, model, results, arguments = case
    found = advise(recipe, None if model is None else model(), results, **arguments)
    return {advice.rule: advice for advice in found}


def cases(side):
    for rule, both in CASES.items():
        for number, case in enumerate(both[side]):
            yield pytest.param(rule, case, id=f"{rule}-{number}")


def test_every_rule_has_both_kinds_of_cases():
    assert {rule.name for rule in RULES} == CASES.keys() | FOLDER_RULES
    assert all(len(each) > 0 for both in CASES.values() for each in both)


@pytest.mark.parametrize(("rule", "case"), cases(0))
def test_a_rule_speaks_where_something_is_wrong(rule, case):
    advice = said(case)[rule]
    assert str(advice) == advice.text
    assert advice.text.endswith(".")
    assert advice.text[0].isupper()
    assert advice.reason.endswith(".")
    assert advice.source
    assert "None" not in advice.text.replace("micro_batch_size=None", "")


@pytest.mark.parametrize(("rule", "case"), cases(1))
def test_a_rule_is_silent_where_nothing_is(rule, case):
    assert rule not in said(case)


def test_the_sentences_name_the_numbers_of_the_case():
    found = said(on(Recipe(256, "sgd", 0.08), examples=1200))
    assert str(found["no_warmup"]) == (
        "Let the learning rate rise over the first 4 updates: batch 256 with sgd 0.08 has no "
        "warm-up (warmup_updates=0)."
    )
    found = said(on(Recipe(256), results=table(*SLOW_LARGE)))
    assert str(found["generalisation_gap"]).startswith(
        "Before you give up batch 256, try warm-up, weight decay (weight_decay=0.01), "
        'SAM (training="sam:0.05"), augmentation, or longer training: it held 4.0 points less '
        "than batch 32 (0.760 against 0.800)."
    )
    assert "trial 0 and trial 1" in found["generalisation_gap"].source
    growing = Recipe(64, micro_batch_size=32, batch_schedule="exponential:8")
    assert str(said(on(growing, convnet))["small_micro_batch"]) == (
        "Take a batch that begins with passes of at least 16, or "
        'normalization="group": the 1 BatchNormalization layer of the model measures 4 examples '
        "at a time when the training begins."
    )
    found = said(on(GROWING, examples=2560, epochs=2))
    assert "batch 256 makes only 72 updates" in str(found["too_few_updates"])


def test_the_updates_of_a_growing_batch_are_those_that_it_makes(points):
    (x, y), validation = points
    recipe = Recipe(96, "sgd", 0.01, batch_schedule="exponential:8")

    def dense():
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(1, "sigmoid")])
        model.compile("sgd", "binary_crossentropy", metrics=["accuracy"], jit_compile=False)
        return model

    _, outcome = kbatch.train(recipe, dense, x[:192], y[:192], validation, epochs=6)
    assert evidence_of(recipe, examples=192, epochs=6).updates == outcome.updates == 44


def test_remedies_that_were_tried_are_not_named():
    tried = [trial(2, 0.75, 256, speed=4000.0, training="sam:0.1", warmup_updates=5)]
    text = str(said(on(Recipe(32), results=table(*SLOW_LARGE, *tried)))["generalisation_gap"])
    assert "SAM" not in text
    assert "warm-up" not in text
    assert "augmentation" in text


def test_what_fine_tuning_is_told_are_its_batch_its_rate_or_both():
    cases = {
        "a batch of 16 to 32: batch 512 is for": on(Recipe(512, "adam", 1e-4), pretrained=True),
        "adam at most 5e-05: a rate of 0.001 is for": on(Recipe(32), pretrained=True),
        "a batch of 16 to 32 and sgd at most 0.0013: batch 512 with 0.16 is for": on(
            Recipe(512, "sgd", 0.16, warmup_updates=9), pretrained=True
        ),
    }
    for words, case in cases.items():
        wanted = f"Fine-tune with {words} training from scratch."
        assert str(said(case)["fine_tuning"]) == wanted
    reason = said(on(Recipe(32, "compiled", None), moved))["fine_tuning"].reason
    assert reason.startswith("Batch normalization holds statistics of an earlier training")


def test_a_published_model_may_be_pretrained():
    def published():
        body = keras.applications.MobileNetV2(
            weights=None, input_shape=(32, 32, 3), alpha=0.35, include_top=False, pooling="avg"
        )
        return keras.Sequential([body, keras.layers.Dense(1)])

    topic = "whether the model is fine-tuned"
    assert topic in unchecked(evidence_of(Recipe(), published()))
    assert topic not in unchecked(evidence_of(Recipe(), published(), pretrained=True))
    assert topic not in unchecked(evidence_of(Recipe(), convnet()))
    assert topic in unchecked(evidence_of(Recipe()))


GOOD = [
    on(Recipe()),
    on(Recipe(16, "sgd", 0.005)),
    on(Recipe(64, "adam", 0.0014)),
    on(SCALED),
    on(dataclasses.replace(SCALED, micro_batch_size=64), convnet, max_batch=100),
    on(Recipe(128, "adamw", 0.002, weight_decay=0.02, warmup_updates=50, schedule="cosine")),
    on(Recipe(32, "compiled", None), lambda: compiled("adam")),
    on(Recipe(512, "lamb", 0.012, warmup_updates=100, training="sam:0.05"), max_batch=1000),
    on(Recipe(32, "adamw", 5e-5), lambda: convnet(frozen=True), pretrained=True),
    on(Recipe(32, ema=0.99), examples=50_000, epochs=5),
    on(Recipe(64), results=table(GOOD_TRIAL, trial(1, 0.79, 128, 0.002, 1100.0))),
    on(Recipe(64, normalization="group", micro_batch_size=8), convnet, max_batch=16),
    on(Recipe(32), training_data=points(0), validation_data=points(1), examples=5000, epochs=9),
]


@pytest.mark.parametrize("case", GOOD)
def test_a_good_recipe_gets_no_advice(case):
    assert said(case) == {}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"recipe": {}}, errors.RecipeError, "`recipe` must be a Recipe. Received: dict"),
        ({"model": convnet}, errors.ModelError, "`model` must be a keras.Model"),
        ({"results": 3}, errors.RecordError, "given as its tuner or its folder"),
        ({"results": pd.DataFrame({"a": [1]})}, errors.RecordError, "whole table"),
        ({"max_batch": "big"}, errors.SearchError, "`max_batch` must be"),
        ({"epochs": 3}, errors.SearchError, "number of training examples"),
        ({"epochs": 0, "examples": 9}, errors.SearchError, "above 0"),
        ({"examples": 0}, errors.SearchError, "`examples` must be"),
        ({"devices": 0}, errors.SearchError, "`devices` must be"),
        ({"pretrained": 1}, errors.SearchError, "True or False"),
        ({"training_data": 3}, errors.DataError, "`training_data` must be"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        advise(**{"recipe": Recipe(), **arguments})


def test_a_table_from_a_file_says_the_same(tmp_path):
    table(*SLOW_LARGE).to_csv(tmp_path / "trials.csv", index=False)
    again = pd.read_csv(tmp_path / "trials.csv")
    assert said(on(Recipe(256), results=again)) == said(on(Recipe(256), results=table(*SLOW_LARGE)))


def test_trials_that_failed_count_for_nothing():
    broken = trial(1, 0.9, 16, changes={"ended": "nan"})
    assert said(on(Recipe(64), results=table(trial(0, 0.8, 64), broken))) == {}


@pytest.fixture(scope="module")
def searched(points, build, tmp_path_factory):
    """A real search of one trial and its baseline."""
    folder = tmp_path_factory.mktemp("advice")
    tuner = short_searches.tuner_of(folder, model=build, space=SPACE, max_trials=1)
    return short_searches.search(tuner, points)


def test_a_real_search_can_be_asked_in_three_ways(searched):
    folder = searched.project_dir
    split = Recipe(64, micro_batch_size=16)
    answers = [advise(split, results=each) for each in (searched, folder, load(folder))]
    assert answers[0] == answers[1] == answers[2]
    found = {each.rule: str(each) for each in answers[0]}
    assert "trial 0 trained 64 examples in one pass" in found["needless_accumulation"]
    larger = advise(Recipe(128, "adam", 0.003, micro_batch_size=64), results=folder)
    assert "needless_accumulation" not in {each.rule for each in larger}


def test_a_search_keeps_that_it_validates_on_its_training_data(points, tmp_path):
    (x, y), _ = points
    tuner = short_searches.tuner_of(tmp_path, max_trials=1)
    short_searches.search(tuner, ((x, y), (x[:200], y[:200])))
    found = {each.rule: each for each in advise(Recipe(), results=tuner)}
    assert "all validation examples (200 looked at)" in found["evaluated_on_training_data"].text


def test_a_search_on_other_data_is_not_accused(finished):
    rules = {each.rule for each in advise(Recipe(), results=finished)}
    assert "evaluated_on_training_data" not in rules


@pytest.mark.parametrize(("fast", "speaks"), [(("float32",), True), (MIXED_TOO, False)])
def test_without_results_this_machine_is_asked(fast, speaks, monkeypatch):
    monkeypatch.setattr(device, "fast_policies", lambda: fast)
    assert ("slow_mixed_policy" in said(on(MIXED))) == speaks


def test_a_project_of_before_learns_of_the_overlap(finished, points, tmp_path):
    """The fact is no condition of a search that goes on."""
    folder = shutil.copytree(finished, tmp_path / "old")
    facts = project.load_facts(folder / "p" / "kbatch")
    assert facts["checks"]["validation"]["shared"] == 0
    del facts["checks"]["validation"]
    project.save_facts(folder / "p" / "kbatch", facts)
    tuner = short_searches.search_again(folder, max_trials=3)
    short_searches.search(tuner, points)
    assert len(load(tuner)) == 4
    assert project.load_facts(folder / "p" / "kbatch")["checks"]["validation"]["looked_at"] == 200


RATES = {"learning_rate": {"adam": [1e-5, 1e-2]}, "batch_size": [16, 32, 64]}


def at_rates(*rates, held=(0.9, 0.7, 0.7)):
    """Trials of batch 32 at these rates, of which the first is the best."""
    return [trial(i, held[i], 32, rate, learning_rate=rate) for i, rate in enumerate(rates)]


def at_sizes(*sizes, held=(0.9, 0.7, 0.7)):
    """Trials of these batch sizes, of which the first is the best."""
    rate = 5e-4
    return [trial(i, held[i], size, rate, learning_rate=rate) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("records", "rules"),
    [
        (at_rates(9e-3, 1e-3, 1e-4), {"edge_of_rates"}),
        (at_rates(1.1e-5, 1e-3, 1e-4), {"edge_of_rates"}),
        (at_rates(3e-3, 1e-3, 1e-4), set()),
        (at_rates(9e-3, 1e-3, 1e-4, held=(0.9, 0.895, 0.7)), set()),
        (at_sizes(16, 32, 64), {"edge_of_batch_sizes"}),
        (at_sizes(64, 32, 16), {"edge_of_batch_sizes"}),
        (at_sizes(32, 16, 64), set()),
        (at_sizes(16, 32, 64, held=(0.9, 0.895, 0.7)), set()),
    ],
)
def test_the_edge_of_a_search_is_told_if_it_is_clearly_best(records, rules, tmp_path):
    folder = keep(tmp_path, records, examples=EXAMPLES)
    facts = project.load_facts(folder / "search" / "kbatch")
    project.save_facts(folder / "search" / "kbatch", {**facts, "space": RATES})
    found = advise(kbatch.best_recipe(folder), results=folder)
    assert {each.rule for each in found} == rules
    if rules:
        assert "trial 0" in found[0].source


def test_a_limit_of_the_search_is_that_of_its_advice(tmp_path):
    folder = keep(tmp_path, [trial(0, 0.8, 32)], examples=EXAMPLES)
    place = folder / "search" / "kbatch"
    facts = project.load_facts(place)
    for limit in (96, limits(96, Recipe(96)).to_dict()):
        name = "table" if isinstance(limit, dict) else "max_batch"
        project.save_facts(place, {**facts, name: limit})
        assert [each.rule for each in advise(Recipe(96), results=folder)] == ["largest_not_best"]


def test_seeds_of_one_recipe_count_by_their_mean(tmp_path):
    """The luckiest of a confirmation's seeds is not the recipe."""
    large = [
        dataclasses.replace(trial(1, held, 256), purpose="confirmation", seed=seed, key=str(seed))
        for seed, held in enumerate((0.90, 0.70, 0.68))
    ]
    folder = keep(tmp_path, [trial(0, 0.85, 32), *large], examples=EXAMPLES)
    found = said(on(Recipe(256), results=folder))["largest_not_best"]
    assert "held 0.850 against 0.760" in found.text
