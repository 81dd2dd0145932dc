import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


encoder_inputs = keras.Input((64,))
x = layers.Dense(32, activation="relu")(encoder_inputs)
z_mean = layers.Dense(2, name="z_mean")(x)
z_log_var = layers.Dense(2, name="z_log_var")(x)
z = Sampling()([z_mean, z_log_var])
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, z], name="encoder")
latent_inputs = keras.Input((2,))
x = layers.Dense(32, activation="relu")(latent_inputs)
decoder = keras.Model(latent_inputs, layers.Dense(64, activation="sigmoid")(x), name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.kl_loss_tracker]

    def losses_of(self, data):
        mean, log_var, z = self.encoder(data)
        reconstruction = self.decoder(z)
        loss = ops.mean(
            ops.sum(
                keras.losses.binary_crossentropy(data[..., None], reconstruction[..., None]),
                axis=-1,
            )
        )
        kl = ops.mean(ops.sum(-0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var)), axis=1))
        return loss + kl, kl

    def train_step(self, data):
        with tf.GradientTape() as tape:
            total, kl = self.losses_of(data)
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total_loss_tracker.update_state(total)
        self.kl_loss_tracker.update_state(kl)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}

    def test_step(self, data):
        total, kl = self.losses_of(data)
        self.total_loss_tracker.update_state(total)
        self.kl_loss_tracker.update_state(kl)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}


rng = np.random.default_rng(0)
codes = rng.normal(size=(1200, 2))
digits = (1 / (1 + np.exp(-4 * codes @ rng.normal(size=(2, 64))))).astype("float32")
vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam())
history = vae.fit(
    digits[:1000], validation_data=(digits[1000:],), epochs=4, batch_size=64, verbose=2
)
print(history.history["loss"])
vae.decoder.save("decoder.keras")
