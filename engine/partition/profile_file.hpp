#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kernels/machine_rates.hpp"
#include "engine/partition/model_profile.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// A model's profiles, and what else a plan that is made later must know of the run that measured
/// them. A value type.
struct saved_profile {
  std::string model;
  std::int64_t batch_size = 1;            ///< Samples of a step.
  std::uint32_t cores = 1;                ///< Of the machine.
  std::uint32_t threads_per_stage = 1;    ///< Intra-op threads that each layer ran with.
  std::uint32_t credits = 1;              ///< Micro-batches that may wait on an edge.
  double bytes_per_s = 0;                 ///< Between neighbours; 0: by reference, at no cost.
  double optimizer_copies = 1;            ///< Of a parameter, in the optimizer's state.
  double sample_bytes = 0;                ///< Of a sample that the model is given.
  kernels::machine_rates rates = {};      ///< Of each thread, while all stages compute.
  std::vector<model_profile> sizes = {};  ///< One or two, the smaller micro-batch first.

  bool operator==(const saved_profile&) const = default;
};

/// As TOML, one line a layer. Numbers keep all their digits: `parse_profile` reads back what was
/// written. `sizes` must be as above; what does not depend on the micro-batch is taken from the
/// first.
[[nodiscard]] std::string to_text(const saved_profile& profile);

/// Reads `to_text`'s form, or the one before, which has no rates of the machine; `name` stands for
/// the file in errors. Nothing else may be missing, nothing unknown or out of its range. Errors:
/// bad_data with "FILE:LINE: what is wrong", the first by line.
[[nodiscard]] result<saved_profile> parse_profile(std::string_view text, std::string_view name);

/// Writes the file whole or not at all. Errors: io_failed.
[[nodiscard]] result<void> save_profile(const std::filesystem::path& file,
                                        const saved_profile& profile);

/// Errors: io_failed when the file cannot be read; those of `parse_profile`.
[[nodiscard]] result<saved_profile> load_profile(const std::filesystem::path& file);

}  // namespace troupe::engine
