"""When floats that a model computes in fp32 are the same: one rule for all tests and documents.

Equal within 1e-5 x (1 + |value|), since kernels round differently on different machines.
"""

import numpy as np

WITHIN = {"rtol": 1e-5, "atol": 1e-5}


def assert_same(result, expected, message=""):
    """Check arrays, tensors or numbers, element by element."""
    np.testing.assert_allclose(result, expected, **WITHIN, err_msg=message)
