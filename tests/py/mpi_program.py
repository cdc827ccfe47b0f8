"""Started by mpirun: the comm backend suite over MPI on every rank."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from moe_ep.comm import MPIBackend
from support.comm_suite import check_all

if __name__ == "__main__":
    backend = MPIBackend()
    check_all(backend, backend.Get_rank(), backend.Get_size())
    print("ok", flush=True)
