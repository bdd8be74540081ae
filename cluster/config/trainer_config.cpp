#include "cluster/config/trainer_config.hpp"

#include <algorithm>

#include "cluster/config/words.hpp"

namespace troupe::cluster {

std::string_view name_of(placement value) noexcept {
  return word_of(value);
}
std::string_view name_of(transport value) noexcept {
  return word_of(value);
}

double loss_scale_of(const trainer_config& config) noexcept {
  return config.train.loss_scale.value_or(config.model.precision == engine::precision::fp16 ? 0
                                                                                            : 1);
}

std::filesystem::path state_file_of(const std::filesystem::path& weights) {
  auto file = weights;
  if (file.extension() == ".safetensors") file.replace_extension();
  return file += ".state.safetensors";
}

engine::schedule_choice schedule_of(const pipeline_config& config,
                                    const engine::schedule_registry& known) {
  return {config.schedule, config.chunks, config.plan, known};
}

std::uint32_t slices_of(const pipeline_config& config, const engine::schedule_registry& known) {
  const auto layout = engine::layout_of(schedule_of(config, known), config.stages);
  return layout ? layout->virtual_stages() : config.stages;
}

int threads_per_stage(const pipeline_config& config, unsigned cores) noexcept {
  if (config.threads_per_stage > 0) return config.threads_per_stage;
  return std::max(1, static_cast<int>(cores / std::max(1U, config.stages)));
}

double learning_rate(const optimizer_config& config, std::uint64_t step,
                     std::uint64_t total_steps) noexcept {
  const auto lr = config.options.find("lr");
  const double full = lr == config.options.end() ? 0 : lr->second;
  return full * optimizers::rate_share(config.schedule, step, total_steps);
}

}  // namespace troupe::cluster
