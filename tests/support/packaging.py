"""What setup.cfg says."""

from __future__ import annotations

import configparser
from pathlib import Path

SETUP = configparser.ConfigParser()
SETUP.read(Path(__file__).resolve().parents[2] / "setup.cfg")


def lines(section: str, key: str) -> list[str]:
    return [line for line in SETUP[section][key].splitlines() if line and not line.startswith("#")]


def extras() -> dict[str, list[str]]:
    return {extra: lines("options.extras_require", extra) for extra in SETUP["options.extras_require"]}
