"""From stories to pairs: filters, splits, pairing, symmetry, and a simulation of readers."""
