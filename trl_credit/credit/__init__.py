"""The mathematics of credit assignment on plain tensors: needs torch alone, knows no trainer and no configuration."""
