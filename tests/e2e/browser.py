"""A headless Chromium on one page of the metrics port, driven through Debian's chromedriver."""

import shutil

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}

# {id or name of each number on the page: [machine's form, text]}, at one moment.
NUMBERS = """
const numbers = {};
for (const data of document.querySelectorAll("data")) {
  const name = data.id || data.dataset.name;
  if (name) numbers[name] = [data.value, data.textContent];
}
return numbers;
"""

# {method: the values of its cells}.
METHODS = """
const methods = {};
for (const row of document.querySelectorAll("#methods tr:not(.codes)")) {
  methods[row.dataset.method] = [...row.querySelectorAll("data")].map((data) => Number(data.value));
}
return methods;
"""

# Elements with text of their own whose contrast (WCAG 2) with what is behind them is below 4.5.
PALE = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map((c) => c / 255).map(
    (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = parts(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const pale = [];
let seen = 0;
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || element.getClientRects().length === 0) continue;
  ++seen;
  const both = [luminance(parts(getComputedStyle(element).color)), luminance(ground(element))];
  const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  if (ratio < 4.5) pale.push(`${element.tagName}#${element.id} ${element.textContent}: ${ratio}`);
}
return [seen, pale];
"""

# What reaches beyond the right edge of the window, and how wide all of it is.
WIDE = """
const limit = document.documentElement.clientWidth;
const wide = [...document.body.querySelectorAll("*")].filter(
  (element) => element.getBoundingClientRect().right > limit + 0.5);
return [limit, document.documentElement.scrollWidth, wide.map((e) => e.outerHTML.slice(0, 80))];
"""


class Browser:
    """Use as a context manager."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        # Its sandbox does not work for root, nor in most containers; it sees our own pages alone.
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--no-first-run", "--disable-background-networking"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")),
                                       options=options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def open(self, url, size=None, scheme="light"):
        self.show(size or DESK, scheme)
        self.driver.get(url)

    def show(self, size, scheme):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, element):
        return self.run("return document.getElementById(arguments[0]).textContent", element)

    def numbers(self):
        """{name: (number or None, text)}"""
        return self._parsed(self.run(NUMBERS))

    def live(self):
        """The two answers of api/status that live numbers are made of, and numbers()."""
        first, last, numbers = self.run(
            f"return [answers[0], answers[answers.length - 1], (() => {{ {NUMBERS} }})()]")
        return first, last, self._parsed(numbers)

    @staticmethod
    def _parsed(numbers):
        return {name: (float(value) if value else None, text)
                for name, (value, text) in numbers.items()}

    def value(self, name):
        return self.numbers()[name][0]

    def complaints(self):
        """What the console has from a warning up, since the last time."""
        return [entry for entry in self.driver.get_log("browser")
                if entry["level"] in ("WARNING", "SEVERE")]
