#include "cluster/training/saving/checkpoint_keeper.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "messages/base/format.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

/// For who starts the same command again and again.
result<std::optional<whole_checkpoint>> newest_whole_in(const checkpoint_folder& folder) {
  auto looked = folder.newest();
  if (!looked) return tl::unexpected(looked.error());
  for (const auto& why : looked->passed_over)
    log::warning(why + "; this checkpoint is passed over");
  return std::move(looked->found);
}

/// Whoever goes back to a step leaves what came after it, which "latest" would take.
void warn_of_later(const checkpoint_folder& folder, std::uint64_t step) {
  const auto all = folder.steps();
  if (!all || all->empty() || all->front() <= step) return;
  log::warning(folder.path_of(all->front()).string() +
               " is of a later step, and stays until this run comes as far: --resume latest would "
               "take it");
}

result<std::optional<whole_checkpoint>> found_by(const checkpoint_config& config) {
  const checkpoint_folder folder(config.dir);
  const auto& which = config.resume;
  if (which.empty()) return std::nullopt;
  if (which == "latest") return folder.latest();
  if (which == "auto") return newest_whole_in(folder);
  std::uint64_t step = 0;
  const char* const end = which.data() + which.size();
  const auto [stop, status] = std::from_chars(which.data(), end, step);
  const bool is_step = stop == end && status == std::errc();
  std::error_code why;
  if (!is_step && !std::filesystem::exists(which, why))
    return fail(errc::bad_config, "checkpoint.resume: there is no " + which +
                                      "; allowed: latest, auto, the number of a step, and the "
                                      "folder of a checkpoint");
  auto found = is_step ? folder.of_step(step) : read_whole(which);
  if (found && is_step) warn_of_later(folder, step);
  return std::move(found).map(
      [](whole_checkpoint whole) { return std::optional(std::move(whole)); });
}

struct timing {
  checkpoint_keeper::clock::time_point begun;
  checkpoint_keeper::clock::time_point waited;  // until then steps have waited
};

/// What is left to do of a checkpoint, in a thread of its own.
result<void> finished(const checkpoint_folder& folder, const checkpoint_folder::collected& files,
                      std::size_t keep, const timing& when) {
  const auto name = folder.finish(files);
  if (!name) return tl::unexpected(name.error());
  const auto ms = [&when](checkpoint_keeper::clock::time_point end) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(end - when.begun);
    return std::to_string(took.count()) + " ms";
  };
  log::debug("checkpoint " + name->string() + " in " + ms(checkpoint_keeper::clock::now()) +
             "; steps waited " + ms(when.waited));
  if (auto pruned = folder.prune(files.step, keep); !pruned) log::warning(pruned.error().text);
  return {};
}

}  // namespace

std::map<std::string, std::string> settings_of_steps(
    const trainer_config& config, const std::map<std::string, double>& model_options) {
  std::map<std::string, std::string> all{
      {"model.name", config.model.name},
      {"data.source", config.data.source},
      {"data.image_size", std::to_string(config.data.image_size)},
      {"data.shuffle", config.data.shuffle ? "true" : "false"},
      {"train.accumulate", std::to_string(config.train.accumulate)},
      {"train.batch_size", std::to_string(config.train.batch_size)},
      {"train.logical_replicas", std::to_string(logical_replicas_of(config))},
      {"train.seed", std::to_string(config.train.seed)},
      {"optimizer.name", config.optimizer.name}};
  for (const auto& [name, value] : model_options)
    all[(name.find('.') == std::string::npos ? "model." : "") + name] = format("%.17g", value);
  return all;
}

result<std::optional<whole_checkpoint>> find_resumed(
    const trainer_config& config, const std::map<std::string, double>& model_options) {
  auto found = found_by(config.checkpoint);
  if (!found || !*found) return found;
  const auto own = settings_of_steps(config, model_options);
  for (const auto& [name, value] : (*found)->manifest.settings) {
    const auto ours = own.find(name);
    if (ours == own.end() || ours->second == value) continue;
    return fail(errc::bad_config, "checkpoint.resume: " + (*found)->folder.string() +
                                      " is of a run with " + name + " = " + value +
                                      ", and this one has " + ours->second +
                                      ": give it the same, or begin another run from its weights "
                                      "(--init " +
                                      (*found)->weights().string() + ")");
  }
  return found;
}

