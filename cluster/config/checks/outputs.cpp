#include "cluster/config/checks/outputs.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/state/output_file.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

struct output {
  std::string option;
  fs::path file;
  bool replaced_whole;  // at the end; else written to as the run goes on
};

struct output_folder {
  std::string option;
  fs::path folder;
};

std::vector<output> outputs_of(const train_config& train, const observe_config& observe) {
  std::vector<output> all;
  const auto add = [&all](const char* option, const fs::path& file, bool replaced_whole) {
    if (!file.empty()) all.push_back({option, file, replaced_whole});
  };
  add("train.save", train.save, true);
  if (train.save_state && !train.save.empty())
    add("train.save_state", state_file_of(train.save), true);
  add("observe.json", observe.json, false);
  add("observe.save_profile", observe.save_profile, true);
  return all;
}

std::vector<output_folder> folders_of(const cluster_config& cluster,
                                      const checkpoint_config& checkpoint) {
  std::vector<output_folder> all;
  if (!cluster.logs.empty()) all.push_back({"cluster.logs", cluster.logs});
  if (!checkpoint.dir.empty()) all.push_back({"checkpoint.dir", checkpoint.dir});
  return all;
}

// Why a file cannot be written, or created, there; empty: it can.
std::string why_not(const output& what) {
  const auto kind = engine::kind_of_special(what.file);
  std::error_code error;
  if (what.replaced_whole || kind == "a directory" || !fs::exists(what.file, error))
    return engine::why_not_replaceable(what.file);
  return ::access(what.file.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
}

}  // namespace

result<void> check_outputs(const draft& whole) {
  const auto refuse = [&whole](const output& what, const std::string& why) {
    return fail_at(whole, what.option, what.file.string() + why);
  };
  for (const auto& [option, folder] : folders_of(whole.config.cluster, whole.config.checkpoint))
    if (const auto why = engine::why_no_folder(folder); !why.empty())
      return fail_at(whole, option, folder.string() + " takes no files: " + why);
  std::vector<output> before;
  for (const auto& each : outputs_of(whole.config.train, whole.config.observe)) {
    if (const auto why = why_not(each); !why.empty())
      return refuse(each, " cannot be written: " + why);
    for (const auto& other : before)
      if (engine::is_same_file(each.file, other.file))
        return refuse(each, " is the file of " + whole.where(other.option) +
                                " too; each needs one of its own");
    for (const auto& settings : whole.config.config_files)
      if (engine::is_same_file(each.file, settings))
        return refuse(each, " holds the settings of this run (--config)");
    before.push_back(each);
  }
  return {};
}

}  // namespace troupe::cluster
