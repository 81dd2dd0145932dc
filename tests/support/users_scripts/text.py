import random

import keras
import tensorflow as tf
from keras import layers

random.seed(0)
good, bad = ["great", "lovely", "fine", "superb", "happy"], ["awful", "poor", "sad", "bad", "dull"]
common = ["the", "a", "film", "plot", "actor", "was", "is", "it", "of", "and"]


def review(label):
    words = random.choices(good if label else bad, k=3) + random.choices(
        common, k=random.randint(3, 12)
    )
    random.shuffle(words)
    return " ".join(words)


labels = [random.randint(0, 1) for _ in range(800)]
texts = [review(label) for label in labels]
raw = tf.data.Dataset.from_tensor_slices((texts, labels))
raw_train, raw_val = raw.skip(160).batch(32), raw.take(160).batch(32)

vectorize = layers.TextVectorization(max_tokens=200, output_mode="int", output_sequence_length=16)
vectorize.adapt(raw_train.map(lambda text, label: text))

train = raw_train.map(lambda text, label: (vectorize(text), label)).cache().prefetch(2)
val = raw_val.map(lambda text, label: (vectorize(text), label)).cache().prefetch(2)

model = keras.Sequential(
    [
        layers.Embedding(200, 16, mask_zero=True),
        layers.Bidirectional(layers.LSTM(8)),
        layers.Dense(1),
    ]
)
model.compile(
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-3, 100, 0.9)),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)
history = model.fit(train, validation_data=val, epochs=3, verbose=2)
print(model.evaluate(val, verbose=0))
export = keras.Sequential([keras.Input((1,), dtype="string"), vectorize, model])
print(export.predict(tf.constant([["lovely film"]]), verbose=0))
model.save("text.keras")
