import math

import pytest
import torch

from recbole_lisa.ops.codeword_usage import codeword_usage


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_usage_of_codes_counted_by_hand(dtype: torch.dtype) -> None:
    # codebook 0: all items in one codeword; 1: two halves; 2: shares 1/2, 1/4, 1/4
    codes = torch.tensor([[3, 0, 0], [3, 0, 0], [3, 2, 1], [3, 2, 2]], dtype=dtype)
    usage = codeword_usage(codes, 4)
    assert usage.used.tolist() == [1, 2, 3]
    assert usage.perplexity.tolist() == pytest.approx([1.0, 2.0, math.exp(0.5 * math.log(2) + 0.5 * math.log(4))])
