#include "cluster/config/trainer_config.hpp"

#include <algorithm>

#include "cluster/config/words.hpp"

namespace troupe::cluster {

std::string_view name_of(placement value) noexcept {
  return word_of(value);
}
std::string_view name_of(memory_format value) noexcept {
  return word_of(value);
}
std::string_view name_of(precision value) noexcept {
  return word_of(value);
}
std::string_view name_of(lr_schedule value) noexcept {
  return word_of(value);
}
std::string_view name_of(loss_kind value) noexcept {
  return word_of(value);
}
std::string_view name_of(transport value) noexcept {
  return word_of(value);
}

std::string_view name_of(nan_policy value) noexcept {
  return word_of(value);
}

int threads_per_stage(const pipeline_config& config, unsigned cores) noexcept {
  if (config.threads_per_stage > 0) return config.threads_per_stage;
  return std::max(1, static_cast<int>(cores / std::max(1U, config.stages)));
}

double learning_rate(const optimizer_config& config, std::uint64_t step,
                     std::uint64_t total_steps) noexcept {
  if (config.lr_schedule == lr_schedule::constant || total_steps == 0) return config.lr;
  const auto done =
      static_cast<double>(std::min(step, total_steps + 1) - std::min<std::uint64_t>(step, 1));
  return config.lr * (1 - done / static_cast<double>(total_steps));
}

}  // namespace troupe::cluster
