"""Command lines, YAML files and recipes, read into the arguments of a run. Imports rooms up to `hub`; `lab` and `cli`
hand in what they add."""
