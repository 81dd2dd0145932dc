import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(0)
title = rng.integers(1, 50, (800, 10))
tags = rng.integers(0, 2, (800, 6)).astype("float32")
priority = (tags[:, 0] * 0.6 + (title[:, 0] > 25) * 0.4).astype("float32")
department = (title[:, 0] % 3).astype("int32")

title_input = keras.Input((10,), name="title")
tags_input = keras.Input((6,), name="tags")
x = layers.GlobalAveragePooling1D()(layers.Embedding(50, 16)(title_input))
x = layers.Dense(16, activation="relu")(layers.concatenate([x, tags_input]))
model = keras.Model(
    [title_input, tags_input],
    {
        "priority": layers.Dense(1, name="priority")(x),
        "department": layers.Dense(3, name="department", activation="softmax")(x),
    },
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={"priority": "mse", "department": "sparse_categorical_crossentropy"},
    metrics={"department": ["accuracy"], "priority": ["mae"]},
    loss_weights={"priority": 1.0, "department": 0.2},
)
model.fit(
    {"title": title, "tags": tags},
    {"priority": priority, "department": department},
    validation_split=0.2,
    epochs=3,
    batch_size=32,
    verbose=2,
)
model.save("several.keras")
