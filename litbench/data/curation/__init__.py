"""From stories to pairs: filters, splits, pairing and symmetry."""