checkpoint_keeper::checkpoint_keeper(const trainer_config& config,
                                     const std::map<std::string, double>& model_options,
                                     std::uint64_t steps, clock::time_point now)
    : config_(&config),
      settings_(settings_of_steps(config, model_options)),
      folder_(config.checkpoint.dir),
      period_(period_of(config.checkpoint).value_or(checkpoint_period())),
      last_step_(steps),
      last_time_(now) {}

result<checkpoint_keeper> checkpoint_keeper::open(
    const trainer_config& config, const std::map<std::string, double>& model_options,
    std::uint64_t steps, clock::time_point now) {
  checkpoint_keeper made(config, model_options, steps, now);
  if (config.checkpoint.dir.empty()) return made;
  auto taken = made.folder_.prepare();
  if (!taken) return fail(taken.error().code, "checkpoint.dir: " + taken.error().text);
  made.taken_ = std::move(*taken);
  return made;
}

void checkpoint_keeper::warn_of_little_room(std::uint64_t weight_bytes) const {
  if (config_->checkpoint.dir.empty()) return;
  const auto room = folder_.free_bytes();
  if (!room || *room >= weight_bytes) return;
  const auto mib = [](std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  log::warning("checkpoint.dir: " + config_->checkpoint.dir.string() + " has " + mib(*room) +
               " left, and the weights alone of one checkpoint need " + mib(weight_bytes));
}

bool checkpoint_keeper::is_due(std::uint64_t step, clock::time_point now, bool is_asked) const {
  if (config_->checkpoint.dir.empty() || step % config_->train.accumulate != 0) return false;
  if (is_asked) return true;
  if (period_.steps > 0) return step % period_.steps == 0;
  return period_.time.count() > 0 && now - last_time_ >= period_.time;
}

void checkpoint_keeper::warn(std::uint64_t step, const error& why, const printer& print) const {
  print("warning: no checkpoint of step " + std::to_string(step) + ": " + why.text +
        "; training goes on");
}

void checkpoint_keeper::wait(const printer& print) {
  if (!under_way_) return;
  auto ended = std::exchange(under_way_, std::nullopt);
  const auto done = ended->done.get();
  if (!done) return warn(ended->step, done.error(), print);
  last_step_ = ended->step;
  if (ended->is_asked)
    print("the checkpoint of step " + std::to_string(ended->step) + " is in " +
          folder_.path_of(ended->step).string());
}

void checkpoint_keeper::report(const printer& print) {
  if (under_way_ && under_way_->done.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    wait(print);
}

std::uint64_t checkpoint_keeper::last_step(const printer& print) {
  wait(print);
  return last_step_;
}

result<void> checkpoint_keeper::write(std::uint64_t steps, bool is_asked, const saved_parts& parts,
                                      const printer& print) {
  const auto begun = clock::now();
  wait(print);
  if (steps == last_step_) return {};
  const auto weights = parts.weights();
  if (!weights) return tl::unexpected(weights.error());
  auto files = folder_.collect(steps, settings_, {*weights, parts.state});
  last_time_ = clock::now();
  if (!files && files.error().code != errc::io_failed) return tl::unexpected(files.error());
  if (!files) {
    warn(steps, files.error(), print);
    return {};
  }
  const auto keep = static_cast<std::size_t>(config_->checkpoint.keep);
  auto finish = [folder = folder_, files = std::move(*files), keep, begun, waited = last_time_]() {
    return finished(folder, files, keep, {begun, waited});
  };
  try {
    under_way_.emplace(under_way{steps, is_asked, std::async(std::launch::async, finish)});
  } catch (const std::system_error&) {  // no thread is left: then the steps wait
    under_way_.emplace(under_way{steps, is_asked, std::async(std::launch::deferred, finish)});
    wait(print);
  }
  return {};
}

result<void> checkpoint_keeper::write_last(std::uint64_t steps, const saved_parts& parts,
                                           const printer& print) {
  if (config_->checkpoint.dir.empty()) return {};
  wait(print);
  if (steps == last_step_) return {};
  if (steps % config_->train.accumulate != 0) {
    print("no checkpoint of step " + std::to_string(steps) +
          ", in the middle of an update (--accumulate); the last one is of step " +
          std::to_string(last_step_));
    return {};
  }
  if (auto written = write(steps, false, parts, print); !written) return written;
  wait(print);
  if (last_step_ != steps) return {};
  print("the checkpoint of step " + std::to_string(steps) + " is in " +
        folder_.path_of(steps).string() + "; --resume latest goes on from there");
  return {};
}

}  // namespace troupe::cluster
