#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/named_tensor.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// A tensor before its values are there.
struct tensor_form {
  std::string name;
  at::ScalarType type = at::ScalarType::Float;
  std::vector<std::int64_t> shape;
};

[[nodiscard]] tensor_form form_of(const named_tensor& tensor);

/// Tensors whose values are handed over one after another when they are asked for, so that nobody
/// holds them all. They may be asked for several times, and are the same each time.
struct tensor_stream {
  /// Takes the elements of a tensor from `first` on, in row-major order; a tensor of none too.
  using taker = std::function<result<void>(const std::string& name, std::uint64_t first,
                                           const at::Tensor& run)>;

  std::vector<tensor_form> forms;
  /// Gives each tensor once, in any order, its runs from the first element on; ends early with what
  /// `take` says. Errors: those of `take`, and those of getting the tensors.
  std::function<result<void>(const taker& take)> send;
};

/// Of tensors that are in memory anyway, each of any dense layout and none undefined.
[[nodiscard]] tensor_stream stream_of(const std::vector<named_tensor>& tensors);

}  // namespace troupe::engine
