#pragma once

namespace troupe::engine {

/// Sets for this process whether LibTorch's operators on GPUs give the same bits each time that
/// they are given the same: cuDNN's algorithms, attention, and what would add in the order in which
/// threads come. An operator that cannot do so then throws and names itself. The first call comes
/// before arithmetic runs on a GPU, for LibTorch reads it without a lock; later ones with the same
/// value write nothing. Nothing changes on the CPU, whose operators always do. cuBLAS needs no
/// CUBLAS_WORKSPACE_CONFIG for it: LibTorch gives each stream of each thread a workspace of its
/// own.
void compute_deterministically(bool wanted);

}  // namespace troupe::engine
