"""Before any script is imported, as one's default is the number of threads that it finds."""

import torch

torch.set_num_threads(1)  # as OMP_NUM_THREADS=1 in `toy_envs.start`: their number may change the last bit of a result
