"""The same credit as plug-ins of other trainers: a leaf that nothing imports. Imports `config`, `presets`, `credit` and
`loss`; only the module of an engine imports that engine."""
