#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "messages/base/error.hpp"

namespace troupe::apps {

/// How a text is drawn from a model's scores.
struct generation {
  std::int64_t context = 128;  ///< Bytes that the model looks back.
  std::int64_t bytes = 200;    ///< To add.
  double temperature = 0.8;    ///< Below 1: likely bytes become likelier.
  std::uint64_t seed = 0;
};

/// What a model gives for tokens [1, T] i64: scores [1, T, tokens].
using token_predictor = std::function<result<at::Tensor>(const at::Tensor& tokens)>;

/// Goes on from `prompt` (at least one byte), byte by byte, and returns both. Errors: those of
/// `predict`; torch's exceptions pass through.
[[nodiscard]] result<std::string> generate(const token_predictor& predict,
                                           const std::string& prompt, const generation& how);

/// A text for a terminal: UTF-8 as it is; bytes that are none, and controls other than tab and line
/// end, as "\xc3".
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace troupe::apps
