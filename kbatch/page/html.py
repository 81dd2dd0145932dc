"""The contents of the page as one text of HTML, with its style, its charts and their library."""

from __future__ import annotations

import functools
import importlib.metadata
from importlib import resources
from typing import Any

import jinja2

from kbatch.memory import _cache
from kbatch.page.contents import Contents
from kbatch.results.charts import canvas

TEMPLATE, STYLE, SCRIPT = "page.html.jinja", "page.css", "page.js"


def html_of(contents: Contents, library: str, state: str = "", reload_seconds: int = 0) -> str:
    """Return the page of a search.

    Args:
        contents: What it shows.
        library: Vega, Vega-Lite and Vega-Embed as one text of JavaScript.
        state: String, a sentence on the state of the search; empty once it has ended.
        reload_seconds: Integer, seconds after which the page loads itself again; 0 for never.
    """
    return rendered(_text(TEMPLATE), contents, library, state, reload_seconds)


def rendered(
    template: str, page: Any, library: str, state: str = "", reload_seconds: int = 0
) -> str:
    """Return a page in one file: its texts escaped, its style, its charts and their library.

    Args:
        template: String, a Jinja template that extends `base.html.jinja`.
        page: What the template shows.
        library: See `html_of`.
        state: See `html_of`.
        reload_seconds: See `html_of`.
    """
    return (
        _environment()
        .from_string(template)
        .render(
            page=page,
            library=library,
            style=_text(STYLE),
            script=_text(SCRIPT),
            state=state,
            reload_seconds=reload_seconds,
        )
    )


@functools.cache
def vega() -> str:
    """Return the library of the charts, which takes seconds to bundle and is kept in the cache."""
    bundler = importlib.metadata.version("vl-convert-python")
    name = f"vega-{canvas.version()}-{bundler}"
    known = _cache.load(name)
    if isinstance(known, str) and "vegaEmbed" in known:
        return known
    made = canvas.script()
    _cache.save(name, made)
    return made


@functools.cache
def _environment() -> jinja2.Environment:
    # Names of hyperparameters, folders and data are the user's: all texts are escaped.
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _text(name: str) -> str:
    return resources.files("kbatch.page").joinpath(name).read_text(encoding="utf-8")
