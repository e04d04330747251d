// The servers' lamb, in two passes over memory, because the step depends on the norms of a whole
// tensor, which may lie in several partitions and on several servers.
//
//   g as in kernels/optimizer.h, without weight decay
//   first pass   m = beta1 * m + (1 - beta1) * g
//                v = beta2 * v + ((1 - beta2) * g) * g
//                r = (step_size * m) / (sqrt(v) * root_correction + epsilon) + weight_decay * w
//                sums of w * w and of r * r
//   second pass  w = w - (learning_rate * ratio) * r,  r from m, v and w once more
//                publish = round to nearest even (w)
//   step_size = 1 / (1 - beta1^step), root_correction = 1 / sqrt(1 - beta2^step)
//   ratio = |w| / |r| over the tensor; 1 when either is 0 or infinite. learning_rate * ratio is
//   computed in FP64, then rounded.
//
// You et al. 2020 (arXiv 1904.00962), algorithm 2 with phi(z) = z. Tensors that are spared weight
// decay are spared the ratio, too, as in the authors' code for BERT (exclude_from_layer_adaptation
// takes the value of exclude_from_weight_decay when it is not given) and in apex's FusedLAMB
// (use_nvlamb = false): they take update() of kernels/optimizer.h.
//
// Same bits everywhere: element by element as in optimizer.h. Squares are exact in FP64; in each
// block of 1024 elements, counted from `begin`, lane j of 8 sums those of elements j, j + 8, ... in
// their order, and the lanes are summed in their order. The blocks' sums are added without rounding
// (common/exact_sum.h), so the ratio does not depend on how a tensor is cut as long as it is cut
// between blocks, which the placement does (scheduler/placement.h) unless partition_elements is no
// multiple of 1024.
//
// Called from any thread, on disjoint ranges at once.
#pragma once

#include <cstddef>

#include "common/exact_sum.h"
#include "kernels/optimizer.h"

namespace leeway::kernels {

// The first pass over elements [begin, end) of `args`, which are a tensor or a part of one.
NormSums lamb_moments(const Hyper& hyper, const UpdateArgs& args, std::size_t begin,
                      std::size_t end);
// The second, with the sums of the whole tensor.
void lamb_step(const Hyper& hyper, const UpdateArgs& args, std::size_t begin, std::size_t end,
               const NormSums& tensor);

double trust_ratio(const NormSums& tensor);

}  // namespace leeway::kernels
