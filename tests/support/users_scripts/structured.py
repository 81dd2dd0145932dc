import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(0)
frame = pd.DataFrame(
    {
        "age": rng.integers(20, 70, 900),
        "chol": rng.normal(200, 30, 900),
        "thal": rng.choice(["normal", "fixed", "reversible"], 900),
    }
)
frame["target"] = ((frame["age"] > 45) ^ (frame["thal"] == "fixed")).astype(int)


def to_dataset(frame, shuffle=True, batch_size=32):
    frame = frame.copy()
    labels = frame.pop("target")
    dataset = tf.data.Dataset.from_tensor_slices((dict(frame), labels))
    if shuffle:
        dataset = dataset.shuffle(len(frame))
    return dataset.batch(batch_size)


train = to_dataset(frame[:700])
val = to_dataset(frame[700:], shuffle=False)

inputs, encoded = {}, []
for name in ("age", "chol"):
    inputs[name] = keras.Input((1,), name=name)
    norm = layers.Normalization(axis=None)
    norm.adapt(frame[name].to_numpy().astype("float32"))
    encoded.append(norm(inputs[name]))
inputs["thal"] = keras.Input((1,), name="thal", dtype="string")
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(frame["thal"].to_numpy())
encoded.append(lookup(inputs["thal"]))
x = layers.concatenate(encoded)
x = layers.Dense(32, activation="relu")(x)
x = layers.Dropout(0.3)(x)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(train, epochs=4, validation_data=val, verbose=2)
print(model.evaluate(val, verbose=0, return_dict=True))
model.save("structured.keras")
