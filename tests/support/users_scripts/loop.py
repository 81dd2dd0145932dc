import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01)
x = tf.constant(np.ones((8, 3), "float32"))
for step in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - 1) ** 2)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    )
