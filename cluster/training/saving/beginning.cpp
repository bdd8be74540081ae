#include "cluster/training/saving/beginning.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/config/sources/resume_command_core.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/format.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

std::string command_of(const checkpoint_config& kept, const train_config& train,
                       const std::vector<std::string>& command, const std::string& from) {
  return command_to_resume({command, kept.resume, train.verify, from});
}

/// Of a run's checkpoints, the newest first.
std::vector<std::uint64_t> steps_in(const std::filesystem::path& folder) {
  return checkpoint_folder(folder).steps().value_or(std::vector<std::uint64_t>());
}

/// A run that goes back to a step leaves the later checkpoints, which "latest" would take.
void warn_of_later(const checkpoint_folder& folder, std::uint64_t step) {
  const auto all = folder.steps();
  if (!all || all->empty() || all->front() <= step) return;
  log::warning(folder.path_of(all->front()).string() +
               " is of a later step, and stays until this run comes as far: --resume latest would "
               "take it");
}

/// The path of a manifest, the one file that every checkpoint has, means its folder.
std::filesystem::path folder_named(const std::filesystem::path& by) {
  return by.filename() == checkpoint_folder::manifest_name ? by.parent_path() : by;
}

/// What else a path may be that is there: a folder of checkpoints, or a file of weights.
result<whole_checkpoint> read_named(const std::filesystem::path& path) {
  std::error_code why;
  if (std::filesystem::exists(path / checkpoint_folder::manifest_name, why))
    return read_whole(path);
  if (const auto steps = steps_in(path); !steps.empty())
    return fail(errc::bad_data, path.string() + " is a folder of checkpoints; its newest is " +
                                    checkpoint_folder(path).path_of(steps.front()).string());
  const bool is_file = std::filesystem::is_regular_file(path, why);
  return fail(errc::bad_data, path.string() + " is no checkpoint: it has no " +
                                  checkpoint_folder::manifest_name +
                                  (is_file ? "; --init begins a run from a file of weights" : ""));
}

/// Of a checkpoint that cannot be read: says which older one beside it is whole. `by_step`: it was
/// named by its step, else by its folder.
error offering_older(error why, const std::filesystem::path& torn, bool by_step) {
  const auto path = (torn / "").parent_path();
  const auto step = step_of_name(path.filename().string());
  if (!step) return why;  // a folder with a name of the user's
  const auto looked =
      checkpoint_folder(path.has_parent_path() ? path.parent_path() : ".").newest(*step);
  if (!looked) return why;
  if (by_step || !looked->found)
    why.text += words_on_older(looked->found);
  else
    why.text += "; an older one is whole: --resume " + looked->found->folder.string();
  return why;
}

result<std::optional<whole_checkpoint>> found_by(const checkpoint_config& config) {
  const checkpoint_folder folder(config.dir);
  const auto& which = config.resume;
  if (which.empty()) return std::nullopt;
  if (which == "latest") return folder.latest();
  if (which == "auto") return pass_over_torn(folder);
  std::uint64_t step = 0;
  const char* const end = which.data() + which.size();
  const auto [stop, status] = std::from_chars(which.data(), end, step);
  const bool is_step = stop == end && status == std::errc();
  std::error_code why;
  if (!is_step && !std::filesystem::exists(which, why))
    return fail(errc::bad_config, "there is no " + which +
                                      "; allowed: latest, auto, the number of a step, and the "
                                      "folder of a checkpoint");
  const auto named = is_step ? folder.path_of(step) : folder_named(which);
  auto found = is_step ? folder.of_step(step) : read_named(named);
  if (!found)
    return tl::unexpected(std::filesystem::exists(named, why)
                              ? offering_older(found.error(), named, is_step)
                              : found.error());
  if (is_step) warn_of_later(folder, step);
  return std::optional(std::move(*found));
}

std::map<std::string, std::string> settings_of_steps(
    const stage_tables& config, const data_config& data,
    const std::map<std::string, double>& model_options) {
  std::map<std::string, std::string> all{
      {"model.name", config.model.name},
      {"data.source", data.source},
      {"data.image_size", std::to_string(data.image_size)},
      {"data.shuffle", data.shuffle ? "true" : "false"},
      {"train.accumulate", std::to_string(config.train.accumulate)},
      {"train.batch_norm", is_norm_synced(config.pipeline, config.train) ? "sync" : "local"},
      {"train.batch_size", std::to_string(config.train.batch_size)},
      {"train.logical_replicas",
       std::to_string(logical_replicas_of(config.pipeline, config.train))},
      {"train.seed", std::to_string(config.train.seed)},
      {"optimizer.name", config.optimizer.name}};
  for (const auto& [name, value] : model_options)
    all[(name.find('.') == std::string::npos ? "model." : "") + name] = format("%.17g", value);
  return all;
}

}  // namespace

checkpointed_run::checkpointed_run(const trainer_config& config,
                                   const std::map<std::string, double>& model_options,
                                   data_record own_data)
    : kept(config.checkpoint),
      model(config.model),
      train(config.train),
      data(config.data),
      places(config.places),
      settings(settings_of_steps(config, config.data, model_options)),
      of_data(std::move(own_data)) {}

result<std::optional<whole_checkpoint>> pass_over_torn(const checkpoint_folder& folder,
                                                       std::uint64_t before) {
  auto looked = folder.newest(before);
  if (!looked) return tl::unexpected(looked.error());
  if (const auto& other = looked->of_another_troupe; !other.empty())
    return fail(errc::bad_config, other + words_on_older(looked->found));
  for (const auto& why : looked->passed_over)
    log::warning(why + "; this checkpoint is passed over");
  return std::move(looked->found);
}

