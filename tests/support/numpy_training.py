"""Softmax regression trained in NumPy: what SAM and the proximal method must do, step by step."""

import numpy as np

EPSILON = 1e-7  # of Keras' Adam


def gradient(weights, x, y):
    """The gradient of the mean cross-entropy of a linear layer, as (kernel, bias)."""
    kernel, bias = weights
    scores = x @ kernel + bias
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return [x.T @ shares / len(y), shares.mean(0)]


def loss(weights, x, y):
    """The mean cross-entropy."""
    scores = x @ weights[0] + weights[1]
    scores -= scores.max(1, keepdims=True)
    return np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y])


class Sgd:
    """SGD with momentum, as Keras writes it."""

    def __init__(self, rate, momentum=0.9):
        self.rate, self.momentum, self.velocities = rate, momentum, [0.0, 0.0]

    def apply(self, weights, gradients):
        self.velocities = [
            self.momentum * velocity - self.rate * each
            for velocity, each in zip(self.velocities, gradients, strict=True)
        ]
        return [weight + each for weight, each in zip(weights, self.velocities, strict=True)]


class Adam:
    """Adam (Kingma & Ba 2015), with epsilon where Keras has it."""

    def __init__(self, rate, first=0.9, second=0.999):
        self.rate, self.first, self.second, self.steps = rate, first, second, 0
        self.means, self.squares = [0.0, 0.0], [0.0, 0.0]

    def apply(self, weights, gradients):
        self.steps += 1
        first, second = self.first, self.second
        rate = self.rate * np.sqrt(1 - second**self.steps) / (1 - first**self.steps)
        pairs = list(zip(self.means, self.squares, gradients, strict=True))
        self.means = [first * mean + (1 - first) * each for mean, _, each in pairs]
        self.squares = [second * square + (1 - second) * each**2 for _, square, each in pairs]
        return [
            weight - rate * mean / (np.sqrt(square) + EPSILON)
            for weight, mean, square in zip(weights, self.means, self.squares, strict=True)
        ]


def sam(weights, batches, optimizer, radius):
    """One update of sharpness-aware minimisation for each batch."""
    for x, y in batches:
        ascent = gradient(weights, x, y)
        norm = np.sqrt(sum((each**2).sum() for each in ascent))
        worst = [
            weight + radius * each / norm for weight, each in zip(weights, ascent, strict=True)
        ]
        weights = optimizer.apply(weights, gradient(worst, x, y))
    return weights


def proximal(weights, batches, optimizer, penalty, steps):
    """Several steps on each batch, with a penalty on the distance from where it began."""
    for x, y in batches:
        start = weights
        for _ in range(steps):
            pulled = [
                each + penalty * (weight - first)
                for each, weight, first in zip(gradient(weights, x, y), weights, start, strict=True)
            ]
            weights = optimizer.apply(weights, pulled)
    return weights
