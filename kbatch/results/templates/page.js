"use strict";
(() => {
  // Charts, in the colours of the page
  const inks = {
    light: { text: "#1a1d21", soft: "#5a626b", line: "#d9dde2" },
    dark: { text: "#e6e9ec", soft: "#a4adb6", line: "#343b42" },
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function config(ink) {
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: null },
      text: { color: ink.text },
      rule: { color: ink.soft },
      axis: {
        labelColor: ink.soft, titleColor: ink.text, titleFontWeight: 500, gridColor: ink.line,
        domainColor: ink.soft, tickColor: ink.soft, labelFontSize: 11, titleFontSize: 12,
      },
      legend: {
        labelColor: ink.text, titleColor: ink.text, labelFontSize: 11, titleFontSize: 11,
        symbolBaseFillColor: ink.soft, symbolBaseStrokeColor: ink.soft,
        layout: { bottom: { anchor: "start", direction: "vertical", offset: 8 } },
      },
      title: { color: ink.text },
    };
  }

  async function draw() {
    const theme = dark.matches ? "dark" : "light";
    for (const place of document.querySelectorAll(".chart")) {
      const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
      const options = {
        actions: false, renderer: "svg", config: config(inks[theme]), tooltip: { theme },
      };
      await window.vegaEmbed(place, spec, options);
    }
    document.body.dataset.drawn = theme;
  }

  // The table, sorted by the heading that is pressed; what has no value comes last
  const head = [...document.querySelectorAll("#table thead th")];
  const body = document.querySelector("#table tbody");

  function compare(first, second, isText, sign) {
    if (first === "" || second === "") return (first === "") - (second === "");
    return sign * (isText ? first.localeCompare(second) : Number(first) - Number(second));
  }

  function sort(position, direction) {
    const isText = head[position].classList.contains("text");
    const sign = direction === "ascending" ? 1 : -1;
    const key = (row) => row.cells[position].dataset.key;
    const rows = [...body.rows];
    rows.sort((first, second) => compare(key(first), key(second), isText, sign));
    body.append(...rows);
    head.forEach((cell) => cell.setAttribute("aria-sort", "none"));
    head[position].setAttribute("aria-sort", direction);
  }

  head.forEach((cell, position) => {
    cell.querySelector("button").addEventListener("click", () => {
      const first = cell.classList.contains("text") || position === 0 ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      const direction = cell.getAttribute("aria-sort") === first ? other : first;
      sort(position, direction);
      keep(JSON.stringify([position, direction]));
    });
  });

  // A page that reloads keeps its order; a browser may refuse to store anything
  const name = "kbatch-order " + window.location.pathname;
  function keep(order) {
    try { window.sessionStorage.setItem(name, order); } catch (error) { return; }
  }
  function kept() {
    try { return JSON.parse(window.sessionStorage.getItem(name)); } catch (error) { return null; }
  }
  const order = kept();
  if (order && head[order[0]]) sort(...order);

  const seconds = Number(document.body.dataset.reload);
  if (seconds) {
    window.setInterval(() => {
      if (document.visibilityState === "visible") window.location.reload();
    }, 1000 * seconds);
  }

  dark.addEventListener("change", draw);
  draw();
})();
