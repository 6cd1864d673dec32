"""Sums over rows and columns of a mesh, within a run."""

import torch
from ranks.cases import fit
from ranks.start import leave

import descend


class Sums(descend.Callback):
    def __init__(self):
        self.found = {}

    def before_run(self, run):
        for procs in (1, 2, None):
            mesh = descend.distributed.mesh(procs)
            assert mesh.mesh_dim_names == ("trainer", "data")
            for name in mesh.mesh_dim_names:
                total = torch.tensor([10.0 ** descend.distributed.rank()])
                torch.distributed.all_reduce(total, group=mesh[name].get_group())
                self.found[f"{name}, {procs}"] = int(total)


def main():
    sums = Sums()
    fit(callbacks=[sums], stop=descend.Steps(1))
    leave(sums.found)


if __name__ == "__main__":
    descend.main(main)
