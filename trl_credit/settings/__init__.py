"""Reads command lines, YAML files and recipes into the arguments of a run. May import the subpackages up to `hub`;
`lab` and `cli` pass in their own flags and evaluation protocols."""
