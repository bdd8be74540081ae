#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"
#include "messages/base/named_values.hpp"

namespace troupe::engine {

/// A kind of source: what a user writes for it, and how it is opened.
struct data_source {
  /// "synthetic:CxHxW:CLASSES[:COUNT]", as it is listed. Where a colon follows the name, the rest
  /// is required; "text[:PATH,..]" and "text" may stand alone.
  std::string form;
  /// `rest`: what follows the name and its colon. Exceptions become errors.
  std::function<result<std::unique_ptr<dataset>>(std::string_view rest, const dataset_options&)>
      open;
};

/// The sources that a run can name, by the part before the colon.
using data_registry = named_values<data_source>;

/// The built-in sources: see dataset_options.
[[nodiscard]] data_registry built_in_data();

/// As open_dataset of dataset.hpp, among these sources.
[[nodiscard]] result<std::unique_ptr<dataset>> open_dataset(const dataset_options& options,
                                                            const data_registry& known);

}  // namespace troupe::engine
