#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::engine {

enum class split : std::uint8_t { train, test };

/// Samples with their labels, side by side.
struct batch {
  at::Tensor inputs;  // [N, C, H, W] f32, or tokens [N, T] i64
  at::Tensor labels;  // [N] i64, or [N, T] i64
};

/// Indices of samples that could not be read, in ascending order.
struct left_out_samples {
  std::vector<std::int64_t> train, test;

  bool operator==(const left_out_samples&) const = default;
};

/// What readers have skipped.
struct skipped_samples {
  std::uint64_t times = 0;  ///< A sample counts each time.
  left_out_samples which = {};
};

/// What was read of some samples.
struct partial_batch {
  batch readable;
  std::vector<std::int64_t> left_out = {};  ///< Indices of the others, in the order asked for.
};

/// At most this many of each split are reported: the first ones.
inline constexpr std::size_t most_left_out_told = 1000;

/// As many as are reported, in ascending order.
[[nodiscard]] std::vector<std::int64_t> told_of(const std::set<std::int64_t>& all);

/// Cuts a batch into micro-batches of the sizes that `microbatch_sizes` (sampler.hpp) returns.
/// Views: nothing is copied. Errors: bad_config naming both numbers if there are too few samples.
[[nodiscard]] result<std::vector<batch>> split_batch(const batch& whole, std::int64_t microbatches);

/// A source of labelled images or of text that can be read at any index. Immutable once opened, so
/// any number of threads may read at once. Reading runs no torch kernel, so it never starts or
/// joins the intra-op threads of whoever calls it.
class dataset {
 public:
  dataset() = default;
  dataset(const dataset&) = delete;
  dataset& operator=(const dataset&) = delete;
  virtual ~dataset() = default;

  /// Number of samples; 0 if the source has no such split.
  [[nodiscard]] virtual std::int64_t size(split part) const = 0;
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  /// [C, H, W], or [T] of tokens
  [[nodiscard]] virtual std::vector<std::int64_t> sample_shape() const = 0;
  /// Labels per sample: the tokens of a sequence.
  [[nodiscard]] virtual std::int64_t labels_per_sample() const { return 1; }

  /// Reads the samples at `indices`, in that order, into memory that the batch owns. An unreadable
  /// sample is skipped and counted (`skipped`), so a batch may be smaller than requested, even
  /// empty; in strict mode it is an error. In both cases its file is named. Errors: bad_data, also
  /// for an index outside the split; io_failed where this process lacks descriptors or memory for a
  /// sample, which is none that cannot be read.
  [[nodiscard]] virtual result<batch> read(split part,
                                           std::span<const std::int64_t> indices) const = 0;

  /// The same, and which samples were skipped. To be overridden by a source that skips any.
  [[nodiscard]] virtual result<partial_batch> read_partly(
      split part, std::span<const std::int64_t> indices) const {
    return read(part, indices).map([](batch whole) { return partial_batch{std::move(whole)}; });
  }

  /// Samples skipped so far because they could not be read.
  [[nodiscard]] virtual std::uint64_t skipped() const { return 0; }

  /// Which samples could not be read so far. Errors: those of asking another node, as `digest`.
  [[nodiscard]] virtual result<left_out_samples> left_out() const { return left_out_samples(); }

  /// How a message names a sample to the user, in the middle of a sentence.
  [[nodiscard]] virtual std::string name_of(split part, std::int64_t index) const {
    return (part == split::train ? "training sample " : "test sample ") + std::to_string(index);
  }

  /// A text that changes when a sample is added, removed or replaced, and is the same on every host
  /// and whatever the modification times of files. Computing it does not read every sample in full:
  /// a folder's samples are identified by their names and sizes, large images in memory by parts of
  /// them. Empty if the source has no digest, for example because it generates its samples. Errors:
  /// peer_lost and others of asking the node that has the data.
  [[nodiscard]] virtual result<std::string> digest() const { return std::string(); }
};

/// How to open a source.
///
/// "fashion-mnist[:DIR]"  Debian's dataset-fashion-mnist: 60,000 + 10,000 images of 10 classes, in
///     IDX files, gzipped or not. Pixels become (x / 255 - 0.2860) / 0.3530, the training set's own
///     mean and deviation, resized from 28 to image_size (default 32), repeated to three channels.
/// "folder:PATH"  JPEG and PNG files in PATH/train/CLASS and PATH/val/CLASS (else PATH/test/CLASS),
///     or in PATH/CLASS: then every tenth file of a class by name (the 10th, 20th ...) is a test
///     image. The shorter side is resized to image_size (default 224), the centre is cut out, each
///     channel normalised with ImageNet's mean and deviation. Transparency is ignored, the
///     orientation that a camera noted as well (as torchvision's ImageFolder does). Classes are
///     sorted by name.
/// "safetensors:PATH"  Tensors `images` [N, C, H, W] f32, used as they are, and `labels` [N] i64;
///     optionally `test_images` and `test_labels`.
/// "synthetic:CxHxW:CLASSES[:COUNT]"  COUNT (default 1000) random normal images with uniform random
///     labels, and a tenth as many for testing. An image depends on (seed, split, index) alone.
/// "text[:PATH,..]"  UTF-8 files and folders of files (default /usr/share/common-licenses), joined
///     and cut into samples of `context` bytes: tokens [context] i64 with the byte after each
///     as its label [context] i64, 256 classes. The last tenth of the text is for testing.
struct dataset_options {
  std::string source;
  std::int64_t context = 128;   ///< Tokens per sample of text.
  std::int64_t image_size = 0;  ///< Side of the square images, 0: the source's own default.
  std::uint64_t seed = 0;       ///< For synthetic images.
  int threads = 1;              ///< Worker threads that decode a folder's images; at least 1.
  bool strict = false;          ///< An unreadable sample ends the run.
  /// Called once for each unreadable file, one call at a time, from any thread; empty: the log.
  std::function<void(std::string_view)> warn;
};

/// Opens a source and checks it. Errors: bad_config (unknown source, listing the known ones),
/// bad_data (missing, truncated, malformed; names the file), io_failed (the system refuses a folder
/// or a thread).
[[nodiscard]] result<std::unique_ptr<dataset>> open_dataset(const dataset_options& options);

}  // namespace troupe::engine
