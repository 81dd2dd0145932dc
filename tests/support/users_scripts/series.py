import keras
import numpy as np
from keras import layers

series = np.sin(np.arange(3000) / 20) + 0.1 * np.random.default_rng(0).normal(size=3000)


class Windows(keras.utils.PyDataset):
    def __init__(self, data, batch_size=64, length=24, **kwargs):
        super().__init__(**kwargs)
        self.data, self.batch_size, self.length = data.astype("float32"), batch_size, length

    def __len__(self):
        return (len(self.data) - self.length - 1) // self.batch_size

    def __getitem__(self, index):
        starts = range(index * self.batch_size, (index + 1) * self.batch_size)
        x = np.stack([self.data[start : start + self.length] for start in starts])[..., None]
        y = np.array([self.data[start + self.length] for start in starts])
        return x, y


model = keras.Sequential([layers.Input((24, 1)), layers.LSTM(8), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse", metrics=["mae"])
history = model.fit(
    Windows(series[:2400]),
    epochs=3,
    validation_data=Windows(series[2400:]),
    callbacks=[
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
        keras.callbacks.ModelCheckpoint("series.weights.h5", save_weights_only=True),
    ],
    verbose=2,
)
print(min(history.history["val_loss"]))
