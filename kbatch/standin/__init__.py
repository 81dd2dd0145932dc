"""A stand-in for `keras.Model.fit`: a training as its user wrote it is taken, and tuned."""
