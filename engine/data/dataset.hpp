#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/error.hpp"

namespace troupe::engine {

enum class split : std::uint8_t { train, test };

/// Samples with their labels, side by side.
struct batch {
  at::Tensor images;  // [N, C, H, W] f32
  at::Tensor labels;  // [N] i64
};

/// A source of labelled images that can be read at any index. Immutable once opened, so any number
/// of threads may read at once.
class dataset {
 public:
  dataset() = default;
  dataset(const dataset&) = delete;
  dataset& operator=(const dataset&) = delete;
  virtual ~dataset() = default;

  /// Number of samples; 0 where the source has no such split.
  [[nodiscard]] virtual std::int64_t size(split part) const = 0;
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  /// [C, H, W]
  [[nodiscard]] virtual std::vector<std::int64_t> sample_shape() const = 0;

  /// Reads the samples at `indices` in that order. An unreadable sample is left out and counted
  /// (`skipped`), or an error in strict mode; either way its file is named.
  [[nodiscard]] virtual result<batch> read(split part,
                                           std::span<const std::int64_t> indices) const = 0;

  /// Samples left out so far because they could not be read.
  [[nodiscard]] virtual std::uint64_t skipped() const { return 0; }
};

/// How to open a source.
struct dataset_options {
  std::string source;          ///< "fashion-mnist[:DIR]", "folder:PATH", "safetensors:PATH" or
                               ///< "synthetic:CxHxW:CLASSES[:COUNT]".
  std::int64_t image_size = 0; ///< Side of the square images, 0: the source's own default.
  std::uint64_t seed = 0;      ///< For synthetic images.
  int threads = 1;             ///< Worker threads that decode; at least 1.
  bool strict = false;         ///< An unreadable sample ends the run.
};

/// Opens a source and checks it. Errors: bad_config (unknown source, listing the known ones),
/// bad_data (missing, truncated, malformed; names the file).
[[nodiscard]] result<std::unique_ptr<dataset>> open_dataset(const dataset_options& options);

}  // namespace troupe::engine
