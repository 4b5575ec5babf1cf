"""Finds the packages of a wheel; everything else is in pyproject.toml."""

import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup

PROJECT = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
# Folders outside `litbench` that a wheel has inside it. For setuptools, every folder in a package,
# of YAML or HTML too, is a package.
FOLDERS = {"litbench": "litbench"} | PROJECT["tool"]["setuptools"]["package-dir"]

setup(
    packages=[
        ".".join(filter(None, (package, inner)))
        for package, folder in FOLDERS.items()
        for inner in ("", *find_namespace_packages(folder, exclude=["*__pycache__"]))
    ]
)
