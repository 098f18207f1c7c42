"""How far apart two computations of the same number may be, on any processor."""

import torch
from torch.overrides import TorchFunctionMode

# Bound on the difference of two float32 computations of a number of size 1 or less, or its share of a larger one. A
# processor adds up in an order of its own, and in another order for another number of rows. The errors of n additions
# are of either sign and make about sqrt(n) * 2**-24: 4e-6 for the largest layer, of 3,872 inputs.
ROUNDING = 1e-5


def in_float64(value):
    """The type float64 for the type float32; any other value as it is."""
    return torch.float64 if value is torch.float32 else value


class InFloat64(TorchFunctionMode):
    """Within it, code that converts to float32 converts to float64.

    Two orders of a sum differ by the rounding of each addition, and the order is the processor's choice. In float64 the
    difference is below 1e-12, and too small to move a number over a threshold, such as that of a rectified unit."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = [in_float64(arg) for arg in args]
        kwargs = {name: in_float64(value) for name, value in (kwargs or {}).items()}
        return function(*args, **kwargs)
