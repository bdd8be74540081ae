#include "engine/state/model_file.hpp"

#include <c10/core/GradMode.h>

#include <exception>

#include "engine/base/torch_error.hpp"
#include "engine/model/model.hpp"

namespace troupe::engine {

result<void> load_weights(const tensor_files& from, const std::vector<named_tensor>& own,
                          const std::set<std::string>& except) try {
  const c10::NoGradGuard unrecorded;
  for (const auto& each : own) {
    if (except.contains(each.name)) continue;
    const auto [file, entry] = find_in(from, each.name);
    if (file == nullptr)
      return fail(errc::bad_config, (from.size() == 1 ? from.front()->file().string() + ": " : "") +
                                        "weight '" + each.name + "' of the model is missing");
    if (auto fits = check_weight(each, entry->shape, entry->type); !fits)
      return fail(errc::bad_config, file->file().string() + ": " + fits.error().text);
    const auto values = file->read(*entry);
    if (!values) return tl::unexpected(values.error());
    each.tensor.detach().copy_(*values);
  }
  return {};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "copying weights failed: " + reason_of(problem));
}

}  // namespace troupe::engine
