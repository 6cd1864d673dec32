"""As a script: modules in DistributedDataParallel, trained, their group left, and let go, many times."""

import torch
from ranks.start import leave
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from descend.experiment.ranks import unwrapped

TIMES = 200


def main() -> None:
    for time in range(TIMES):
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        module = DistributedDataParallel(torch.nn.Linear(3, 2))
        unwrapped(module)
        distributed.all_gather_object([None], time)
        distributed.destroy_process_group()
        del module
    leave(TIMES)


if __name__ == "__main__":
    main()
