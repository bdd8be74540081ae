#include "cluster/training/saving/beginning.hpp"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "cluster/config/sources/resume_command_core.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

std::string command_of(const trainer_config& config, const std::string& from) {
  return command_to_resume({config.command, config.checkpoint.resume, config.train.verify, from});
}

/// Of a run's checkpoints, the newest first.
std::vector<std::uint64_t> steps_in(const std::filesystem::path& folder) {
  return checkpoint_folder(folder).steps().value_or(std::vector<std::uint64_t>());
}

}  // namespace

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

result<run_beginning> find_beginning(const trainer_config& config,
                                     const std::map<std::string, double>& model_options,
                                     const data_record& data, std::uint64_t steps, bool evaluates) {
  auto resumed = find_resumed(config, model_options, data);
  if (!resumed && resumed.error().code == errc::bad_data && lacks_manifests(config.checkpoint)) {
    log::warning(resumed.error().text + "; the hosts may have a copy of the manifest");
    return run_beginning{};
  }
  if (!resumed) return tl::unexpected(resumed.error());
  if (!*resumed) {
    if (!config.checkpoint.resume.empty())
      log::info(config.checkpoint.dir.string() + " has no " +
                (config.checkpoint.resume == "auto" ? "whole " : "") +
                "checkpoint: the run begins anew");
    return run_beginning{};
  }
  const auto& [folder, manifest] = **resumed;
  if (manifest.step < steps) return run_beginning{std::move(*resumed)};
  const bool is_left = evaluates && manifest.step == steps && !(*resumed)->is_evaluated();
  if (config.checkpoint.resume == "auto" && is_left) {
    log::info(folder.string() + " has all " + std::to_string(steps) +
              " steps of this run: its last evaluation is left to do");
    return run_beginning{std::move(*resumed)};
  }
  if (auto fine = check_complete(config.checkpoint, config.train, config.places, steps, folder);
      !fine)
    return tl::unexpected(fine.error());
  return run_beginning{std::move(*resumed), true};
}

void tell_command_to_resume(const trainer_config& config, std::uint64_t steps_before) {
  const auto& kept = config.checkpoint;
  const bool writes_meanwhile = !kept.every.empty() || !kept.on_signal.empty();
  if (kept.dir.empty() || !writes_meanwhile) return;
  const auto steps = steps_in(kept.dir);
  const auto line = command_of(config, "latest");
  if ((steps.empty() ? 0 : steps.front()) != steps_before || line.empty()) return;
  log::info("to resume this run from its last checkpoint, if it is lost: " + line);
}

void tell_way_on(const trainer_config& config, std::uint64_t last, std::uint64_t steps) {
  if (config.checkpoint.dir.empty() || last >= steps) return;
  const auto all = steps_in(config.checkpoint.dir);
  const auto step = std::to_string(last);
  if (std::ranges::find(all, last) == all.end()) return;
  const auto line = command_of(config, all.front() == last ? "latest" : step);
  if (!line.empty()) log::info("to resume this run from step " + step + ": " + line);
}

std::uint64_t evaluated_before(const whole_checkpoint& from) {
  const auto step = from.manifest.step;
  return step > 0 && !from.is_evaluated() ? step - 1 : step;
}

}  // namespace troupe::cluster
