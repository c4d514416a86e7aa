import ast
import math
import sys
from pathlib import Path

import pytest
import torch

from recbole_lisa.ops import numba_threads
from recbole_lisa.ops.numba_threads import array, arrays, cut_rows, numba_serves, writable
from tests.helpers import run_python

OPS = Path(numba_threads.__file__).parent
SCRIPT = """
import multiprocessing
import sys
from pathlib import Path

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
    assert run_python(SCRIPT)[0] == ""


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


def rows_apart(gap: int, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Zeros of each size in one buffer, with gap numbers between two of them."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + math.prod(size) + gap)
    buffer = torch.zeros(ends[-1])
    return [buffer[start : start + math.prod(size)].view(size) for start, size in zip(ends, sizes, strict=False)]


@pytest.mark.parametrize("width", [8, 13, 16, 31])
def test_sums_do_not_depend_on_addresses(width: int) -> None:
    from recbole_lisa.ops.encoder_kernels import AddAndNorm, UndoAddAndNorm, add_and_norm, undo_add_and_norm

    row, generator = (1, width), torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 5, width, generator=generator)
    mask = {"seed": array(torch.zeros(2, dtype=torch.int32)), "threshold": 0, "scale": 1.0, "first_row": 0}
    results = []
    for gap in (0, 4096):
        x, branch, total, out, moments = rows_apart(gap, row, row, row, row, (1, 2))
        gain, grad, d_norm, d_x, d_branch = rows_apart(gap, (width,), row, (1, 2, width), row, row)
        shift = torch.zeros(width)
        outputs = []
        for numbers in inputs:
            for tensor, values in zip((x, branch, gain, grad), numbers, strict=False):
                tensor.copy_(values.view(tensor.shape))
            d_norm.zero_()
            read = arrays(x=x, branch=branch, gain=gain, shift=shift)
            add_and_norm(1, AddAndNorm(eps=1e-5, **read, **mask, **arrays(total=total, moments=moments, out=out)))
            read = arrays(grad=grad, gain=gain, total=total, moments=moments)
            undo = UndoAddAndNorm(part_rows=1, **read, **mask, **arrays(d_x=d_x, d_branch=d_branch, d_norm=d_norm))
            undo_add_and_norm(1, undo)
            outputs += [tensor.clone() for tensor in (out, moments, d_x, d_branch, d_norm)]
        results.append(torch.cat([tensor.flatten() for tensor in outputs]))
    assert torch.equal(*results)


KERNEL_FILES = sorted(set(OPS.rglob("*_kernels.py")) - set(OPS.rglob("triton*")))


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.stem)
def test_no_inner_loop_both_sums_and_writes(path: Path) -> None:
    loops = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.For)]
    inner = [x for x in loops if not any(isinstance(node, ast.For) for node in ast.walk(x) if node is not x)]
    assert inner
    for loop in inner:
        assigned = [node for node in ast.walk(loop) if isinstance(node, ast.Assign | ast.AugAssign)]
        targets = [target for node in assigned for target in getattr(node, "targets", [getattr(node, "target", None)])]
        sums = any(isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) for node in assigned)
        writes = any(isinstance(target, ast.Subscript) for target in targets)
        assert not (sums and writes), f"{path.name}, line {loop.lineno}"


def test_a_full_disk_leaves_kernels_out_of_the_cache(tmp_path: Path) -> None:
    program = """
import resource, torch
from recbole_lisa.ops.codeword_scores import scores_of_one
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
print(scores_of_one(torch.zeros(3, 2, dtype=torch.long), torch.ones(2, 4)).sum().item())
"""
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path))[0] == "6.0\n"
    assert not list(tmp_path.rglob("*.nbc"))
