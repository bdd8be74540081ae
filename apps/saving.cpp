#include "apps/saving.hpp"

#include <filesystem>
#include <string>

namespace troupe::apps {
namespace {

std::filesystem::path folder_of_settings(const cluster::trainer_config& config) {
  const auto folder = config.config_file.parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

/// While it lives, one interrupt more is needed to end the process at once.
class saving {
 public:
  explicit saving(cluster::interruption& stop) : stop_(stop) { stop_.saving = true; }
  saving(const saving&) = delete;
  saving& operator=(const saving&) = delete;
  ~saving() { stop_.saving = false; }

 private:
  cluster::interruption& stop_;
};

}  // namespace

run_saver::run_saver(const cluster::trainer_config& config, cluster::interruption& stop)
    : config_(config), stop_(stop), saver_(config.train.save, {folder_of_settings(config)}) {}

result<void> run_saver::save(std::uint64_t steps, bool any_applied, const reader& read,
                             const printer& print) {
  const auto& file = config_.train.save;
  if (file.empty()) return {};
  if (stop_.wanted() && !any_applied) {
    print("interrupted before a step was applied: nothing was saved, and " + file.string() +
          " was left as it was");
    return {};
  }
  if (auto written = write(read); !written) return written;
  if (not_saved_ != 0)
    print("error: " + why_not_saved_);
  else if (stop_.wanted())
    print("the weights after step " + std::to_string(steps) + " are in " + file.string());
  return {};
}

result<void> run_saver::save_if_lost(const reader& read) {
  return not_saved_ == exit_not_saved ? write(read) : result<void>();
}

result<void> run_saver::write(const reader& read) {
  const saving now(stop_);
  const auto tensors = read();
  if (!tensors) return tl::unexpected(tensors.error());
  const auto saved = saver_.save(*tensors);
  if (!saved && saved.error().code != errc::io_failed) return tl::unexpected(saved.error());
  not_saved_ = !saved ? exit_not_saved : saved->refusal.empty() ? 0 : exit_saved_elsewhere;
  if (not_saved_ == 0) return {};
  why_not_saved_ = !saved ? "the weights are saved nowhere: " + saved.error().text
                          : saved->refusal + "; the weights are in " + saved->file.string();
  return {};
}

run_end run_saver::end() const {
  return {.signal = stop_.signal, .not_saved = not_saved_, .why_not_saved = why_not_saved_};
}

}  // namespace troupe::apps
