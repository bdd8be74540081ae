#include "cluster/training/saving/saving.hpp"

#include <utility>

namespace troupe::cluster {
namespace {

/// `files`: what --config named.
std::filesystem::path folder_of_settings(const std::vector<std::filesystem::path>& files) {
  const auto folder = files.empty() ? std::filesystem::path() : files.back().parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

/// While it lives, one interrupt more is needed to end the process at once.
class saving {
 public:
  explicit saving(interruption& stop) : stop_(stop) { stop_.saving = true; }
  saving(const saving&) = delete;
  saving& operator=(const saving&) = delete;
  ~saving() { stop_.saving = false; }

 private:
  interruption& stop_;
};

}  // namespace

run_saver::run_saver(const train_config& train,
                     const std::vector<std::filesystem::path>& config_files, interruption& stop)
    : train_(train),
      stop_(stop),
      saver_(train.save, {folder_of_settings(config_files)}, state_file_of) {}

result<void> run_saver::save(std::uint64_t steps, bool any_applied, const saved_parts& parts,
                             const printer& print) {
  const auto& file = train_.save;
  if (file.empty()) return {};
  if (stop_.wanted() && !any_applied) {
    print("interrupted before a step was applied: nothing was saved, and " + file.string() +
          " was left as it was");
    return {};
  }
  if (auto written = write(parts); !written) return written;
  if (not_saved_ != 0)
    print("error: " + why_not_saved_);
  else if (stop_.wanted())
    print("the weights after step " + std::to_string(steps) + " are in " + file.string() +
          (state_ ? ", and the optimizer's state is in " + state_->file.string() : ""));
  return {};
}

result<void> run_saver::save_if_lost(const saved_parts& parts) {
  return not_saved_ == exit_not_saved ? write(parts) : result<void>();
}

result<void> run_saver::write(const saved_parts& parts) {
  const saving now(stop_);
  if (!weights_) {
    if (auto written = write_weights(parts); !written) return written;
  }
  if (parts.state && weights_ && !state_) {
    if (auto written = write_state(parts); !written) return written;
  }
  sum_up(parts.state != nullptr);
  return {};
}

result<void> run_saver::write_weights(const saved_parts& parts) {
  const auto weights = parts.weights();
  if (!weights) return tl::unexpected(weights.error());
  auto saved = saver_.save(digested(*weights, digest_));
  if (saved)
    weights_ = std::move(*saved);
  else if (saved.error().code == errc::io_failed)
    why_nowhere_ = "the weights are saved nowhere: " + saved.error().text;
  else
    return tl::unexpected(saved.error());
  return {};
}

result<void> run_saver::write_state(const saved_parts& parts) {
  const auto add_weights = [this](error why) {
    why.text +=
        "; the optimizer's state is not saved, the weights are in " + weights_->file.string();
    return why;
  };
  auto state = parts.state();
  if (!state) return tl::unexpected(add_weights(state.error()));
  auto saved = saver_.save_companion(weights_->file, with_digest(std::move(*state), digest_));
  if (saved)
    state_ = std::move(*saved);
  else if (saved.error().code == errc::io_failed)
    why_nowhere_ = "the optimizer's state is saved nowhere: " + saved.error().text;
  else
    return tl::unexpected(add_weights(saved.error()));
  return {};
}

void run_saver::sum_up(bool has_state) {
  const bool is_lost = !weights_ || (has_state && !state_);
  const bool is_elsewhere =
      (weights_ && !weights_->refusal.empty()) || (state_ && !state_->refusal.empty());
  not_saved_ = is_lost ? exit_not_saved : is_elsewhere ? exit_saved_elsewhere : 0;
  why_not_saved_ = is_lost ? why_nowhere_ : "";
  if (not_saved_ == 0 || !weights_) return;
  const auto add = [this](const std::string& text) {
    if (!text.empty()) why_not_saved_ += (why_not_saved_.empty() ? "" : "; ") + text;
  };
  add(weights_->refusal);
  if (state_) add(state_->refusal);
  add("the weights are in " + weights_->file.string());
  if (state_) add("the optimizer's state is in " + state_->file.string());
}

run_end run_saver::end() const {
  return {.signal = stop_.signal, .not_saved = not_saved_, .why_not_saved = why_not_saved_};
}

}  // namespace troupe::cluster
