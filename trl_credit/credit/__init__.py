"""The mathematics of credit assignment: pure functions on tensors, without configuration. Imports torch alone."""
