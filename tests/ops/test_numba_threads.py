import subprocess
import sys

import pytest
import torch

from recbole_lisa.ops.numba_threads import cut_rows, numba_serves, writable

pytest.importorskip("numba")

SCRIPT = """
import multiprocessing
import sys

import torch

from recbole_lisa.ops.codeword_scores import scores_of_one

torch.manual_seed(0)
codes, tables = torch.randint(9, (50, 3)), torch.randn(3, 9)
expected = tables[torch.arange(3), codes].sum(dim=1)


def differs() -> bool:
    return not torch.allclose(scores_of_one(codes, tables), expected, atol=1e-5)


def child() -> None:
    sys.exit(3 if differs() else 0)


torch.set_num_threads(2)
assert not differs()
assert torch.get_num_threads() == 2, torch.get_num_threads()
torch.set_num_threads(1)
assert not differs()
assert torch.get_num_threads() == 1, torch.get_num_threads()
torch.set_num_threads(2)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
sys.exit(process.exitcode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_shared_work_leaves_torchs_threads_alone_and_a_forked_process_works_by_itself() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_kernel_writes_to_contiguous_tensors_only() -> None:
    with pytest.raises(ValueError, match=r"contiguous tensors only, got x with strides \(1, 3\)"):
        writable(x=torch.zeros(4, 3).t())


@pytest.mark.parametrize(("n", "width", "most"), [(10, 3, 9), (1, 5, 2), (0, 4, 8), (7, 1, 7)])
def test_blocks_hold_every_row_once(n: int, width: int, most: int) -> None:
    blocks = cut_rows(n, width, most)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(n))
    assert all(block.stop - block.start <= max(most // width, 1) for block in blocks)


def test_numba_serves_operands_of_one_type_only() -> None:
    wide, narrow = torch.zeros(2, dtype=torch.float64), torch.zeros(2)
    assert numba_serves(wide, wide)
    assert not numba_serves(wide, narrow)
    assert not numba_serves(narrow.half())
    assert not numba_serves(narrow.to("meta"))
