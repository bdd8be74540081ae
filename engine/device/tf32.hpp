#pragma once

namespace troupe::engine {

/// Sets for this process whether matrix products and convolutions of f32 on GPUs may round their
/// factors to TF32, which has the range of f32 and a mantissa of 10 bits. LibTorch's own default is
/// yes for convolutions and no for products. Concerns GPUs alone, and asks for none. The
/// first call comes before arithmetic runs, for LibTorch reads it without a lock; later ones with
/// the same value write nothing.
void allow_tf32(bool allowed);

/// Whether LibTorch now uses it for both; false: for neither. Throws std::logic_error if it has
/// been told otherwise about one of them.
[[nodiscard]] bool is_tf32_allowed();

}  // namespace troupe::engine
