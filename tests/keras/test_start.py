"""Each training starts where the search started, and fresh seeds are fresh or claim nothing."""

import itertools
import pickle

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import kbatch
from kbatch.checks.check import Subject
from kbatch.checks.state import SEEDS
from kbatch.data.validation import prepare
from kbatch.errors import ModelError
from kbatch.models.maker import ModelMaker

layers = keras.layers
rng = np.random.default_rng(0)
X = rng.normal(size=(96, 6)).astype("float32")
Y = (X[:, 0] * X[:, 1] > 0).astype("int32")
DATA = (X[:64], Y[:64], (X[64:], Y[64:]))


def head(*parts):
    model = keras.Sequential([keras.Input((6,)), *parts, layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def uncalled(*parts):
    model = keras.Sequential([*parts, layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def base():
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization()]
    )


def builds():
    """Return functions that share nothing, a base, a layer or all between their models."""
    first_called = layers.Dense(
        8, "relu", name="shared"
    )  # its variables are made by the first call of a model
    outside, layer, one = base(), layers.Dense(8, "relu"), head(base(), layers.Dropout(0.2))
    loaded, values = base(), base().get_weights()

    def loads(hp=None):
        loaded.set_weights(values)
        return head(loaded)

    return {
        "new": lambda hp=None: head(base()),
        "base outside": lambda hp=None: head(outside),
        "layer outside": lambda hp=None: head(layer),
        "layer outside, without Input": lambda hp=None: uncalled(first_called),
        "base that build loads": loads,
        "one model": lambda hp=None: one,
    }


class Starts(keras.callbacks.Callback):
    """Keeps the weights that trainings begin with, and the optimizer."""

    seen: list = []

    def on_train_begin(self, logs=None):
        weights = [np.array(each) for each in self.model.get_weights()]
        Starts.seen.append((weights, type(self.model.optimizer).__name__))


@pytest.fixture
def starts():
    Starts.seen.clear()
    return Starts.seen


def search(build, directory, optimizer=("adam", "sgd", "compiled")):
    space = kbatch.Space(batch_size=(16, 32), optimizer=optimizer)
    hypermodel = kbatch.HyperModel(build, space, seconds_per_trial=0.2)
    tuner = keras_tuner.RandomSearch(
        hypermodel, kbatch.objective(), 2, seed=3, directory=directory, project_name="p"
    )
    x, y, validation = DATA
    tuner.search(x, y, validation_data=validation, callbacks=[Starts()], verbose=0)
    return tuner


@pytest.mark.parametrize("kind", builds())
def test_every_training_of_a_search_starts_alike(kind, tmp_path, starts):
    tuner = search(builds()[kind], tmp_path)
    assert len(starts) == 3
    for weights, _ in starts[1:]:
        for first, other in zip(starts[0][0], weights, strict=True):
            np.testing.assert_array_equal(first, other)
    trained = kbatch.results.load(tuner)
    named = {"sgd": "SGD", "adam": "Adam", "compiled": "Adam"}
    assert [name for _, name in starts] == [named[each] for each in trained["optimizer"]]
    said = any("made outside of `build`" in each for each in kbatch.report(tuner).sentences)
    assert said == (kind != "new")


@pytest.mark.parametrize("kind", ["base outside", "one model"])
def test_calls_of_train_start_alike_until_changed_by_hand(kind, starts):
    build = builds()[kind]
    shared = build().layers[0]
    first = [np.array(each) for each in shared.get_weights()]
    for _ in range(2):
        kbatch.train(kbatch.Recipe(16), build, *DATA, updates=3, callbacks=[Starts()])
    for weights, _ in starts:
        for one, other in zip(first, weights, strict=False):
            np.testing.assert_array_equal(one, other)
    assert not np.array_equal(shared.get_weights()[0], first[0])  # the model is the trained one
    mine = [each + 1 for each in first]
    shared.set_weights(mine)
    kbatch.train(kbatch.Recipe(16), build, *DATA, updates=3, callbacks=[Starts()])
    for one, other in zip(mine, starts[-1][0], strict=False):
        np.testing.assert_array_equal(one, other)


def test_a_search_leaves_shared_weights_as_they_were(tmp_path, starts):
    outside = base()
    before = [np.array(each) for each in outside.get_weights()]
    search(lambda hp: head(outside), tmp_path)
    for one, other in zip(before, outside.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_bases_that_a_hyperparameter_chooses_start_alike():
    bases = {"first": base(), "second": base()}
    before = {name: each.get_weights() for name, each in bases.items()}
    maker = ModelMaker(lambda hp: head(bases[hp.Choice("base", list(bases))]))
    maker.start.begin(maker.raw("float32"), maker.raw("float32"))
    for name in ("second", "first", "second"):
        model = maker.make(kbatch.Recipe(16), maker.hyperparameters({"base": name}))
        for now, first in zip(bases[name].get_weights(), before[name], strict=True):
            np.testing.assert_array_equal(now, first)
        model.fit(X, Y, verbose=0)
    maker.start.put_back()
    for name, each in bases.items():
        for now, first in zip(each.get_weights(), before[name], strict=True):
            np.testing.assert_array_equal(now, first)


def test_a_base_that_build_keeps_is_refused_once_trained():
    bases = {}

    def build(hp):
        kind = hp.Choice("base", ["first", "second"])
        if kind not in bases:
            bases[kind] = base()
        return head(bases[kind])

    maker = ModelMaker(build)
    maker.start.begin(maker.raw("float32"), maker.raw("float32"))
    first, second = (maker.hyperparameters({"base": kind}) for kind in ("first", "second"))
    for _ in range(2):  # known from the beginning
        maker.make(kbatch.Recipe(16), first).fit(X, Y, verbose=0)
    maker.make(kbatch.Recipe(16), second)
    model = maker.make(kbatch.Recipe(16), second)  # not trained in between
    began = [np.array(each) for each in bases["second"].get_weights()]
    model.fit(X, Y, verbose=0)
    maker.make(kbatch.Recipe(16), second)
    for now, then in zip(bases["second"].get_weights(), began, strict=True):
        np.testing.assert_array_equal(now, then)
    del bases["second"]
    model = maker.make(kbatch.Recipe(16), second)
    model.fit(X, Y, verbose=0)
    with pytest.raises(ModelError, match="made by an earlier call and trained since"):
        maker.make(kbatch.Recipe(16), second)


def test_a_loss_may_hold_a_variable_of_tensorflow():
    counter = tf.Variable(1.0)

    def build(hp=None):
        model = uncalled(base())
        model.compile("sgd", lambda y, p: counter * keras.ops.mean((y - p) ** 2))
        return model

    given = {"metric": "val_loss", "direction": "min", "chance": 9.0, "updates": 2}
    kbatch.train(kbatch.Recipe(16), build, *DATA, **given)


def test_a_worker_finds_layers_that_only_a_call_builds():
    here, there = (layers.Dense(8, "relu", name="shared") for _ in range(2))
    maker = ModelMaker(lambda hp=None: uncalled(here))
    subject = Subject(maker, prepare(X, Y, validation_data=DATA[2]))
    maker.start.begin(subject.model, subject.other, subject.inputs)
    copied = pickle.loads(pickle.dumps(maker.start))
    worker = ModelMaker(lambda hp=None: uncalled(there), start=copied)
    for _ in range(2):
        model = worker.make(kbatch.Recipe(16))
        for now, first in zip(there.get_weights(), here.get_weights(), strict=True):
            np.testing.assert_array_equal(now, first)
        model.fit(X, Y, verbose=0)


def shared_optimizers():
    """Return functions whose models are compiled with one optimizer, made outside of them."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    made = {
        "adam": keras.optimizers.Adam(0.01, weight_decay=1e-3),
        "schedule": keras.optimizers.SGD(schedule, momentum=0.9),
        "function": keras.optimizers.SGD(lambda: 0.05),
        "loss scale": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    }
    made["adam"].exclude_from_weight_decay(var_names=["bias"])
    one = keras.Sequential([keras.Input((6,)), layers.Dense(1, "sigmoid")])
    one.compile(made["adam"], "binary_crossentropy", metrics=["accuracy"])

    def build(optimizer):
        def head_of_it(hp=None):
            model = head(base())
            model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
            return model

        return head_of_it

    builds = {name: (build(each), each) for name, each in made.items()}
    return {**builds, "one model": (lambda hp=None: one, made["adam"])}


@pytest.mark.parametrize("kind", shared_optimizers())
def test_an_optimizer_outside_is_new_for_each_training(kind):
    build, optimizer = shared_optimizers()[kind]
    recipe = kbatch.Recipe(16, optimizer="compiled", learning_rate=None)
    before = [np.array(each) for each in optimizer.variables]
    ends = [kbatch.train(recipe, build, *DATA, updates=4)[0] for _ in range(2)]
    ends = [[np.array(each) for each in end.get_weights()] for end in ends]
    if kind != "one model":  # whose weights both ends share
        for one, other in zip(*ends, strict=True):
            np.testing.assert_array_equal(one, other)
    for variable, value in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


class Forgetful(keras.optimizers.SGD):
    """An optimizer whose config lacks an argument."""

    def __init__(self, rate):
        super().__init__(rate)


def test_an_optimizer_outside_that_cannot_be_copied_is_refused():
    optimizer = Forgetful(0.1)

    def build(hp=None):
        model = head(base())
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
        return model

    with pytest.raises(ModelError, match="Received: Forgetful.*inside of `build`"):
        kbatch.train(kbatch.Recipe(16), build, *DATA, updates=1)


def seeded(hp=None):
    keras.utils.set_random_seed(42)
    return head(base())


def seeded_initializers(hp=None):
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1)),
            layers.Dense(1, "sigmoid", kernel_initializer=keras.initializers.GlorotUniform(seed=2)),
        ]
    )


def pretrained_base(hp=None):
    part = base()
    part.set_weights([np.full(each.shape, 0.1) for each in part.get_weights()])
    return head(part)


def counted_names(hp=None):
    keras.utils.set_random_seed(42)
    number = next(NUMBERS)
    return head(layers.Dense(8, "relu", name=f"hidden_{number}"))


def seeded_and_uncalled(hp=None):
    keras.utils.set_random_seed(42)
    return uncalled(layers.Dense(8, "relu"))


NUMBERS = itertools.count()
BUILDS = {
    "plain": (lambda: head(base()), True),
    "pretrained base": (pretrained_base, True),
    "a seed in build": (seeded, False),
    "initializers with a seed": (seeded_initializers, False),
    "names that are counted": (counted_names, False),
    "a seed and no Input": (seeded_and_uncalled, False),
    "no Input": (lambda: uncalled(layers.Dense(8, "relu")), True),
}


def test_variables_of_a_loss_start_alike():
    class Annealed(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.steps = keras.Variable(0.0, trainable=False)

        def call(self, y_true, y_pred):
            self.steps.assign_add(1.0)
            return keras.losses.binary_crossentropy(y_true, y_pred)

    class Seen(keras.callbacks.Callback):
        steps: list = []

        def on_train_begin(self, logs=None):
            Seen.steps.append(float(loss.steps.numpy()))

    loss = Annealed()

    def build(hp=None):
        model = head()
        model.compile("adam", loss, metrics=["accuracy"])
        return model

    x, y, (x_val, y_val) = DATA
    data = (x, y[:, None], (x_val, y_val[:, None]))
    for _ in range(2):
        kbatch.train(kbatch.Recipe(16), build, *data, updates=3, callbacks=[Seen()])
    assert Seen.steps[0] == Seen.steps[1]


@pytest.mark.parametrize("name", BUILDS)
def test_seeds_are_fresh_if_a_trained_weight_differs(name):
    build, fresh = BUILDS[name]
    maker = ModelMaker.of(kbatch.ModelSpec(build))
    finding = SEEDS.look(Subject(maker, prepare(X, Y, validation_data=DATA[2]), seeds=True))
    assert (finding.holds, finding.claimable, finding.sentence == "") == (fresh, fresh, fresh)


def test_seeds_that_begin_alike_claim_nothing(tmp_path):
    tuner = search(seeded, tmp_path)
    x, y, validation = DATA
    kbatch.confirm(tuner, x, y, validation, top=1, seeds=3, callbacks=[Starts()], verbose=0)
    report = kbatch.report(tuner)
    assert any("every seed begins with the same weights" in each for each in report.sentences)
    assert report.claim.verdict == "unsound"
    assert any("So nothing may be claimed" in each for each in report.sentences)