result<void> check_settings(const whole_checkpoint& of, const checkpointed_run& run) {
  for (const auto& [name, value] : of.manifest.settings) {
    const auto ours = run.settings.find(name);
    if (ours == run.settings.end() || ours->second == value) continue;
    return fail(errc::bad_config, run.places.of("checkpoint.resume") + ": " + of.folder.string() +
                                      " is of a run with " + name + " = " + value +
                                      ", and this one has " + ours->second +
                                      ": give it the same, or " + remedy_of_others(of.folder));
  }
  return check_data(of, run.places, run.data, run.of_data);
}

result<std::optional<whole_checkpoint>> find_resumed(const checkpointed_run& run) {
  auto found = found_by(run.kept);
  if (!found) return tl::unexpected(run.places.blame("checkpoint.resume", found.error()));
  if (!*found) return found;
  if (auto same = check_settings(**found, run); !same) return tl::unexpected(same.error());
  return found;
}

error offering_older(error why, const std::string& resume) {
  return offering_older(std::move(why), folder_named(resume), false);
}

bool resumes_newest_of_hosts(const checkpoint_config& kept) {
  const bool is_asked = kept.resume == "latest" || kept.resume == "auto";
  return kept.storage == checkpoint_storage::local && is_asked;
}

bool lacks_manifests(const checkpoint_config& kept) {
  if (!resumes_newest_of_hosts(kept)) return false;
  const checkpoint_folder folder(kept.dir);
  const auto steps = folder.steps();
  if (!steps) return false;
  return steps->empty() ||
         !read_manifest(folder.path_of(steps->front()) / checkpoint_folder::manifest_name);
}

bool evaluates(const train_config& train, const engine::dataset& data) {
  return train.eval && data.size(engine::split::test) > 0;
}

namespace {

/// For a checkpoint in `folder` that has all `steps` of the run.
result<void> check_complete(const checkpoint_config& kept, const train_config& train,
                            const setting_places& places, std::uint64_t steps,
                            const std::filesystem::path& folder) {
  const auto has_all = folder.string() + " has all " + std::to_string(steps) + " steps of this run";
  const auto& save = train.save;
  std::error_code absent;
  if (kept.resume != "auto")
    return fail(errc::bad_config, places.of("checkpoint.resume") + ": " + has_all +
                                      "; give it more (--steps, --epochs)");
  if (!save.empty() && !std::filesystem::exists(save, absent))
    return fail(errc::bad_config, places.of("checkpoint.resume") + ": " + has_all + ", but " +
                                      save.string() + " is not there; troupe checkpoint export " +
                                      folder.string() + " " + save.string() + " writes it");
  log::info(has_all + ": nothing is left to do");
  return {};
}

/// Logs that the last evaluation is left to do, where it is.
bool lacks_evaluation(const checkpointed_run& run, const whole_checkpoint& of, std::uint64_t steps,
                      const engine::dataset& data) {
  if (run.kept.resume != "auto" || !evaluates(run.train, data)) return false;
  if (of.manifest.step != steps || of.is_evaluated()) return false;
  log::info(of.folder.string() + " has all " + std::to_string(steps) +
            " steps of this run: its last evaluation is left to do");
  return true;
}

}  // namespace

result<bool> is_complete(const checkpointed_run& run, const whole_checkpoint& of,
                         std::uint64_t steps, const engine::dataset& data) {
  if (of.manifest.step < steps || lacks_evaluation(run, of, steps, data)) return false;
  return check_complete(run.kept, run.train, run.places, steps, of.folder).map([] { return true; });
}

result<run_beginning> find_beginning(const checkpointed_run& run, std::uint64_t steps,
                                     const engine::dataset& data) {
  auto resumed = find_resumed(run);
  if (!resumed && resumed.error().code == errc::bad_data && lacks_manifests(run.kept)) {
    log::warning(resumed.error().text + "; the hosts may have a copy of the manifest");
    return run_beginning{};
  }
  if (!resumed) return tl::unexpected(resumed.error());
  if (!*resumed) {
    if (!run.kept.resume.empty())
      log::info(run.kept.dir.string() + " has no " + (run.kept.resume == "auto" ? "whole " : "") +
                "checkpoint: the run starts from the beginning");
    return run_beginning{};
  }
  const auto complete = is_complete(run, **resumed, steps, data);
  if (!complete) return tl::unexpected(complete.error());
  return run_beginning{std::move(*resumed), *complete};
}

void tell_command_to_resume(const checkpoint_config& kept, const train_config& train,
                            const std::vector<std::string>& command, std::uint64_t steps_before) {
  const bool writes_meanwhile = !kept.every.empty() || !kept.on_signal.empty();
  if (kept.dir.empty() || !writes_meanwhile) return;
  const auto steps = steps_in(kept.dir);
  const auto line = command_of(kept, train, command, "latest");
  if ((steps.empty() ? 0 : steps.front()) != steps_before || line.empty()) return;
  log::info("to resume this run from its last checkpoint, if it is lost: " + line);
}

void tell_way_on(const checkpoint_config& kept, const train_config& train,
                 const std::vector<std::string>& command, std::uint64_t last, std::uint64_t steps) {
  if (kept.dir.empty() || last >= steps) return;
  const auto all = steps_in(kept.dir);
  const auto step = std::to_string(last);
  if (std::ranges::find(all, last) == all.end()) return;
  const auto line = command_of(kept, train, command, all.front() == last ? "latest" : step);
  if (!line.empty()) log::info("to resume this run from step " + step + ": " + line);
}

std::uint64_t evaluated_before(const whole_checkpoint& from) {
  const auto step = from.manifest.step;
  return step > 0 && !from.is_evaluated() ? step - 1 : step;
}

}  // namespace troupe::cluster
